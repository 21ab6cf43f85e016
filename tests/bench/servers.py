"""The servers that the gateway benchmark compares, each with the same model: an engine, kvchat, and hearth-llm.

Also the client that sends the requests: plain sockets in a thread of its own, so that it uses little of their time.
"""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from kvchat.cli.bench import BenchFailed, BenchSetup
from kvchat.engine import embedded
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.child import EngineProcess
from kvchat.engine.process.log import EngineLog
from kvchat.engine.process.plan import LaunchPlan, free_port, make_invocation
from kvchat.kvstore import disk

Body = dict[str, Any]
HEARTH = "hearth"  # of hearth-llm, a proxy that keeps whole slot files
CHAT = "/v1/chat/completions"
TIMEOUT_S = 3600.0  # tens of thousands of tokens of a large model on a CPU
_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True)
class Answer:
    """The answer to a request. Times in ms from sending it; counts in tokens."""

    text: str
    first_byte_ms: float  # of the answer's body
    ttft_ms: float  # until the first token
    total_ms: float
    cached: int
    prompt: int
    predicted: int


@dataclass(frozen=True)
class Address:
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    async def ask(self, body: Body) -> Answer:
        """Return the complete answer. Raises BenchFailed."""
        return await asyncio.to_thread(_ask, self, body)

    async def open_stream(self, body: Body) -> contextlib.closing[http.client.HTTPConnection]:
        """Return a stream after its first bytes; closing it disconnects the client. Raises BenchFailed."""

        def open_stream() -> http.client.HTTPConnection:
            connection, answer = _send(self, body | {"stream": True})
            answer.read1()
            return connection

        return contextlib.closing(await asyncio.to_thread(open_stream))


class Server(ABC):
    """A server under comparison. Its data lies in a temporary folder of its own."""

    name: str
    has_memory = True  # what it processed outlives its engine
    max_slots = 2

    @abstractmethod
    async def open(self, slots: int) -> Address:
        """Restart it with this number of slots, keeping its data on disk."""

    @abstractmethod
    async def kill(self) -> None:
        pass

    @abstractmethod
    async def direct(self) -> Address | None:
        """Return the engine behind it; None if it is one itself."""

    async def wait_until_idle(self) -> None:
        return

    async def disk_bytes(self) -> int:
        return 0


class Ours(Server):
    name = "kvchat"

    def __init__(self, home: BenchSetup) -> None:
        self._home = home

    async def open(self, slots: int) -> Address:
        self._home.settings = dataclasses.replace(self._home.settings, slots=slots)
        await self._home.restart()
        return Address(await self._home.runtime.api_server.open("127.0.0.1", 0, {}))

    async def kill(self) -> None:
        pid = self._home.runtime.engine.engine_pid
        if pid is not None:
            psutil.Process(pid).kill()

    async def direct(self) -> Address:
        client = (await self._home.runtime.engine.ready()).engine
        return Address(client.base_url, {"authorization": f"Bearer {client.key}"})

    async def wait_until_idle(self) -> None:
        await self._home.runtime.api_server.wait_until_idle()
        await self._home.runtime.chat.wait_until_idle()

    async def disk_bytes(self) -> int:
        return (await self._home.runtime.save_points.usage()).physical_bytes


class Direct(Server):
    """A llama-server with its defaults: it keeps other prompts in memory."""

    name = "llama-server"
    has_memory = False

    def __init__(self, location: EngineLocation, plan: LaunchPlan, folder: Path) -> None:
        self._location, self._folder = location, folder
        self._plan = dataclasses.replace(
            plan, slot_path=folder, extra_arguments=(*plan.extra_arguments, "--cache-ram", "8192")
        )
        self._process: EngineProcess | None = None

    async def open(self, slots: int) -> Address:
        await self.close()
        invocation = make_invocation(self._location, dataclasses.replace(self._plan, slots=slots))
        keys = (embedded.KEY_VARIABLE, "LLAMA_API_KEY")
        environment = {name: value for name, value in invocation.environment.items() if name not in keys}
        self._process = await _start(list(invocation.command), environment, invocation.base_url)
        return Address(invocation.base_url)

    async def kill(self) -> None:
        if self._process is not None:
            psutil.Process(self._process.pid).kill()
            await self._process.wait()

    async def direct(self) -> Address | None:
        return None

    async def close(self) -> None:
        if self._process is not None:
            await self._process.stop()


class Hearth(Direct):
    """hearth-llm in front of such an engine; it uses one slot."""

    name = HEARTH
    has_memory = True
    max_slots = 1

    _proxy: EngineProcess | None = None
    _engine = Address("")

    async def open(self, slots: int) -> Address:
        if self._proxy is not None:
            await self._proxy.stop()
        self._engine = await super().open(1)
        port = free_port("127.0.0.1")
        command = [HEARTH, "serve", "--upstream", self._engine.url, "--port", str(port)]
        command += ["--cache-dir", str(self._folder)]
        url = f"http://127.0.0.1:{port}"
        self._proxy = await _start(command, os.environ, url)
        return Address(url)

    async def direct(self) -> Address | None:
        return self._engine

    async def disk_bytes(self) -> int:
        return await asyncio.to_thread(disk.tree_size, self._folder)

    async def close(self) -> None:
        if self._proxy is not None:
            await self._proxy.stop()
        await super().close()


@asynccontextmanager
async def other_servers(location: EngineLocation, plan: LaunchPlan, folder: Path) -> AsyncIterator[list[Direct]]:
    """Yield the engine itself, and hearth if installed; stop and delete them afterwards."""
    kinds = [Direct, *([Hearth] if shutil.which(HEARTH) else [])]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as data:
        servers = [kind(location, plan, Path(tempfile.mkdtemp(dir=data))) for kind in kinds]
        try:
            yield servers
        finally:
            for server in servers:
                await server.close()


async def _start(command: list[str], environment: Mapping[str, str], url: str) -> EngineProcess:
    """Start a process and wait until it is healthy. Raises BenchFailed."""
    process = await EngineProcess.spawn(command, environment, EngineLog())
    while not await asyncio.to_thread(_is_healthy, url):
        if await process.exits_within(_POLL_INTERVAL_S):
            lines = (await process.wait()).last_lines
            raise BenchFailed(f"{Path(command[0]).name} could not be started", "\n".join(lines[-3:]))
    return process


def _is_healthy(url: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
    return False


def _send(address: Address, body: Body) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(urlsplit(address.url).netloc, timeout=TIMEOUT_S)
    data = json.dumps(body).encode()
    connection.connect()
    connection.request("POST", CHAT, data, {"content-type": "application/json", **address.headers})
    try:
        answer = connection.getresponse()
    except TimeoutError as error:
        raise BenchFailed("A request was not answered within an hour", "Choose fewer --tokens.") from error
    if answer.status != 200:
        raise BenchFailed("A request was refused", answer.read(2000).decode("utf-8", "replace"))
    return connection, answer


def _ask(address: Address, body: Body) -> Answer:
    began = time.perf_counter()
    connection, answer = _send(address, body)
    with contextlib.closing(connection):
        first_byte = first_token = 0.0
        text, timings, rest = "", Body(), b""
        while data := answer.read1(65536):
            first_byte = first_byte or time.perf_counter()
            rest += data
            if not body.get("stream"):
                continue
            *lines, rest = rest.split(b"\n")
            for event in (json.loads(line[6:]) for line in lines if line.startswith(b"data: {")):
                timings = event.get("timings") or timings
                delta = "".join(choice["delta"].get("content") or "" for choice in event.get("choices") or ())
                if delta and not text:
                    first_token = time.perf_counter()
                text += delta
        ended = time.perf_counter()
    if not body.get("stream"):
        whole = json.loads(rest)
        text, timings = whole["choices"][0]["message"]["content"] or "", whole.get("timings") or {}
    cached = int(timings.get("cache_n", 0))
    return Answer(
        text=text,
        first_byte_ms=1000 * (first_byte - began),
        ttft_ms=1000 * ((first_token or ended) - began),
        total_ms=1000 * (ended - began),
        cached=cached,
        prompt=cached + int(timings.get("prompt_n", 0)),
        predicted=int(timings.get("predicted_n", 0)),
    )
