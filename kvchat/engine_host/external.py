"""The user's own server: what is known about it, and if its states can be kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from kvchat.engine.speaking.errors import EngineRefused
from kvchat.engine.speaking.vitals import SlotState, parse_slots
from kvchat.engine.speaking.wire import ServerFacts
from kvchat.engine_host.choice import CannotSee, promised_strategy, with_file_stamps
from kvchat.errors import KvchatError
from kvchat.kvstore import disk
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.library.gguf.facts import GgufFacts, model_identity, read_facts
from kvchat.library.gguf.kv_cache import kv_bytes_per_token
from kvchat.library.model_files import shown_name
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import Finding, Strategy, Subject
from kvchat.settings import Settings
from kvchat.system.paths import Paths
from kvchat.system.secret_store import SecretStore
from kvchat.words.language import _
from kvchat.words.reasons import Reason, ReasonCode


def server_key(paths: Paths) -> SecretStore:
    return SecretStore("llama-server key", paths.config / "server-key")


class ExternalEngine:
    def __init__(self, slot_path: Path, generations: Iterator[int], key: SecretStore) -> None:
        """`slot_path` replaces an unreachable server folder: nothing is written there."""
        self.connection = ExternalServer(generations)
        self.server: ServerFacts | None = None  # last reported
        self._slot_path, self._key = slot_path, key
        self._process: RunningServer | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def cannot_see(self) -> CannotSee:
        return CannotSee(
            _("The server’s model"),
            _("The server was started without a vision file (--mmproj)."),
            _("Restart it with --mmproj, or attach the text from the image."),
        )

    async def prepare(self, settings: Settings) -> Callable[[], Awaitable[None]]:
        """Read address and key; return a connect function. Raises BadAddress."""
        url = parse_address(settings.engine_url or "")
        kept = await asyncio.to_thread(self._key.load)  # may ask the user to unlock a keyring
        return partial(self.connection.connect, ServerAddress(url, kept[0] if kept else ""))

    async def inspect(self) -> tuple[ReadyEngine, Subject | None]:
        """Query the server; no subject if its states cannot be kept. Raises EngineError."""
        engine, generation = await self.connection.ready(), self.connection.generation
        self.server = facts = await engine.facts()
        self._process = await asyncio.to_thread(find_server, engine.base_url)
        states = await asyncio.to_thread(states_of, self._process, facts)
        slots: tuple[SlotState, ...] = ()
        with contextlib.suppress(EngineRefused):  # server runs with --no-slots
            slots = parse_slots(await engine.look("/slots"))
        number, free = slot_for_us(slots)
        if facts.sees:  # the fingerprint covers the server's arguments, with the projector
            engine = engine.with_projector("", facts.media_marker)
        ready = ReadyEngine(
            engine.on_slot(number),
            generation,
            self._slot_path,
            Fingerprint(facts.model_path, "", "", "", 0, ""),
            facts.context_size,
            0.0,
            Finding(Strategy.NONE, proved=True, reason=Reason(ReasonCode.OUT_OF_REACH)),
            sees=facts.sees,
            slots=(number,),
            model_name=shown_name(Path(facts.model_path)) if facts.model_path else "",
        )
        if states is None:
            return ready, None
        ready = replace(
            ready,
            slot_path=states.folder,
            fingerprint=states.fingerprint,
            kv_bytes_per_token=states.kv_bytes_per_token,
            window=states.facts.sliding_window or 0,
            finding=Finding(states.promised, proved=False, reason=None if free else Reason(ReasonCode.IN_USE)),
        )
        return ready, Subject(states.fingerprint, facts.build)


def slot_for_us(slots: Sequence[SlotState]) -> tuple[int, bool]:
    """Choose a slot; True if it is free: nothing may be tried out in one that another program uses.

    Others begin with the first, so take the last free one; if none is free, the last.
    """
    free = [number for number, slot in enumerate(slots) if not slot.busy and not slot.tokens]
    return (free[-1], True) if free else (max(0, len(slots) - 1), False)


@dataclass(frozen=True)
class ServerStates:
    folder: Path
    facts: GgufFacts
    fingerprint: Fingerprint
    kv_bytes_per_token: float
    promised: Strategy  # expected restore strategy, before the test


def states_of(process: RunningServer | None, facts: ServerFacts) -> ServerStates | None:
    """Find out how to keep the server's states; None if it is remote or its folder or model is unreadable.

    Reads the disk: call it off the event loop.
    """
    folder = reachable_slot_folder(process) if process is not None else None
    if process is None or folder is None:
        return None
    disk.remove_stale_for_engine(folder)  # left by a killed kvchat
    model = process.folder / facts.model_path
    try:
        gguf, identity = read_facts(model), model_identity(model)
    except KvchatError:
        return None
    type_k = process.value_of("-ctk", "--cache-type-k") or "f16"
    type_v = process.value_of("-ctv", "--cache-type-v") or "f16"
    # Any argument may change what a state means; leave out only those known to be harmless.
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
