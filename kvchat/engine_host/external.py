"""The engine room of a server that the user runs: what is known of it, and whether its states can be kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvchat.chat.restore_findings import Findings, Subject
from kvchat.engine.finding.running_server import RunningServer, find_server
from kvchat.engine.running.attached import AttachedEngine, ServerAddress, parse_address
from kvchat.engine.speaking.client import LlamaServerClient
from kvchat.engine.speaking.interface import Engine, EngineError, EngineRefused
from kvchat.engine.speaking.status import EngineFailure, EngineState, EngineStatus, FailureKind
from kvchat.engine.speaking.vitals import SlotState, Vitals, parse_slots, take_vitals
from kvchat.engine.speaking.wire import ServerFacts
from kvchat.engine_host.external_states import ServerStates, states_of
from kvchat.engine_host.meeting import loss_noticed, tell_bug
from kvchat.engine_host.vision import server_cannot_see
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.session.host import ReadyEngine
from kvchat.session.self_test import self_test
from kvchat.session.strategy import Finding, Strategy
from kvchat.settings import Settings
from kvchat.system.secret_store import SecretStore

_OUT_OF_REACH = "the server keeps its states where kvchat cannot reach them"
_IN_USE = "it was not tried out beforehand, because another program may be using the server"


class ExternalHost:
    """Brings turns and such a server together. An `EngineHost` for the chat."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        slot_path: Path,
        generations: Iterator[int],
        findings: Findings,
        key: SecretStore,
        publish: Callable[[EngineStatus], None],
    ) -> None:
        """`slot_path` stands in where the server's own folder is out of reach: nothing is written there."""
        self.started_with: Settings | None = None
        self.server: ServerFacts | None = None  # as it told last
        self._settings = settings
        self._slot_path = slot_path
        self._findings = findings
        self._key = key
        self._publish = publish
        self._engine = AttachedEngine(generations)
        self._refusal: EngineStatus | None = None  # an address that cannot even be tried
        self._process: RunningServer | None = None
        self._subject: Subject | None = None
        self._ready: ReadyEngine | None = None
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._meeting: asyncio.Task[None] | None = None
        self._engine.subscribe(self._engine_changed)

    @property
    def status(self) -> EngineStatus:
        """What the server is doing. One that is not known yet is still loading."""
        status = self._refusal or self._engine.status
        if status.state is EngineState.READY and self.known is None:
            return replace(status, state=EngineState.LOADING)
        return status

    @property
    def known(self) -> ReadyEngine | None:
        """The server that answers, if it has been met."""
        return self._ready if self._ready and self._ready.generation == self._engine.generation else None

    @property
    def finding(self) -> Finding | None:
        """What restoring can do with the server, None before that is known."""
        return self.known.finding if self.known and self.is_ready() else None

    @property
    def context_size(self) -> int | None:
        """The context size the server told, in tokens; None until it was asked."""
        return self.known.context_size if self.known and self.is_ready() else None

    @property
    def engine_pid(self) -> int | None:
        """The server's process, if it is on this computer and may be looked into."""
        return self._process.pid if self._process else None

    def is_ready(self) -> bool:
        """Whether `ready` would answer at once."""
        return self.status.state is EngineState.READY

    async def vitals(self) -> Vitals | None:
        """How the server is doing; None while it does not answer."""
        client = self._engine.client
        return await take_vitals(self.engine_pid, client) if client is not None else None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown to anybody."""
        client = self._engine.client
        return (client.key,) if client is not None and client.key else ()

    def recovers(self) -> bool:
        """After a loss: whether an engine is there or coming up by itself."""
        return self.status.state in (EngineState.STARTING, EngineState.LOADING, EngineState.READY)

    async def start(self) -> None:
        """Look for the server in the settings. What goes wrong ends up in the status."""
        async with self._lock:
            if self.status.state not in (EngineState.STOPPED, EngineState.FAILED):
                return
            self.started_with = settings = self._settings()
            self._refusal = None
            try:
                url = parse_address(settings.engine_url or "")
            except KvchatError as error:
                reason = EngineFailure(FailureKind.NOT_FOUND, error.title, error.detail, error.advice)
                self._refusal = EngineStatus(EngineState.FAILED, reason)
                self._told()
                return
            kept = await asyncio.to_thread(self._key.load)
            await self._engine.attach(ServerAddress(url, kept[0] if kept else ""))

    async def stop(self) -> None:
        """Let go of the server. It goes on running."""
        async with self._lock:
            self._refusal = None
            await self._engine.stop()
        if self._meeting is not None:
            self._meeting.cancel()
            await asyncio.wait({self._meeting})

    @property
    def sees(self) -> bool:
        """Whether the server can be shown pictures."""
        return self.known is not None and self.known.sees and self.is_ready()

    async def check_vision(self, _model: str | None) -> None:
        """Whether the server can be shown pictures, as far as it is known. Raises CannotSee."""
        if self.is_ready() and not self.sees:
            raise server_cannot_see()

    async def ready(self, *, sees: bool = False, tokens: int = 0) -> ReadyEngine:
        """Wait until the server can be used. Raises KvchatError when it cannot.

        `sees`: to be shown pictures. It has room for as many `tokens` as it was started with.
        """
        while True:
            if self.status.state in (EngineState.STOPPED, EngineState.FAILED):
                await self.start()
            if self._refusal and self._refusal.failure:
                raise _error(self._refusal.failure)
            await self._engine.ready()
            if known := self.known:
                if sees and not known.sees:
                    raise server_cannot_see()
                return known
            self._changed.clear()
            if self._meeting is None or self._meeting.done():
                self._meet()
            assert self._meeting is not None
            await asyncio.shield(self._meeting)

    async def note_restore(self, *, hollow: bool) -> None:
        """A restore in a real turn held, or proved hollow."""
        known, subject = self.known, self._subject
        if known is None or subject is None:
            return
        finding = known.finding.after_restore(hollow=hollow)
        if finding != known.finding:
            self._ready = replace(known, finding=finding)
            await self._findings.learn(subject, finding, known.finding)

    async def forget_finding(self) -> None:
        """Try restoring out again when the server is met next."""
        if self._subject is not None:
            await self._findings.forget(self._subject)

    async def explain_loss(self, error: EngineError) -> EngineError:
        """After EngineGone: what has become of the server, once that is known."""
        if not await loss_noticed(self._engine, self._changed):
            return error
        return _error(self.status.failure) if self.status.failure else error

    def _meet(self) -> None:
        self._meeting = asyncio.create_task(self._get_to_know(), name="meeting the server")
        self._meeting.add_done_callback(tell_bug)

    async def _get_to_know(self) -> None:
        """Ask the server for its facts, and find out whether its states can be kept. Raises EngineError."""
        engine, generation = await self._engine.ready(), self._engine.generation
        self.server = facts = await engine.facts()
        assert isinstance(engine, LlamaServerClient)
        self._process = await asyncio.to_thread(find_server, engine.base_url)
        states = await asyncio.to_thread(states_of, self._process, facts)
        number, free = slot_for_us(await self._slots(engine))
        engine = engine.with_slot(number)
        if states is None:
            self._subject = None
            nothing = Fingerprint(facts.model_path, "", "", "", 0, "")
            self._ready = ReadyEngine(
                engine,
                generation,
                self._slot_path,
                nothing,
                facts.context_size,
                0.0,
                Finding(Strategy.NONE, proved=True, reason=_OUT_OF_REACH),
            )
        else:
            self._ready = await self._with_states(engine, generation, facts, states, free=free)
        if facts.sees:  # what it was started with is part of the fingerprint, the projector too
            self._ready = replace(self._ready, engine=self._ready.engine.with_sight("", facts.media_marker), sees=True)
        self._told()

    async def _slots(self, engine: LlamaServerClient) -> tuple[SlotState, ...]:
        try:
            return parse_slots(await engine.look("/slots"))
        except EngineRefused:  # it was started with --no-slots
            return ()

    async def _with_states(
        self, engine: Engine, generation: int, facts: ServerFacts, states: ServerStates, *, free: bool
    ) -> ReadyEngine:
        met = ReadyEngine(
            engine,
            generation,
            states.folder,
            states.fingerprint,
            facts.context_size,
            states.kv_bytes_per_token,
            Finding(states.promised, proved=False),
        )
        self._subject = Subject(states.fingerprint, facts.build)
        finding = await self._findings.known(self._subject)
        if finding is None and not free:
            finding = Finding(states.promised, proved=False, reason=_IN_USE)
        elif finding is None:
            finding = await self_test(met, states.facts.sliding_window)
            await self._findings.learn(self._subject, finding)
        return replace(met, finding=finding)

    def _engine_changed(self, status: EngineStatus) -> None:
        if status.state is EngineState.READY:
            self._meet()
        self._told()

    def _told(self) -> None:
        self._changed.set()
        self._publish(self.status)


def slot_for_us(slots: Sequence[SlotState]) -> tuple[int, bool]:
    """The slot to work in, and whether it is free: nothing may be tried out in one that another program uses.

    Others begin with the first, so the last free one is taken; where none is free, the last.
    """
    free = [number for number, slot in enumerate(slots) if not slot.busy and not slot.tokens]
    return (free[-1], True) if free else (max(0, len(slots) - 1), False)


def _error(failure: EngineFailure) -> EngineError:
    return EngineError(failure.title, failure.detail, failure.advice)
