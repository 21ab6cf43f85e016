"""What this computer offers a model, and whether a model on its disk fits: by what earlier loads of it taught, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.engine.finding import extra_arguments
from kvchat.engine.finding.discovery import EngineLocation, EngineNotFound, list_devices
from kvchat.engine.finding.probe import build_identity, usable_engine
from kvchat.engine.speaking.errors import EngineFailed, worker_gone
from kvchat.errors import KvchatError
from kvchat.kvstore.memory_files import NOTHING_STAGED, Staged
from kvchat.library.gguf.facts import GgufFacts
from kvchat.library.gguf.identity import model_identity
from kvchat.library.local.files import projector_of
from kvchat.library.memory.corrections import NOTHING_LEARNED, Circumstances, CorrectionBook, Corrections
from kvchat.library.memory.machine import DeviceMemory, MemoryFacts, available_memory
from kvchat.library.memory.placement import Demand
from kvchat.library.memory.proposals import FULL_WINDOW
from kvchat.library.memory.verdict import Judgement, judge
from kvchat.settings import Settings
from kvchat.system.files import size_of
from kvchat.words.language import _


@dataclass(frozen=True)
class Capacity:
    """The memory that the engine in the settings can use, and which build it is."""

    memory: MemoryFacts
    build: str = ""  # see probe.build_identity; empty where the engine cannot be asked


@dataclass(frozen=True)
class ModelJudge:
    """Judges models as they would be loaded here. Reads the book and, of models met before, samples of the weights."""

    settings: Settings
    capacity: Capacity
    book: CorrectionBook

    def __call__(self, facts: GgufFacts) -> Judgement:
        """Whether the model fits."""
        settings, projector = self.settings, projector_of(facts.path)
        swa_full = FULL_WINDOW in settings.engine_arguments.split()
        weighed = size_of(projector) if projector else 0
        demand = Demand(facts, settings.kv_type, swa_full, self._learned(facts), weighed)
        return judge(demand, self.capacity.memory, settings.context_size)

    def _learned(self, facts: GgufFacts) -> Corrections:
        build, device = self.capacity.build, self.capacity.memory.device_kind
        if not self.book.knows(facts.size, build, device):  # telling which model it is takes far longer
            return NOTHING_LEARNED
        try:
            return self.book.find(Circumstances(model_identity(facts.path), facts.size, build, device))
        except KvchatError:
            return NOTHING_LEARNED


def look_at_capacity(settings: Settings, staged: Staged = NOTHING_STAGED) -> Capacity:
    """Ask the engine in the settings; the computer's memory alone where it cannot be asked. Blocks for a moment.

    `staged`: what the store has in memory.
    """
    try:
        location, asked = usable_engine(settings.engine_path)
        workers = extra_arguments.parse_workers(settings.rpc_workers)
        return Capacity(memory_for(location, workers, staged), build_identity(location, asked))
    except KvchatError:
        return Capacity(_memory(staged))


def memory_for(location: EngineLocation, workers: Sequence[str] = (), staged: Staged = NOTHING_STAGED) -> MemoryFacts:
    """The memory this engine can use: the computer's, and that of the GPUs it and its workers see.

    What is `staged` in the computer's can be had, as far as it is disposable.
    Raises EngineNotFound, and where it is with its workers that the engine does not run EngineFailed or BadWorkers.
    """
    if location.path is None:  # the embedded engine is built for the processor alone
        return _memory(staged)
    try:
        devices = list_devices(location, workers)
    except EngineNotFound as error:
        if not workers:
            raise
        if reason := worker_gone(error.detail):
            raise EngineFailed(reason) from error
        said = next((line.strip() for line in error.detail.splitlines() if line.strip()), "")
        raise extra_arguments.BadWorkers(_("The engine does not run with them: {said}", said=said)) from error
    return _memory(staged, [DeviceMemory(d.name, d.free_bytes) for d in devices if d.free_bytes])


def _memory(staged: Staged, devices: Sequence[DeviceMemory] = ()) -> MemoryFacts:
    return available_memory(devices).with_staging(staged.disposable, staged.place)
