"""An engine in the test's own process: the test sets its replies and its state."""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.errors import EngineFailed
from kvchat.engine.api.transport import NO_HEADERS, Transport
from kvchat.engine.api.vitals import Vitals
from kvchat.engine.api.wire import ChatChunk, PromptProgress, Timings
from kvchat.engine_host.choice import Capacity, ModelMissing, NoModel, start_failure
from kvchat.engine_host.host import SwitchingEngineHost
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.demand import MemoryFacts, MemoryUse
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import RestoreFinding, Strategy
from kvchat.settings import GB
from tests.fake_llama_server import BOS, FIRST_BYTE, SPECIAL, Handler, Slot, render

CONTEXT = 32_768
MS_PER_TOKEN = 0.5  # reported, not real
FINGERPRINT = Fingerprint("model", "f16", "f16", "auto", 1, "")
NOWHERE = "http://127.0.0.1:9"


def tokenize(text: str) -> list[int]:
    """Return about one token for four letters."""
    pieces = re.findall(r"<\|im_start\|>|<\|im_end\|>|\n|[^\n<]{1,4}|<", text)
    return [SPECIAL.get(piece, FIRST_BYTE + zlib.crc32(piece.encode()) % 30_000) for piece in pieces]


def render_request(body: dict[str, Any]) -> str:
    """Return the prompt of a chat request: tools come first, as in most templates."""
    tools = body.get("tools")
    return (json.dumps(tools) if tools else "") + render(body["messages"])


class PlayedServer(Transport):
    """Imitates a llama-server with one slot. The test puts pieces of the reply into `played`; None ends it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(NOWHERE, "", 60.0, lambda _: None, lambda: None)
        slots: list[Slot] = []
        self.slot = Slot(CONTEXT, 512, folder, slots)
        slots.append(self.slot)
        self.played = asyncio.Queue[ChatChunk | None]()
        self.may_read = asyncio.Event()  # cleared by a test: prompts wait
        self.may_read.set()

    async def request(self, method: str, path: str, body: dict[str, Any] | None = None, **options: object) -> bytes:
        body = body or {}
        match path.partition("?action="):
            case "/apply-template", _, _:
                answer: dict[str, Any] = {"prompt": render_request(body)}
            case "/tokenize", _, _:
                answer = {"tokens": [BOS] * body["add_special"] + tokenize(body["content"])}
            case "/slots/0", _, action:
                answer = Handler.slot_action(self.slot, action, body)
            case _:
                raise AssertionError(path)
        return json.dumps(answer).encode()

    async def stream(
        self, path: str, body: dict[str, Any], more_headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[ChatChunk, None]:
        prompt = body["prompt"] if path == "/completion" else [BOS, *tokenize(render_request(body))]
        cached = self.slot.cached(prompt)
        self.slot.tokens = list(prompt)
        await self.may_read.wait()
        counts = Timings(cached, len(prompt) - cached, MS_PER_TOKEN * (len(prompt) - cached), 0, 0.0)
        yield ChatChunk(progress=PromptProgress(len(prompt), cached, len(prompt)))
        if path == "/completion":
            yield ChatChunk(timings=counts)
            return
        text = ""
        try:
            while (chunk := await self.played.get()) is not None:
                text += chunk.text
                self.slot.tokens = [*prompt, *tokenize(text)]
                counts = replace(counts, predicted_n=len(self.slot.tokens) - len(prompt), predicted_ms=10.0)
                yield replace(chunk, timings=counts)
            yield ChatChunk(timings=counts, finish_reason="stop")
        finally:
            self.played = asyncio.Queue()


class FakeEngine(SwitchingEngineHost):
    """Engine host over the fake server; its answers are set by the test."""

    location = "/usr/bin/llama-server"
    context_reason = "32,768 tokens: what the model was trained for; memory would allow 91,000."
    context_warning = ""
    memory_uses: tuple[MemoryUse, ...] = ()
    log_lines: Sequence[str] = (  # type: ignore[assignment]
        "build: 11434",
        "load_tensors: 30 layers",
        "main: server is listening",
    )
    status = EngineStatus(EngineState.READY)
    finding = RestoreFinding(Strategy.PLAIN, proved=True)
    has_tools = True
    memory = MemoryFacts(16 * GB, total=32 * GB)
    seen: Vitals | None = None
    fingerprint = FINGERPRINT
    gone: frozenset[str] = frozenset()  # models whose files are missing
    larger: ContextChoice | None = ContextChoice(
        65_536,
        "A context of 65,536 tokens needs about 6.2 GB. Once the engine has stopped, 11.4 GB is free on the GPU.",
        "", 0, 0, 0, True, (),
    )  # fmt: skip

    def __init__(self, **needed: Any) -> None:
        super().__init__(**needed)
        self.calls: list[tuple[object, ...]] = []
        self._start_settings = self._settings()
        self.folder = needed["store"].staging.slot_folder()
        self.server = PlayedServer(self.folder)
        self.client = LlamaServerClient(NOWHERE, "")
        self.client._http = self.server

    async def ready(self, model: str | None = None, *, needs_vision: bool = False, tokens: int = 0) -> ReadyEngine:
        if model in self.gone:
            raise ModelMissing(model or "")
        if not self._settings().model_path:
            self.set(EngineState.STOPPED, failure=start_failure(NoModel()))
        if self.status.failure:
            raise EngineFailed(self.status.failure)
        if self.status.state is not EngineState.READY:
            await self.start()
        facts = self.client, 1, self.folder, self.fingerprint, CONTEXT, 64.0, self.finding
        return ReadyEngine(*facts, has_vision=True, has_tools=self.has_tools)

    def is_ready(self, model: str | None = None, *, needs_vision: bool = False) -> bool:
        return self.status.state is EngineState.READY and model not in self.gone and not needs_vision

    async def check_vision(self, model: str | None = None) -> None:
        return None

    async def start(self) -> None:
        self.calls.append(("start",))
        self._start_settings = self._settings()
        self.set(EngineState.READY)

    async def stop(self) -> None:
        self.calls.append(("stop",))
        self.set(EngineState.STOPPED)

    def set(self, state: EngineState, **more: Any) -> None:
        """Change the state and publish it."""
        self.status = EngineStatus(state, **more)
        self._publish(self.status)

    @property
    def restore_description(self) -> str:
        return self.finding.description if self.status.state is EngineState.READY else ""

    @property
    def can_retest(self) -> bool:
        return not self.finding.strategy.supports_saving

    @property
    def context_size(self) -> int | None:
        return CONTEXT if self.status.state is EngineState.READY else None

    async def fingerprint_and_limit(self, model: str | None = None) -> tuple[Fingerprint, int] | None:
        return (self.fingerprint, CONTEXT) if model else None

    async def vitals(self) -> Vitals | None:
        return self.seen

    async def capacity(self) -> Capacity:
        return Capacity(self.memory)

    async def larger_context(self) -> ContextChoice | None:
        return self.larger
