"""Choice of the engine, model and context length from the settings, and the fingerprint for its save points."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvchat.engine.api.errors import EngineFailed, EngineFailure, EngineUnusable, FailureKind
from kvchat.engine.discovery import arguments
from kvchat.engine.discovery.engines import EngineLocation, EngineProbe, list_devices, usable_engine
from kvchat.engine.process.plan import FULL_WINDOW_OPTION, LaunchPlan
from kvchat.errors import KvchatError
from kvchat.kvstore.memory_files import NO_STAGING_MEMORY, StagingMemory
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.library.gguf.facts import FileStamps, GgufFacts, file_identity, file_stamps, model_identity, read_facts
from kvchat.library.gguf.kv_cache import kv_bytes
from kvchat.library.gguf.parser import ModelFileMissing
from kvchat.library.memory.context_size import ContextChoice, ContextChooser, slots_for
from kvchat.library.memory.demand import (
    DeviceMemory,
    LoadLimit,
    LoadLimits,
    MemoryFacts,
    ModelDemand,
    available_memory,
    limit_key,
)
from kvchat.library.memory.verdict import Judgement, judge
from kvchat.library.model_files import name_from_path, projector_beside
from kvchat.session.restore_support import FindingKey, Strategy
from kvchat.settings import Settings
from kvchat.system.files import file_size
from kvchat.text.language import _

# Default number of slots: for the window alone, and with the API server.
# An idle chat in another slot slows every reply, because decoding scans its cells: with SmolLM2 on a CPU (b11434), a
# reply takes 1.04 times as long with 1K idle tokens, 1.06 with 4K and 1.24 with 10K. Restoring takes less time.
WINDOW_SLOTS, API_SERVER_SLOTS = 1, 4

_PROJECTOR_OPTIONS = {"-mm", "--mmproj", "-mmu", "--mmproj-url"}  # user arguments that load a projector


class VisionUnsupported(KvchatError):
    def __init__(self, model: str, reason: str = "", advice: str = "") -> None:
        super().__init__(
            _("{model} does not support images", model=model),
            reason or _("The model’s vision file (“mmproj” in its name) is not in the model’s folder."),
            advice
            or _("Choose a model that supports images. If this one does, download it again to get its vision file."),
        )


def find_projector(model: Path, extra: Sequence[str]) -> Path | None:
    """Return the model's projector, or None if the user's extra arguments load one. Raises VisionUnsupported."""
    if not _PROJECTOR_OPTIONS.isdisjoint(extra):
        return None
    projector = projector_beside(model)
    if projector is None:
        raise VisionUnsupported(name_from_path(model))
    return projector


class NoModel(KvchatError):
    def __init__(self) -> None:
        super().__init__(_("No model is chosen yet"), "", _("Choose a GGUF file, or download the starter model."))


class ModelMissing(KvchatError):
    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            _("This chat’s model, {stem}, is missing", stem=Path(path).stem),
            _("{path} does not exist, or its disk is not connected.", path=path),
            _("Choose another model for this chat."),
        )


def start_failure(error: KvchatError) -> EngineFailure:
    if isinstance(error, EngineFailed):
        return error.failure
    kind = FailureKind.NOT_FOUND if isinstance(error, EngineUnusable) else FailureKind.BAD_MODEL
    if isinstance(error, ModelFileMissing):
        kind = FailureKind.MODEL_MISSING
    return EngineFailure(kind, error.title, error.detail, error.advice)


@dataclass(frozen=True)
class EngineChoice:
    location: EngineLocation
    plan: LaunchPlan
    demand: ModelDemand
    context: ContextChoice  # allocated at the start
    max_context: ContextChoice  # maximum as chats grow
    fingerprint: Fingerprint
    model_stamp: FileStamps  # of the model's files when the fingerprint was taken
    build: str  # see `EngineProbe.identity`
    memory: MemoryFacts
    limit_key: str
    projector: str = ""  # identity of the projector's file

    @property
    def facts(self) -> GgufFacts:
        return self.demand.facts

    def kv_bytes(self, tokens: int) -> int:
        return kv_bytes(self.facts.kv, tokens, self.plan.kv_type)

    def model_changed(self) -> bool:
        """Return True if the model's files were replaced after this choice was made. Reads the disk."""
        return file_stamps(self.facts.parts) != self.model_stamp

    @property
    def finding_key(self) -> FindingKey:
        """The key of the engine's stored restore test result. It includes the projector, which may affect restoring."""
        if self.plan.projector is None:
            return FindingKey(self.fingerprint, self.build)
        options = f"{self.fingerprint.options} with a projector".strip()
        return FindingKey(replace(self.fingerprint, options=options), self.build)

    def smaller_choices(self) -> tuple[EngineChoice, ...]:
        """Return choices with less context, to be tried in order if loading runs out of memory."""
        choices = []
        for context in ContextChooser(self.demand, self.memory).smaller_choices(self.context):
            fingerprint = replace(self.fingerprint, rope=rope_factors(self.facts, context.tokens))
            plan = replace(
                self.plan, context_size=context.tokens, fit_target=context.fit_target, without_gpu=context.without_gpu
            )
            choices.append(replace(self, plan=plan, context=context, max_context=context, fingerprint=fingerprint))
        return tuple(choices)

    def larger_context(self, tokens: int, memory: MemoryFacts, limit: LoadLimit | None) -> ContextChoice | None:
        """Return the next context size above `tokens` that fits `memory` and `limit`, or None."""
        return ContextChooser(replace(self.demand, limit=limit), memory).larger_choice(tokens)


def choose_engine(
    settings: Settings,
    slot_path: Path,
    limits: LoadLimits | None = None,
    *,
    needs_vision: bool = False,
    initial_tokens: int = 0,
    staged: StagingMemory = NO_STAGING_MEMORY,
) -> EngineChoice:
    """Decide how to start an engine from the model's header and the engine's devices. Blocks. Raises KvchatError.

    `needs_vision` loads the model's projector. `initial_tokens` is the context to allocate at first, if it fits.
    `staged` is the memory that the store uses for slot files.
    """
    if not settings.model_path:
        raise NoModel
    model = Path(settings.model_path)
    facts = read_facts(model)
    stamp = file_stamps(facts.parts)
    engine = usable_engine(settings.engine_path)
    extra, workers = user_arguments(settings, engine)
    projector = find_projector(model, extra) if needs_vision else None
    projector_bytes, projector_name = 0, ""
    if projector is not None:
        try:
            projector_bytes, projector_name = projector.stat().st_size, file_identity(projector)
        except OSError as error:
            reason = error.strerror or error
            why = _("Its vision file, {name}, cannot be read: {reason}.", name=projector.name, reason=reason)
            raise VisionUnsupported(_("This model"), why, _("Check the permissions of the file.")) from error
    memory, identity = memory_for(engine.location, workers, staged), model_identity(model)
    loaded = (
        f"{identity} with {projector_name}" if projector else identity
    )  # the log counts the projector's buffers among the model's
    key = limit_key(loaded, facts.size, engine.identity, memory.device_kind)
    limit = limits.find(key) if limits else None
    swa_full = FULL_WINDOW_OPTION in extra  # the user keeps sliding windows at full length
    demand = ModelDemand(facts, settings.kv_type, swa_full, projector_bytes, limit=limit)
    if engine.options is not None and engine.options.find("--kv-unified") is None:
        slots = 1
    else:
        slots = settings.slots or slots_for(demand, memory, API_SERVER_SLOTS if settings.api_server else WINDOW_SLOTS)
    demand = replace(demand, slots=slots)
    chooser = ContextChooser(demand, memory)
    max_context = chooser.choose(settings.context_size)
    context = chooser.initial_choice(max_context, initial_tokens)
    plan = LaunchPlan(
        model=model,
        context_size=context.tokens,
        slot_path=slot_path,
        kv_type=settings.kv_type,
        fit_target=context.fit_target,
        without_gpu=context.without_gpu,
        projector=projector,
        slots=slots,
        rpc_workers=workers,
        extra_arguments=extra,
        known_options=engine.options,
    )
    fingerprint = Fingerprint(
        model=identity,
        kv_type_k=plan.kv_type,
        kv_type_v=plan.kv_type,
        flash_attention="auto",
        streams=1,
        rope=rope_factors(facts, max_context.tokens),
        options=with_file_stamps(arguments.state_arguments(extra), Path()),
        build="" if promised_strategy(facts, swa_full=swa_full) is Strategy.PLAIN else engine.identity,
    )
    build = engine.identity
    return EngineChoice(
        engine.location, plan, demand, context, max_context, fingerprint, stamp, build, memory, key, projector_name
    )


def promised_strategy(facts: GgufFacts, *, swa_full: bool) -> Strategy:
    if facts.kv.is_recurrent:  # recurrent state cannot be completed, with or without a window
        return Strategy.SETTLE
    if facts.kv.window:
        return Strategy.FULL_WINDOW if swa_full else Strategy.COMPLETE
    return Strategy.PLAIN


def with_file_stamps(state_arguments: str, folder: Path) -> str:
    """Append the sizes and times of the files named in the arguments, so that replacing one changes the fingerprint.

    `folder`: the engine's working directory. Reads the disk.
    """
    files = [folder / name for name in arguments.possible_file_names(state_arguments)]
    stamps = [f"{size}@{changed}" for size, changed, _ in file_stamps([file for file in files if file.is_file()])]
    return " ".join((state_arguments, *stamps))


def user_arguments(settings: Settings, engine: EngineProbe) -> tuple[tuple[str, ...], tuple[str, ...]]:
    extra = arguments.parse_arguments(settings.engine_arguments)
    workers = arguments.parse_workers(settings.rpc_workers)
    if extra and engine.location.path is None:
        raise arguments.BadArguments(_("The embedded engine takes no extra arguments; only llama-server does."))
    if workers and (engine.options is None or engine.options.find("--rpc") is None):
        raise arguments.BadWorkers(_("This engine does not support RPC servers."))
    arguments.check_arguments(extra, engine.options)
    return extra, workers


def rope_factors(facts: GgufFacts, context_size: int) -> str:
    """Return which RoPE factors llama.cpp uses at this context size: "short", "long" or, if it has no choice, ""."""
    if not facts.original_context:
        return ""
    return "long" if context_size > facts.original_context else "short"


@dataclass(frozen=True)
class Capacity:
    memory: MemoryFacts
    build: str = ""  # see `EngineProbe.identity`; empty if unavailable


@dataclass(frozen=True)
class ModelJudge:
    """Judges whether models fit this computer. Call it off the event loop: it may read samples of the weights."""

    settings: Settings
    capacity: Capacity
    limits: LoadLimits

    def __call__(self, facts: GgufFacts) -> Judgement:
        settings, memory, build = self.settings, self.capacity.memory, self.capacity.build
        projector, limit = projector_beside(facts.path), None
        if self.limits.has_limit(facts.size, build, memory.device_kind):  # identifying the model takes far longer
            with contextlib.suppress(KvchatError):
                identity = model_identity(facts.path)
                limit = self.limits.find(limit_key(identity, facts.size, build, memory.device_kind))
        swa_full = FULL_WINDOW_OPTION in settings.engine_arguments.split()
        demand = ModelDemand(facts, settings.kv_type, swa_full, file_size(projector) if projector else 0, limit=limit)
        return judge(demand, memory, settings.context_size)


def query_capacity(settings: Settings, staged: StagingMemory = NO_STAGING_MEMORY) -> Capacity:
    """Query the configured engine for its devices and their memory. Blocks.

    If the query fails, return the computer's memory only.
    """
    try:
        engine = usable_engine(settings.engine_path)
        workers = arguments.parse_workers(settings.rpc_workers)
        return Capacity(memory_for(engine.location, workers, staged), engine.identity)
    except KvchatError:
        return Capacity(memory_for(EngineLocation(), (), staged))


def memory_for(
    location: EngineLocation, workers: Sequence[str] = (), staged: StagingMemory = NO_STAGING_MEMORY
) -> MemoryFacts:
    """Return the memory of the computer, its GPUs and the RPC servers. Raises EngineUnusable and EngineFailed."""
    devices = list_devices(location, workers) if location.path is not None else ()  # the embedded engine is CPU-only
    gpus = [DeviceMemory(device.name, device.free_bytes) for device in devices if device.free_bytes]
    return available_memory(gpus).with_staging(staged.reclaimable, staged.capacity)
