"""What a model needs of the GPUs and of the computer's memory, estimated before the load. Sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvchat.engine.running.plan import BATCH_SIZE, CONTEXT_CHECKPOINTS
from kvchat.library.gguf.facts import GgufFacts
from kvchat.library.gguf.kv_cache import kv_estimate, layer_bytes, padded
from kvchat.library.memory.limits import LoadLimit
from kvchat.library.memory.machine import MemoryFacts
from kvchat.words.language import _, listed
from kvchat.words.wording import size as size_in_words

COMPUTER = "memory"  # how a bar calls the computer's own memory
ENGINE_BYTES = 128 * 1024 * 1024  # the engine's program, its HTTP threads and small buffers
MARGIN_SHARE = 0.10  # of free memory, left for everything else
MARGIN_LEAST = 256 * 1024 * 1024  # bytes


def margin(free: int) -> int:
    return min(free, round(max(MARGIN_LEAST, MARGIN_SHARE * free)))


def spendable(free: int) -> int:
    return free - margin(free)


@dataclass(frozen=True)
class MemoryBar:
    """One place's memory. Without `measured` the parts are estimates from before the load."""

    place: str  # a GPU's name, or COMPUTER
    free: int  # before the load
    margin: int  # of that, what kvchat never plans with
    weights: int
    kv: int
    compute: int
    other: int  # the engine itself, a projector, and copies of its state that it keeps to go back to
    measured: bool = False
    staging: int = 0  # of what is left then, what the store may take at most to keep chats ready

    @property
    def needed(self) -> int:
        return self.weights + self.kv + self.compute + self.other

    @property
    def unused(self) -> int:
        """Memory left by the model, staging and the margin."""
        return max(0, self.free - self.margin - self.needed - self.staging)

    @property
    def in_words(self) -> str:
        parts = (
            (self.weights, _("weights")),
            (self.kv, _("KV cache")),
            (self.compute, _("buffers")),
            (self.other, _("engine")),
        )
        taken = listed(f"{size_in_words(size)} {what}" for size, what in parts if size)
        left = ((self.staging, _("for staging")), (self.unused, _("unused")), (self.margin, _("left alone")))
        rest = listed(f"{size_in_words(size)} {what}" for size, what in left if size)
        return _("{taken}; {rest}, of {free} free", taken=taken, rest=rest, free=size_in_words(self.free))

    @property
    def fits(self) -> bool:
        return self.needed <= self.free - self.margin


def given_back(memory: MemoryFacts, bars: tuple[MemoryBar, ...]) -> MemoryFacts:
    """Return the memory there will be once the model of these bars has gone.

    Weights in the computer's memory are pages of their file, which count as free already.
    """
    taken = {bar.place: bar.needed for bar in bars}
    host = sum(bar.needed - bar.weights for bar in bars if bar.place == COMPUTER)
    devices = tuple(replace(device, free=device.free + taken.get(device.name, 0)) for device in memory.devices)
    return replace(memory, available=memory.available + host, devices=devices)


@dataclass(frozen=True)
class Demand:
    """A model as it is to be run: everything its need depends on but the context size and the memory there is."""

    facts: GgufFacts
    kv_type: str = "f16"
    swa_full: bool = False
    projector: int = 0  # bytes of the projector that gives it sight
    slots: int = 1  # chats side by side, which share the context
    limit: LoadLimit | None = None  # what a load taught that ran out of memory

    def bars(self, tokens: int, memory: MemoryFacts, *, on_gpu: bool = True) -> tuple[MemoryBar, ...]:
        """Return one bar for each GPU, and last the one of the computer's memory. `on_gpu`: the GPUs may be used.

        An estimate: where all of it does not fit on the GPUs, llama.cpp's `--fit` decides what stays beside them, a
        mixture's experts first, then whole layers with their KV cache. It spreads layers over GPUs by their free
        memory: each gets that share, and the compute buffer whole. The token embedding is never on a GPU.
        Raises ValueError for an unknown KV type.
        """
        weights = self.facts.weights
        kv = sum(
            layer_bytes(self.facts.kv, tokens, self.kv_type, self.kv_type, swa_full=self.swa_full, slots=self.slots)
        )
        compute, other = self._compute(tokens), ENGINE_BYTES + self._checkpoints(tokens)
        layers = sum(weights.layers) + weights.output
        movable = layers + (weights.embedding if weights.output_is_embedding else 0) + kv
        room = sum(spendable(device.free) - compute for device in memory.devices) - self.projector
        if memory.is_shared:
            room = movable
        if not memory.devices or not on_gpu or room <= 0:
            parts = layers + weights.embedding, kv, compute, other + self.projector
            gpus = [MemoryBar(device.name, device.free, margin(device.free), 0, 0, 0, 0) for device in memory.devices]
            return (*gpus, self._computer_bar(memory, *parts))
        over = max(0, movable - room)
        experts = min(over, sum(weights.experts))
        share = (over - experts) / max(1, movable - experts)
        kv_beside = round(kv * share)
        weights_beside = over - kv_beside
        found = []
        for device in memory.devices:
            part = device.free / memory.device_free
            on_device = round((movable - kv - weights_beside) * part), round((kv - kv_beside) * part)
            projector = round(self.projector * part)
            found.append(MemoryBar(device.name, device.free, margin(device.free), *on_device, compute, projector))
        beside = weights.embedding + weights_beside, kv_beside, self._inputs(tokens), other
        return (*found, self._computer_bar(memory, *beside))

    def _computer_bar(self, memory: MemoryFacts, weights: int, kv: int, compute: int, other: int) -> MemoryBar:
        free, kept = memory.available, margin(memory.available)
        staging = memory.staging_beside(weights + kv + compute + other, kept)
        return MemoryBar(COMPUTER, free, kept, weights, kv, compute, other, staging=staging)

    def _compute(self, tokens: int) -> int:
        """Estimate llama.cpp's compute buffer: room for a micro-batch inside a layer (measured on b11434, rounded up).

        Builds of the year before keep the logits of a whole micro-batch as well: the margin has room for them.
        """
        facts = self.facts
        activations = 5 * facts.embedding_length + 3 * facts.inner_length + 2 * facts.heads * facts.key_length
        size = 4 * BATCH_SIZE * activations
        if any(layer.keys for layer in facts.kv.layers):
            size += BATCH_SIZE * 2 * padded(tokens)  # f16 mask
        return size

    def _inputs(self, tokens: int) -> int:
        """Estimate what feeds a GPU: mask and embeddings of a micro-batch, in the computer's memory (measured: Vulkan).

        Layers beside the GPU add next to nothing: it computes their prefill too, and decoding needs one row.
        """
        return BATCH_SIZE * 4 * (padded(tokens) + 2 * self.facts.embedding_length)

    def _checkpoints(self, tokens: int) -> int:
        """Copies of the state that the engine keeps of models that cannot be cut back (server-context.cpp)."""
        fixed = kv_estimate(self.facts.kv, tokens, self.kv_type, self.kv_type).fixed
        return 0 if self.swa_full else fixed * CONTEXT_CHECKPOINTS * self.slots
