"""The two kinds of engine: kvchat's own (managed), with its memory use, and the user's server (external)."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.errors import EngineRefused
from kvchat.engine.api.vitals import SlotState, parse_slots
from kvchat.engine.api.wire import ServerFacts
from kvchat.engine.discovery import arguments
from kvchat.engine.process.external import (
    ExternalServer,
    RunningServer,
    ServerAddress,
    find_server,
    parse_address,
    reachable_slot_folder,
)
from kvchat.engine.process.log import read_allocations
from kvchat.engine.process.plan import FULL_WINDOW_OPTION, LaunchPlan
from kvchat.engine.process.supervisor import EngineSupervisor
from kvchat.engine_host.choice import (
    Capacity,
    EngineChoice,
    VisionUnsupported,
    choose_engine,
    promised_strategy,
    query_capacity,
    with_file_stamps,
)
from kvchat.engine_host.paired_computer import PairedComputer, PairedComputerStore
from kvchat.errors import KvchatError
from kvchat.kvstore import disk
from kvchat.kvstore.memory_files import StagingMemory
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.kvstore.store import BlockStore
from kvchat.library.gguf.facts import model_identity, read_facts
from kvchat.library.gguf.kv_cache import kv_bytes_per_token, kv_fixed_bytes
from kvchat.library.memory.demand import (
    COMPUTER,
    DeviceMemory,
    LoadLimit,
    LoadLimits,
    MemoryUse,
    with_freed_memory,
)
from kvchat.library.model_files import display_name
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import FindingKey, RestoreFinding, Strategy
from kvchat.settings import Settings
from kvchat.system.concurrency import BackgroundTasks
from kvchat.system.paths import Paths
from kvchat.system.secret_store import SecretStore
from kvchat.text.formatting import format_day
from kvchat.text.language import _, join_sentences
from kvchat.text.reasons import Reason, ReasonCode

_MAX_SLOTS = 64  # of a paired computer, which may claim any number


class ManagedEngine:
    """kvchat's own engine and its memory use. Use it on the event loop's thread only."""

    def __init__(
        self,
        slot_path: Path,
        supervisor: EngineSupervisor,
        limits: LoadLimits,
        store: BlockStore,
        notify: Callable[[str, str], None],
        expected_tokens: Callable[[], Awaitable[int]],
    ) -> None:
        """Create the engine without starting it.

        `notify` shows the user a title and a detail. `expected_tokens` returns the length of the chats likely to be
        continued, replies included.
        """
        self.connection, self.limits = supervisor, limits
        self.choice: EngineChoice | None = None  # of the running or last engine
        self.memory_uses: tuple[MemoryUse, ...] = ()  # estimated while a model loads, then measured
        self.limit: LoadLimit | None = None  # for the last choice
        self._slot_path, self._store, self._notify = slot_path, store, notify
        self._expected_tokens = expected_tokens
        self._failed_choice: EngineChoice | None = None  # the first that ran out of memory
        self._limit_updates = BackgroundTasks()

    @property
    def pid(self) -> int | None:
        return self.connection.pid

    def vision_error(self) -> VisionUnsupported:
        return VisionUnsupported(
            _("This model"), _("The engine loaded the vision file (mmproj) but reports no image support.")
        )

    def staging_memory(self) -> StagingMemory:
        """Return the memory that the store uses for slot files. Reads a folder: call it off the event loop."""
        return self._store.staging.memory()

    def choose(self, settings: Settings, *, needs_vision: bool, initial_tokens: int) -> EngineChoice:
        """Choose an engine and let the store free memory for it. Blocks. Raises KvchatError."""
        choice = choose_engine(
            settings,
            self._slot_path,
            self.limits,
            needs_vision=needs_vision,
            initial_tokens=initial_tokens,
            staged=self.staging_memory(),
        )
        promised = promised_strategy(choice.facts, swa_full=choice.demand.swa_full)
        window = choice.facts.kv.window if promised is Strategy.COMPLETE else 0
        self._store.restorer.limit_memory(choice.context.memory_uses[-1].staging, choice.fingerprint, window)
        return choice

    async def prepare(self, settings: Settings, *, needs_vision: bool, tokens: int) -> Callable[[], Awaitable[None]]:
        """Choose an engine with room for `tokens`, if possible; return the function that starts it."""
        initial_tokens = max(tokens, await self._expected_tokens())
        choice = await asyncio.to_thread(
            self.choose, settings, needs_vision=needs_vision, initial_tokens=initial_tokens
        )

        def plans() -> Iterator[LaunchPlan]:
            for candidate in (choice, *choice.smaller_choices()):
                self.choice, self.memory_uses = candidate, candidate.context.memory_uses
                yield candidate.plan
                self._failed_choice = self._failed_choice or candidate

        async def start() -> None:
            self.limit, self._failed_choice = choice.demand.limit, None
            await self.connection.start(choice.location, plans())

        return start

    def read_measurements(self) -> None:
        """Read the memory use from the log of a ready engine, and record the context size that could be loaded."""
        choice, ran_out = self.choice, self._failed_choice
        if choice is None:
            return
        self._failed_choice = None
        if (actual := read_allocations(self.connection.log.since_start)) is not None:
            measured = []
            for bar in choice.context.memory_uses:
                is_computer = bar.device == COMPUTER
                sizes = actual.bytes_on(None if is_computer else bar.device)
                weights = sizes["weights"]
                if is_computer and len(choice.context.memory_uses) > 1:
                    # With a GPU it reports the whole mapped file, but the GPU's layers need not stay in memory.
                    weights = min(weights, bar.weights)
                measured.append(replace(bar, weights=weights, kv=sizes["kv"], compute=sizes["compute"], measured=True))
            self.memory_uses = tuple(measured)
            context = choice.context.with_placement(actual.placement, choice.memory.device_names)
            self.choice = choice = replace(choice, context=context)
        self._limit_updates.start(self._update_limit(choice, ran_out))

    async def _update_limit(self, choice: EngineChoice, failed_choice: EngineChoice | None) -> None:
        context = choice.context
        self.limit = limit = await asyncio.to_thread(
            self.limits.record_load, choice.limit_key, context.tokens, out_of_memory=failed_choice is not None
        )
        if failed_choice is None:
            return
        retry = ""
        if limit is not None and not failed_choice.context.by_user:
            retry = _("kvchat will try a larger context again on {until}.", until=format_day(limit.until))
        self._notify(
            _("The model ran out of memory while loading"),
            join_sentences(_("The model now uses less memory."), context.reason, retry),
        )

    async def capacity(self, settings: Settings) -> Capacity:
        """Query the engine in the settings for the memory available to a model if the running one were stopped."""
        choice, workers = self.choice, list[DeviceMemory]()
        if choice is not None and choice.plan.rpc_workers and self.pid is not None:
            # RPC servers serve one program at a time: use what they had free before the engine started.
            settings = replace(settings, rpc_workers="")
            workers = [device for device in choice.memory.devices if device.is_remote]
        capacity = await asyncio.to_thread(lambda: query_capacity(settings, self.staging_memory()))
        memory = capacity.memory
        if self.connection.status.state is EngineState.READY:
            memory = with_freed_memory(memory, self.memory_uses)
        return replace(capacity, memory=replace(memory, devices=(*memory.devices, *workers)))

    async def inspect(self) -> tuple[ReadyEngine, FindingKey] | None:
        """Query a ready engine. Return None if the model's files have changed since they were chosen."""
        choice = self.choice
        assert choice is not None
        if await asyncio.to_thread(choice.model_changed):
            return None
        engine, generation = await self.connection.ready(), self.connection.generation
        facts = await engine.facts()
        ready = ReadyEngine(
            engine=engine.with_projector(choice.projector, facts.media_marker) if facts.has_vision else engine,
            generation=generation,
            slot_path=self._slot_path,
            fingerprint=choice.fingerprint,
            context_size=facts.context_size,
            kv_bytes_per_token=kv_bytes_per_token(choice.facts.kv, choice.plan.kv_type, choice.plan.kv_type),
            kv_fixed_bytes=kv_fixed_bytes(choice.facts.kv, facts.context_size, choice.plan.kv_type),
            finding=RestoreFinding(promised_strategy(choice.facts, swa_full=choice.demand.swa_full), proved=False),
            window=choice.facts.kv.window,
            has_vision=facts.has_vision,
            has_tools=facts.has_tools,
            slots=tuple(range(choice.plan.slots)),
            model_name=display_name(choice.facts.path),
            max_context=choice.max_context.tokens if choice.context.tokens < choice.max_context.tokens else 0,
        )
        return ready, choice.finding_key

    async def close(self) -> None:
        await self.connection.close()
        await self._limit_updates.wait_until_idle()


def server_key(paths: Paths) -> SecretStore:
    return SecretStore("llama-server key", paths.config / "server-key")


class ExternalEngine:
    choice: EngineChoice | None = None  # the server's user has made it
    memory_uses: tuple[MemoryUse, ...] = ()

    def __init__(
        self, slot_path: Path, generations: Iterator[int], key: SecretStore, computers: PairedComputerStore
    ) -> None:
        self.connection = ExternalServer(generations)
        self.server_facts: ServerFacts | None = None
        self.computers = computers
        self.paired_computer: PairedComputer | None = None  # the paired computer that the connection is to
        self._slot_path, self._key = slot_path, key  # the path stands in for an unknown slot folder, and stays empty
        self._process: RunningServer | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def vision_error(self) -> VisionUnsupported:
        return VisionUnsupported(
            _("The server’s model"),
            _("The server was started without a vision file (--mmproj)."),
            _("Restart it with --mmproj, or attach the text from the image."),
        )

    async def prepare(self, settings: Settings, *, needs_vision: bool, tokens: int) -> Callable[[], Awaitable[None]]:
        """Return the function that connects to the server in the settings. Raises BadAddress.

        The server's user has decided on its context and projector, so `needs_vision` and `tokens` have no effect.
        """
        url = parse_address(settings.engine_url or "")
        self.paired_computer = None  # its key may have changed
        self.paired_computer = await self._paired_computer(settings)
        if self.paired_computer is not None:
            return partial(self.connection.connect, replace(self.paired_computer, url=url))
        stored = await asyncio.to_thread(self._key.load)  # may ask the user to unlock a keyring
        return partial(self.connection.connect, ServerAddress(url, stored[0] if stored else ""))

    async def is_paired(self, settings: Settings) -> bool:
        """True if the server in the settings is a paired computer, which keeps the memory of the chats."""
        return await self._paired_computer(settings) is not None

    async def _paired_computer(self, settings: Settings) -> PairedComputer | None:
        if not settings.engine_url:
            return None
        if self.paired_computer is not None and self.paired_computer.url == settings.engine_url:
            return self.paired_computer
        computer = await asyncio.to_thread(self.computers.load)
        return computer if computer is not None and computer.url == settings.engine_url else None

    async def inspect(self) -> tuple[ReadyEngine, FindingKey | None]:
        """Query the server. The finding key is None if the server's KV caches cannot be saved. Raises EngineError."""
        engine, generation = await self.connection.ready(), self.connection.generation
        self.server_facts = facts = await engine.facts()
        self._process = await asyncio.to_thread(find_server, engine.base_url)
        slots: tuple[SlotState, ...] = ()
        with contextlib.suppress(EngineRefused):  # server runs with --no-slots
            slots = parse_slots(await engine.get("/slots"))
        number, is_free = choose_slot(slots)
        if facts.has_vision:  # the fingerprint covers the server's arguments, with the projector
            engine = engine.with_projector("", facts.media_marker)
        models: tuple[str, ...] = ()
        if self.paired_computer is not None:
            number, models = 0, await engine.models()
            engine = engine.with_model(models[0] if models else "")
        numbers = range(min(max(1, facts.total_slots), _MAX_SLOTS)) if self.paired_computer else (number,)
        ready = ReadyEngine(
            engine.for_slot(number),
            generation,
            self._slot_path,
            Fingerprint(facts.model_path, "", "", "", 0, ""),
            facts.context_size,
            0.0,
            RestoreFinding(Strategy.NONE, proved=True, reason=Reason(ReasonCode.OUT_OF_REACH)),
            has_vision=facts.has_vision,
            has_tools=facts.has_tools,
            slots=tuple(numbers),
            model_name=models[0] if models else display_name(Path(facts.model_path)) if facts.model_path else "",
            other_models=models[1:],
            keeps_memory=self.paired_computer is not None,
        )
        if self._process is None or self.paired_computer is not None:
            return ready, None
        savable = await asyncio.to_thread(with_state_support, ready, self._process, facts, is_free=is_free)
        return (savable, FindingKey(savable.fingerprint, facts.build)) if savable else (ready, None)


def choose_slot(slots: Sequence[SlotState]) -> tuple[int, bool]:
    """Return the slot to use, and True if it is free.

    This is the last free slot, because other programs tend to use the first ones, or the last slot if none is free.
    """
    free = [number for number, slot in enumerate(slots) if not slot.busy and not slot.tokens]
    return (free[-1], True) if free else (max(0, len(slots) - 1), False)


def with_state_support(
    ready: ReadyEngine, process: RunningServer, facts: ServerFacts, *, is_free: bool
) -> ReadyEngine | None:
    """Return the engine with the data needed to save its KV caches; None if the data cannot be read. Blocks."""
    folder = reachable_slot_folder(process)
    if folder is None:
        return None
    disk.remove_stale_engine_files(folder)  # left by a killed kvchat
    model = process.folder / facts.model_path
    try:
        gguf, identity = read_facts(model), model_identity(model)
    except KvchatError:
        return None
    type_k = process.option_value("-ctk", "--cache-type-k") or "f16"
    type_v = process.option_value("-ctv", "--cache-type-v") or "f16"
    # Any argument may change what a state means; leave out only those known to be harmless.
    started_with = arguments.state_arguments(process.arguments, external=True)
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
    promised = promised_strategy(gguf, swa_full=FULL_WINDOW_OPTION in process.arguments)
    return replace(
        ready,
        slot_path=folder,
        fingerprint=fingerprint,
        kv_bytes_per_token=kv_bytes_per_token(gguf.kv, type_k, type_v),
        kv_fixed_bytes=kv_fixed_bytes(gguf.kv, ready.context_size, type_k),
        window=gguf.kv.window,
        finding=RestoreFinding(promised, proved=False, reason=None if is_free else Reason(ReasonCode.IN_USE)),
    )
