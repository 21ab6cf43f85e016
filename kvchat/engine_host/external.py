"""A server that the user runs: what is known of it, and whether its states can be kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvchat.engine.finding import arguments
from kvchat.engine.running.external import (
    ExternalServer,
    RunningServer,
    ServerAddress,
    find_server,
    parse_address,
    reachable_slot_folder,
)
from kvchat.engine.speaking.connection import DOWN, EngineState, EngineStatus
from kvchat.engine.speaking.errors import EngineFailed, EngineFailure, EngineRefused, FailureKind
from kvchat.engine.speaking.vitals import SlotState, parse_slots
from kvchat.engine.speaking.wire import ServerFacts
from kvchat.engine_host.base import BaseHost
from kvchat.engine_host.choice import CannotSee, promised_strategy, with_file_stamps
from kvchat.errors import KvchatError
from kvchat.kvstore import disk
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.library.gguf.facts import GgufFacts, model_identity, read_facts
from kvchat.library.gguf.kv_cache import kv_bytes_per_token
from kvchat.library.model_files import shown_name
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import Finding, Findings, Strategy, Subject
from kvchat.settings import Settings
from kvchat.system.paths import Paths
from kvchat.system.secret_store import SecretStore
from kvchat.words.language import N_, _
from kvchat.words.reasons import Reason, ReasonCode

_NO_PROJECTOR = (
    N_("The model of your server"),
    N_("The server was started without what it sees with (--mmproj)."),
    N_("Start it with that, or attach the text that is in the picture."),
)


def server_key(paths: Paths) -> SecretStore:
    return SecretStore("llama-server key", paths.config / "server-key")


class ExternalHost(BaseHost):
    """Joins settings and such a server."""

    _connection: ExternalServer

    def __init__(
        self,
        settings: Callable[[], Settings],
        slot_path: Path,
        generations: Iterator[int],
        findings: Findings,
        key: SecretStore,
    ) -> None:
        """`slot_path` stands in where the server's own folder is out of reach: nothing is written there."""
        super().__init__(settings, slot_path, ExternalServer(generations), findings)
        self.server: ServerFacts | None = None  # as it told last
        self._key = key
        self._process: RunningServer | None = None

    @property
    def engine_pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        async with self._lock:
            if self.status.state not in DOWN:
                return
            self.started_with = settings = self._settings()
            self._override = None
            try:
                url = parse_address(settings.engine_url or "")
            except KvchatError as error:
                reason = EngineFailure(FailureKind.NOT_FOUND, error.title, error.detail, error.advice)
                self._set_override(EngineStatus(EngineState.FAILED, reason))
                return
            kept = await asyncio.to_thread(self._key.load)  # may ask the user to unlock a keyring
            await self._connection.connect(ServerAddress(url, kept[0] if kept else ""))

    async def stop(self) -> None:
        async with self._lock:
            self._override = None
            await self._connection.stop()
        if self._inspection is not None:
            self._inspection.cancel()
            await asyncio.wait({self._inspection})

    async def check_vision(self, model: str | None) -> None:
        if self.is_ready() and not self.sees:
            raise CannotSee(*map(_, _NO_PROJECTOR))

    async def ready(self, *, sees: bool = False, tokens: int = 0) -> ReadyEngine:
        while True:
            if self.status.state in DOWN:
                await self.start()
            if self._override and self._override.failure:
                raise EngineFailed(self._override.failure)
            await self._connection.ready()
            if known := self.known:
                if sees and not known.sees:
                    raise CannotSee(*map(_, _NO_PROJECTOR))
                return known
            await self._inspected()

    async def _look_into(self) -> None:
        engine, generation = await self._connection.ready(), self._connection.generation
        self.server = facts = await engine.facts()
        self._process = await asyncio.to_thread(find_server, engine.base_url)
        states = await asyncio.to_thread(states_of, self._process, facts)
        slots: tuple[SlotState, ...] = ()
        with contextlib.suppress(EngineRefused):  # it was started with --no-slots
            slots = parse_slots(await engine.look("/slots"))
        number, free = slot_for_us(slots)
        ready = ReadyEngine(
            engine.on_slot(number),
            generation,
            self._slot_path,
            Fingerprint(facts.model_path, "", "", "", 0, ""),
            facts.context_size,
            0.0,
            Finding(Strategy.NONE, proved=True, reason=Reason(ReasonCode.OUT_OF_REACH)),
            slots=(number,),
            model_name=shown_name(Path(facts.model_path)) if facts.model_path else "",
        )
        self._subject = None
        if states is not None:
            self._subject = subject = Subject(states.fingerprint, facts.build)
            ready = replace(
                ready,
                slot_path=states.folder,
                fingerprint=states.fingerprint,
                kv_bytes_per_token=states.kv_bytes_per_token,
                window=states.facts.sliding_window or 0,
                finding=Finding(states.promised, proved=False, reason=None if free else Reason(ReasonCode.IN_USE)),
            )
            known = None if free else await self._findings.known(subject) or ready.finding
            ready = replace(ready, finding=known or await self._find_out(ready, subject))
        if facts.sees:  # what it was started with is part of the fingerprint, the projector too
            ready = replace(ready, engine=ready.engine.with_projector("", facts.media_marker), sees=True)
        self._ready = ready
        self.publish(self.status)


def slot_for_us(slots: Sequence[SlotState]) -> tuple[int, bool]:
    """Choose the slot to work in; True if it is free: nothing may be tried out in one that another program uses.

    Others begin with the first, so the last free one is taken; where none is free, the last.
    """
    free = [number for number, slot in enumerate(slots) if not slot.busy and not slot.tokens]
    return (free[-1], True) if free else (max(0, len(slots) - 1), False)


@dataclass(frozen=True)
class ServerStates:
    """Where the server's slot files are, and what they hold."""

    folder: Path
    facts: GgufFacts
    fingerprint: Fingerprint
    kv_bytes_per_token: float
    promised: Strategy  # how far restoring should go, before it was tried


def states_of(process: RunningServer | None, facts: ServerFacts) -> ServerStates | None:
    """Find out how to keep the server's states; None on another computer, without a folder or a model kvchat can read.

    Looks at the disk: call it off the event loop.
    """
    folder = reachable_slot_folder(process) if process is not None else None
    if process is None or folder is None:
        return None
    disk.remove_stale_for_engine(folder)  # of a kvchat that was killed
    model = process.folder / facts.model_path
    try:
        gguf, identity = read_facts(model), model_identity(model)
    except KvchatError:
        return None
    type_k = process.value_of("-ctk", "--cache-type-k") or "f16"
    type_v = process.value_of("-ctv", "--cache-type-v") or "f16"
    # Everything it was started with may change what a state means; what certainly does not is left out.
    started_with = arguments.meaning_of_server(process.arguments)
    variables = " ".join(f"{name}={value}" for name, value in process.variables)
    fingerprint = Fingerprint(
        model=identity,
        kv_type_k=type_k,
        kv_type_v=type_v,
        flash_attention="auto",
        streams=facts.total_slots,
        rope="",
        options=f"attached {with_file_stamps(started_with, process.folder)} {variables}".strip(),
        build=facts.build,
    )
    promised = promised_strategy(gguf, swa_full="--swa-full" in process.arguments)
    return ServerStates(folder, gguf, fingerprint, kv_bytes_per_token(gguf.kv, type_k, type_v), promised)
