"""Connection to a llama-server that the user runs, and the arguments of its process. kvchat never stops it."""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import httpx2
import psutil

from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.connection import EngineConnection, EngineState, EngineStatus
from kvchat.engine.api.errors import (
    AccessRefused,
    CertificateChanged,
    EngineError,
    EngineFailure,
    EngineGone,
    EngineRefused,
    EngineUnreachable,
    EngineUnusable,
    FailureKind,
    ForeignServer,
)
from kvchat.engine.api.transport import CONNECT_TIMEOUT_S
from kvchat.engine.discovery.engines import MINIMUM_BUILD, build_number
from kvchat.settings import MAX_CONTEXT
from kvchat.system import parent_guard
from kvchat.system.certificate import pinned_context
from kvchat.text.language import N_, _

_ADVICE = N_("Check the server's address and API key in the settings, and check that the server is running.")


class BadAddress(EngineUnusable):
    def __init__(self, detail: str) -> None:
        super().__init__(_("The server's address is invalid"), detail, _("Use the form http://127.0.0.1:8080."))


@dataclass(frozen=True)
class ServerAddress:
    url: str
    key: str = field(default="", repr=False)  # empty if the server needs none
    certificate: str = field(default="", repr=False)  # PEM of a paired computer, which runs kvchat
    name: str = ""  # of a paired computer


@dataclass(frozen=True)
class PollPolicy:
    """Intervals and limits for connecting to a server and checking it, in seconds."""

    unreachable_after_s: float = 4.0  # wait for the first response
    return_timeout_s: float = 20.0  # wait for a server that has responded before and may be restarting
    poll_s: float = 1.0  # between attempts to connect
    check_interval_s: float = 10.0  # between checks of a server that responds
    response_timeout_s: float = 20.0
    max_misses: int = 3
    keeps_trying: bool = False  # also after it has failed


# A paired computer may go to sleep, so a missing answer is noticed soon, and kvchat keeps trying to reach it.
PAIRED = PollPolicy(
    unreachable_after_s=1.8, return_timeout_s=1.8, check_interval_s=2.0, max_misses=1, keeps_trying=True
)


def parse_address(text: str) -> str:
    """Check a server's address and remove its trailing slash. Raises BadAddress."""
    try:
        url = httpx2.URL(text.strip())
    except httpx2.InvalidURL as error:
        raise BadAddress(f"{error}.") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise BadAddress(_("It must start with http:// or https://, followed by a host name."))
    if url.userinfo:
        raise BadAddress(_("The address cannot contain a password; enter the API key in its own field."))
    if url.port is not None and not 0 < url.port < 65_536:
        raise BadAddress(_("The port must be between 1 and 65535, but it is {port}.", port=url.port))
    if url.query or url.fragment:
        raise BadAddress(_("It cannot contain ? or #."))
    return str(url).rstrip("/")


class ExternalServer(EngineConnection):
    def __init__(self, generations: Iterator[int], policy: PollPolicy | None = None) -> None:
        super().__init__(generations)
        self._given_policy = policy
        self._policy = policy or PollPolicy()
        self._task: asyncio.Task[None] | None = None
        self._check_now = asyncio.Event()  # set when a request fails
        self._failed_connect: EngineUnreachable | None = None  # the last failed request could not even connect

    async def connect(self, address: ServerAddress) -> None:
        await self._end_monitor()
        self.publish(EngineStatus(EngineState.STARTING))
        self._task = asyncio.create_task(self._monitor(address), name="external engine")

    async def stop(self) -> None:
        await self._end_monitor()
        self.publish(EngineStatus(EngineState.STOPPED))

    async def _end_monitor(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _monitor(self, address: ServerAddress) -> None:
        check = self._check_now.set
        if self._given_policy is None:
            self._policy = PAIRED if address.certificate else PollPolicy()
        client = LlamaServerClient(
            address.url,
            address.key,
            on_fault=self._note_fault,
            on_silence=check,
            exclusive=False,
            tls=pinned_context(address.certificate) if address.certificate else None,
            response_s=self._policy.unreachable_after_s if address.certificate else CONNECT_TIMEOUT_S,
        )
        lost: EngineFailure | None = None
        is_away = False
        try:
            while True:
                refusal = lost if is_away else await self._wait_until_ready(client, address, lost)
                if refusal is not None:
                    self.publish(EngineStatus(EngineState.FAILED, refusal))
                    if refusal.kind is not FailureKind.AWAY:
                        return
                    with contextlib.suppress(AccessRefused):
                        await self._wait_until_back(client)
                    lost, is_away = None, False
                    continue
                self.generation = next(self._generations)
                client.begin_lifetime()
                self._set_ready(client, EngineStatus(EngineState.READY))
                try:
                    is_away = await self._wait_until_lost(client)
                    lost = _unreachable(address)
                except AccessRefused:  # reported by `_wait_until_ready`
                    is_away, lost = False, None
                self._client = None
        finally:
            self._client = None
            await client.aclose()

    def _note_fault(self, error: EngineError) -> None:
        self._failed_connect = error if isinstance(error, EngineUnreachable) else None
        self._check_now.set()

    async def _wait_until_back(self, client: LlamaServerClient) -> None:
        while True:
            try:
                if await client.is_loaded(self._policy.unreachable_after_s):
                    return
            except CertificateChanged:
                return
            except (EngineGone, ForeignServer):
                client.end_silent_requests()
            await asyncio.sleep(self._policy.check_interval_s / 2)

    async def _wait_until_ready(
        self, client: LlamaServerClient, address: ServerAddress, failure: EngineFailure | None
    ) -> EngineFailure | None:
        self.publish(EngineStatus(EngineState.STARTING, failure))
        policy, now = self._policy, time.monotonic
        deadline = now() + (policy.return_timeout_s if failure else policy.unreachable_after_s)
        while True:
            try:
                if await client.is_loaded(min(policy.response_timeout_s, max(policy.poll_s, deadline - now()))):
                    return await _find_incompatibility(client, address)
                self.publish(EngineStatus(EngineState.LOADING, failure))
                deadline = now() + policy.return_timeout_s
            except ForeignServer:
                return _not_llama_server(client.base_url)
            except AccessRefused:
                return _access_refused(address)
            except CertificateChanged as error:
                return EngineFailure(FailureKind.UNPAIRED, error.title, error.detail, error.advice)
            except EngineGone:
                unreachable = _unreachable(address)
                if now() >= deadline:
                    return unreachable
                self.publish(EngineStatus(EngineState.STARTING, unreachable))
            await asyncio.sleep(min(policy.poll_s, max(0.0, deadline - now())))

    async def _wait_until_lost(self, client: LlamaServerClient) -> bool:
        """Return True if a paired computer does not respond at all, so that waiting longer is pointless."""
        misses, self._failed_connect = 0, None
        while misses < self._policy.max_misses:
            pause = self._policy.check_interval_s if misses == 0 else self._policy.poll_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._check_now.wait()
            self._check_now.clear()
            if self._failed_connect is not None and self._policy.keeps_trying:
                break
            try:
                if not await client.is_loaded(self._policy.response_timeout_s):
                    return False  # it has restarted, so the slots are empty
                misses = 0
            except (EngineGone, ForeignServer) as error:
                self._failed_connect = error if isinstance(error, EngineUnreachable) else None
                misses += 1
        return self._policy.keeps_trying and self._failed_connect is not None and self._failed_connect.timed_out


async def _find_incompatibility(client: LlamaServerClient, address: ServerAddress) -> EngineFailure | None:
    try:
        facts = await client.facts()
    except EngineRefused as refusal:
        if refusal.status in (401, 403):
            return _failure(_("The server rejected the API key"), refusal.message)
        return _not_llama_server(client.base_url)
    except EngineGone as error:
        return _failure(error.title, error.detail)
    if not 0 < facts.context_size <= MAX_CONTEXT:
        return _not_llama_server(client.base_url)
    build = build_number(facts.build)
    if build is None or build >= MINIMUM_BUILD:
        return None
    return EngineFailure(
        FailureKind.INCOMPATIBLE,
        _("The server is too old"),
        _("It is build {build}; kvchat needs {minimum_build} or newer.", build=build, minimum_build=MINIMUM_BUILD),
        _("Update llama-server on that server."),
    )


def _access_refused(address: ServerAddress) -> EngineFailure:
    return EngineFailure(
        FailureKind.UNPAIRED,
        _("{name} refused access", name=address.name),
        _("That computer has removed this one from its paired devices."),
        _("Pair the computers again in Settings, Engine."),
    )


def _unreachable(address: ServerAddress) -> EngineFailure:
    url = address.url
    if address.certificate:
        return EngineFailure(
            FailureKind.AWAY,
            _("{name} is not available", name=address.name),
            _("There is no response from {url}.", url=url),
            _("The computer may be off, asleep or on another network. kvchat keeps trying."),
        )
    return _failure(_("The server is not responding"), _("There is no response from {url}.", url=url))


def _not_llama_server(url: str) -> EngineFailure:
    return _failure(_("This is not a llama-server"), _("Another program is running at {url}.", url=url))


def _failure(title: str, detail: str) -> EngineFailure:
    return EngineFailure(FailureKind.NOT_FOUND, title, detail, _(_ADVICE))


@dataclass(frozen=True)
class RunningServer:
    pid: int
    folder: Path  # working directory
    arguments: tuple[str, ...]  # without the program's name
    variables: tuple[tuple[str, str], ...] = ()  # environment variables LLAMA_ARG_*, which set options

    def option_value(self, *names: str) -> str | None:
        for name, value in zip(self.arguments, self.arguments[1:], strict=False):
            if name.replace("_", "-") in names:
                return value
        return None


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def find_server(url: str) -> RunningServer | None:
    """Find the process that listens at this address; None if it is remote or belongs to another user."""
    address = httpx2.URL(url)
    if not is_loopback(address.host):
        return None
    port = address.port or (443 if address.scheme == "https" else 80)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            listening = {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
            if port in listening:
                variables = [
                    item for item in process.environ().items() if item[0].startswith(parent_guard.OPTION_PREFIX)
                ]
                command = process.cmdline()
                return RunningServer(process.pid, Path(process.cwd()), tuple(command[1:]), tuple(sorted(variables)))
    return None


def reachable_slot_folder(server: RunningServer, proc: Path = Path("/proc")) -> Path | None:
    """Return the folder where the server saves slots if kvchat can use it, else None.

    If the server runs in a container, its path may mean another folder; on Linux, `proc` shows the server's root
    folder. kvchat does not test this by saving a slot, because another program may be using the slot.
    """
    name = server.option_value("--slot-save-path")
    folder = server.folder / name if name else None
    try:
        if folder is None or not os.access(folder, os.R_OK | os.W_OK | os.X_OK) or not folder.is_dir():
            return None
        root = proc / str(server.pid) / "root"
        if proc.is_dir() and not folder.samefile(root / folder.relative_to(folder.anchor)):
            return None
    except OSError:
        return None
    return folder
