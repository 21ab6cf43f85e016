"""Which part of a model goes to the GPUs and which stays in the computer's memory, and what each place needs.

As llama.cpp places it (llama_model_base::load_tensors): the last layers and the output go to the GPUs, their KV cache
with them; the token embedding never does.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvchat.engine.running.plan import BATCH_SIZE, CONTEXT_CHECKPOINTS
from kvchat.library.gguf.facts import GgufFacts
from kvchat.library.gguf.kv_cache import kv_estimate, layer_bytes, padded
from kvchat.library.memory.corrections import NOTHING_LEARNED, Corrections
from kvchat.words.language import _

ENGINE_BYTES = 128 * 1024 * 1024  # the engine's program, its HTTP threads and small buffers


@dataclass(frozen=True)
class Placement:
    """What goes to the GPUs. Layers are counted as llama.cpp does, with the output as one more."""

    gpu_layers: int  # the last so many layers
    all_layers: int
    cpu_experts: int = 0  # of the first so many layers the mixture's experts stay in the computer's memory all the same

    @property
    def whole(self) -> bool:
        """Whether everything that can be is on the GPUs."""
        return self.gpu_layers == self.all_layers and self.cpu_experts == 0

    def in_words(self, where: str) -> str:
        """What of the model is beside the computer's memory, as part of a sentence; `where`: "the GPU"."""
        if self.gpu_layers == 0:
            return _("nothing of the model fits on {where}", where=where)
        if self.gpu_layers < self.all_layers:
            return _(
                "{gpu_layers} of its {all_layers} layers fit on {where}",
                gpu_layers=self.gpu_layers,
                all_layers=self.all_layers,
                where=where,
            )
        return _("the experts of {cpu_experts} layers do not fit on {where}", cpu_experts=self.cpu_experts, where=where)


@dataclass(frozen=True)
class Need:
    """Memory needed in one place, in bytes."""

    weights: int = 0
    kv: int = 0
    compute: int = 0
    other: int = 0  # the engine itself, a projector, and copies of its state that it keeps to go back to

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.compute + self.other

    def __add__(self, more: Need) -> Need:
        return Need(
            self.weights + more.weights, self.kv + more.kv, self.compute + more.compute, self.other + more.other
        )


@dataclass(frozen=True)
class Needs:
    """What a model needs on the GPUs together and in the computer's memory."""

    gpu: Need
    host: Need


@dataclass(frozen=True)
class Demand:
    """A model as it is to be run: everything its need depends on but the context size and the place."""

    facts: GgufFacts
    kv_type: str = "f16"
    swa_full: bool = False
    corrections: Corrections = NOTHING_LEARNED
    projector: int = 0  # bytes of the projector that gives it sight
    slots: int = 1  # chats side by side, which share the context

    def needs(self, tokens: int, placement: Placement) -> Needs:
        """What it needs with a context of `tokens`. Raises ValueError for an unknown KV type."""
        weights, learned = self.facts.weights, self.corrections
        kv = layer_bytes(self.facts.kv, tokens, self.kv_type, self.kv_type, swa_full=self.swa_full, slots=self.slots)
        start = max(placement.all_layers - placement.gpu_layers, 0)
        gpu_weights = sum(weights.layers[start:]) - sum(weights.experts[start : placement.cpu_experts])
        host_weights = sum(weights.layers) - gpu_weights + weights.embedding
        if placement.gpu_layers:
            gpu_weights += weights.output + (weights.embedding if weights.output_is_embedding else 0)
        else:
            host_weights += weights.output
        compute = self._compute(tokens)
        gpu = Need(
            round(gpu_weights * learned.weights),
            round(sum(kv[start:]) * learned.kv),
            compute if placement.gpu_layers else 0,
            self.projector if placement.gpu_layers else 0,
        )
        host = Need(
            round(host_weights * learned.weights),
            round(sum(kv[:start]) * learned.kv),
            self._inputs(tokens) if placement.gpu_layers else compute,
            ENGINE_BYTES + self._checkpoints(tokens) + (0 if placement.gpu_layers else self.projector),
        )
        return Needs(gpu, host)

    def _compute(self, tokens: int) -> int:
        """llama.cpp's compute buffer: room for a micro-batch inside a layer, or for its logits, whichever is larger.

        The factors are measured on b11434, rounded up. It keeps one row of logits, builds of the year before a whole
        micro-batch of them (measured on Vulkan): counted, until a load has told.
        """
        facts = self.facts
        activations = 5 * facts.embedding_length + 3 * facts.inner_length + 2 * facts.heads * facts.key_length
        size = 4 * BATCH_SIZE * activations
        if any(layer.keys for layer in facts.kv.layers):
            # f16 mask; without flash attention an f32 mask, and the scores of every head
            per_token = 2 if self.corrections.flash_attention else 4 + 4 * facts.heads
            size += BATCH_SIZE * per_token * padded(tokens)
        logits = 4 * BATCH_SIZE * (facts.vocabulary_size + facts.embedding_length)
        return round(max(size, logits) * self.corrections.compute)

    def _inputs(self, tokens: int) -> int:
        """What a GPU is fed from: mask and embeddings of a micro-batch, in the computer's memory (measured on Vulkan).

        Layers beside the GPU add next to nothing: it computes their prefill too, and decoding needs one row.
        """
        return BATCH_SIZE * 4 * (padded(tokens) + 2 * self.facts.embedding_length)

    def _checkpoints(self, tokens: int) -> int:
        """Copies of the state that the engine keeps of models that cannot be cut back (server-context.cpp)."""
        fixed = kv_estimate(self.facts.kv, tokens, self.kv_type, self.kv_type).fixed
        return 0 if self.swa_full else fixed * CONTEXT_CHECKPOINTS * self.slots
