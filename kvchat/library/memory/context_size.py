"""Choice of the context size, with the reason for the user. It is the trained size if memory allows.

If a model does not fit on the GPUs, the engine's `--fit` decides which layers they hold. `ContextChoice.with_placement`
adds its decision, read from the engine's log. Sizes are in bytes, contexts in tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from kvchat.engine.process.log import Placement
from kvchat.library.memory.demand import MemoryFacts, MemoryUse, ModelDemand, margin_bytes, usable_bytes
from kvchat.text.formatting import format_day, format_size
from kvchat.text.language import N_, _, capitalize_first, end_sentence, format_number, join_sentences

CONTEXT_STEP = 256  # tokens; llama.cpp rounds context sizes to it
MIN_CONTEXT = 2048  # tokens; less is too short for a chat
SUFFICIENT_GPU_CONTEXT = 16_384  # tokens; with this much on the GPU, slower main memory is not worth using
MIN_INITIAL_CONTEXT = 8192  # tokens
CHEAP_KV_BYTES = 512 * 1024 * 1024  # size of a KV cache that is allocated within about a second
MIN_GROWTH_DIVISOR = 8  # a context grows by at least an eighth


@dataclass(frozen=True)
class _Fit:
    """Memory needs of a model with one context size, compared with the free memory."""

    memory_uses: tuple[MemoryUse, ...]
    fits: bool
    is_on_gpu: bool  # at least in part
    is_whole_on_gpu: bool  # all but the token embedding, and it fits
    needed: int  # bytes on the GPUs if the whole model is there, otherwise in all memory
    free: int  # bytes, in the same memory


@dataclass(frozen=True)
class ContextChoice:
    tokens: int
    reason: str  # a sentence
    memory_note: str  # a sentence on the memory that the model needs
    kv_bytes: int  # estimated size of the KV cache
    needed: int  # estimated memory for everything: weights, KV cache, buffers
    free: int  # compared with `needed`
    fits: bool
    memory_uses: tuple[MemoryUse, ...]
    offload_note: str = ""  # a sentence if part of the model runs off the GPU
    fit_target: int | None = None  # bytes that `--fit` leaves free on each GPU; None without a GPU
    without_gpu: bool = False  # no GPU may be used, because its memory ran out
    warning: str = ""  # a sentence if the user's own choice is unwise
    by_user: bool = False  # the user chose the size

    @property
    def full_explanation(self) -> str:
        return join_sentences(self.reason, self.offload_note, self.memory_note)

    def with_placement(self, placement: Placement | None, device_names: str) -> ContextChoice:
        """Return the choice with a note on how many layers the engine put on the GPUs.

        `device_names` is the text that names the GPUs. If `placement` is None, the note stays as it is.
        """
        if placement is None:
            return self
        return replace(
            self, offload_note="" if placement.is_fully_on_gpu else _placement_sentence(placement, device_names)
        )


def _describe_placement(placement: Placement, device_names: str) -> str:
    layers, all_layers, experts = placement.gpu_layers, placement.all_layers, placement.cpu_experts
    if layers == 0:
        return _("no part of the model fits on {where}", where=device_names)
    if layers < all_layers:
        text = N_("{gpu_layers} of {all_layers} layers fit on {where}")
        return _(text, gpu_layers=layers, all_layers=all_layers, where=device_names)
    return _("the experts of {cpu_experts} layers do not fit on {where}", cpu_experts=experts, where=device_names)


def _placement_sentence(placement: Placement, device_names: str) -> str:
    return capitalize_first(end_sentence(_describe_placement(placement, device_names)))


def slots_for(demand: ModelDemand, memory: MemoryFacts, requested: int) -> int:
    """Return how many chats, at most `requested`, can run in parallel without shortening the context much.

    With full attention, slots need no extra memory. Each slot has its own sliding windows and recurrent state.
    """
    alone = ContextChooser(demand, memory).choose().tokens
    for slots in range(requested, 1, -1):
        beside = ContextChooser(replace(demand, slots=slots), memory).choose()
        if beside.fits and beside.tokens >= alone - alone // MIN_GROWTH_DIVISOR:
            return slots
    return 1


class ContextChooser:
    """Chooses context sizes for a model and the free memory. Raises ValueError for an unknown KV type."""

    def __init__(self, demand: ModelDemand, memory: MemoryFacts) -> None:
        self._demand, self._memory, self._facts = demand, memory, demand.facts
        self._min_tokens = min(MIN_CONTEXT, self._facts.trained_context)
        self._trained_context = max(self._min_tokens, round_down_to_step(self._facts.trained_context))
        limit = demand.limit.tokens if demand.limit else self._trained_context
        self._max_tokens = max(self._min_tokens, min(self._trained_context, limit))
        self._no_gpu_layers = Placement(0, self._facts.block_count + 1)
        self._without_gpu = False  # no GPU may be used, because its memory ran out
        self._fit_cache: dict[tuple[int, bool], _Fit] = {}  # by context size and `_without_gpu`

    def choose(self, requested: int | None = None) -> ContextChoice:
        """Choose the largest context that fits, or accept the requested size, with a warning if it is unwise."""
        if requested is not None:
            return self._user_choice(requested)
        limit, most = self._demand.limit, self._max_tokens
        enough = min(most, SUFFICIENT_GPU_CONTEXT)
        tokens = self._largest_fitting(most, whole_on_gpu=bool(self._memory.devices))
        if self._memory.devices and not (self._fit(tokens).is_whole_on_gpu and tokens >= enough):
            tokens = self._largest_fitting(enough)
        shown, trained = format_number(tokens), format_number(self._facts.trained_context)
        if not self._fit(tokens).fits:
            text = N_(
                "{tokens} tokens: the minimum, but even this may not fit. "
                "With this context, the model needs about {needed}."
            )
            needed, usable = format_size(self._fit(tokens).needed), self._describe_usable(tokens)
            return self._make_choice(tokens, join_sentences(_(text, tokens=shown, needed=needed), usable))
        if tokens >= self._trained_context:
            return self._make_choice(tokens, _("{tokens} tokens: the full context length of this model.", tokens=shown))
        ran_out = ""
        if limit and tokens >= most:
            text = N_("A larger context ran out of memory; kvchat will try it again on {until}.")
            ran_out = _(text, until=format_day(limit.until))
        text = N_("{tokens} tokens: the most that fits in memory; the model supports {trained}.")
        return self._make_choice(tokens, join_sentences(_(text, tokens=shown, trained=trained), ran_out))

    def smaller_choices(self, choice: ContextChoice) -> tuple[ContextChoice, ...]:
        """Return the choices to try if `choice` runs out of memory. Each halves the context.

        At SUFFICIENT_GPU_CONTEXT, a model on a GPU moves to main memory before the context shrinks further.
        """
        steps, tokens = [], choice.tokens
        if self._fit(tokens).is_on_gpu:
            floor = min(SUFFICIENT_GPU_CONTEXT, self._trained_context)
            while tokens > floor:
                tokens = max(floor, round_down_to_step(tokens // 2))
                steps.append(self._reduced_choice(tokens, choice))
            self._without_gpu = True
            steps.append(self._reduced_choice(tokens, choice))
        while tokens > self._min_tokens:
            tokens = max(self._min_tokens, round_down_to_step(tokens // 2))
            steps.append(self._reduced_choice(tokens, choice))
        self._without_gpu = False
        return tuple(steps)

    def initial_choice(self, maximum: ContextChoice, needed: int) -> ContextChoice:
        """Choose how much of the maximum context to allocate at first, for chats of `needed` tokens.

        The engine clears the whole KV cache before it is ready: 8 GB took 17 s on two cores, 1 GB 1.2 s (measured).
        Therefore it starts with 1.5 times the needed size, rounded up to a power of two. The maximum is allocated
        immediately on a GPU, if it is at most CHEAP_KV_BYTES, or if the user chose it.
        """
        size = max(MIN_INITIAL_CONTEXT, 1 << (3 * needed // 2 - 1).bit_length())
        original = self._facts.original_context
        if original and maximum.tokens > original:
            size = max(size, original + CONTEXT_STEP)  # growing beyond it later would change the keys
        if (
            maximum.by_user
            or self._fit(maximum.tokens).is_whole_on_gpu
            or maximum.kv_bytes <= CHEAP_KV_BYTES
            or size >= maximum.tokens
        ):
            return maximum
        starts = N_("{reason} Starts with {size} tokens and grows as needed.")
        return self._make_choice(size, _(starts, reason=maximum.reason, size=format_number(size)))

    def larger_choice(self, tokens: int) -> ContextChoice | None:
        """Choose a larger context to offer when `tokens` are full: at most twice as large, or None.

        Part of the model moves off the GPU only if no larger context fits otherwise.
        """
        most, worthwhile = min(2 * tokens, self._max_tokens), tokens + tokens // MIN_GROWTH_DIVISOR
        was_whole = self._fit(tokens).is_whole_on_gpu
        for whole_on_gpu in (True, False) if was_whole else (False,):
            larger = self._largest_fitting(most, whole_on_gpu)
            fit = self._fit(larger)
            if larger < worthwhile or not (fit.is_whole_on_gpu if whole_on_gpu else fit.fits):
                continue
            text = N_(
                "A context of {larger} tokens needs about {needed}. Once the engine has stopped, {free} is {place}."
            )
            needed, free = format_size(fit.needed), format_size(fit.free)
            need = _(text, larger=format_number(larger), needed=needed, free=free, place=self._place(larger))
            slower = self._offload_note(larger) if was_whole and not fit.is_whole_on_gpu else ""
            return self._make_choice(larger, join_sentences(need, slower))
        return None

    def _user_choice(self, requested: int) -> ContextChoice:
        tokens = max(CONTEXT_STEP, requested)
        reason = _("{tokens} tokens: set by you.", tokens=format_number(tokens))
        warning = ""
        if not self._fit(tokens).fits:
            text = N_("This may not fit: with this context, the model needs about {needed}.")
            needed = format_size(self._fit(tokens).needed)
            warning = join_sentences(_(text, needed=needed), self._describe_usable(tokens))
        elif tokens > self._facts.trained_context:  # b11434 caps the slot at the trained context and wastes the rest
            text = N_(
                "The model was trained for {trained} tokens. Newer engines stop there; older ones "
                "produce poor replies beyond that."
            )
            warning = _(text, trained=format_number(self._facts.trained_context))
        return replace(self._make_choice(tokens, reason), warning=warning, by_user=True)

    def _reduced_choice(self, tokens: int, previous: ContextChoice) -> ContextChoice:
        gpus = self._memory.device_names
        text = N_("{tokens} tokens: not enough memory on {beside}.")
        if tokens < previous.tokens:
            text = N_("{tokens} tokens: not enough memory for {larger} tokens.")
        reason = _(text, tokens=format_number(tokens), larger=format_number(previous.tokens), beside=gpus)
        slower = _placement_sentence(self._no_gpu_layers, gpus) if self._without_gpu else ""
        return replace(self._make_choice(tokens, join_sentences(reason, slower)), offload_note="")

    def _largest_fitting(self, limit: int, whole_on_gpu: bool = False) -> int:
        """Return the largest context up to `limit` that fits, or the minimum if none does."""

        def fits(tokens: int) -> bool:
            fit = self._fit(tokens)
            return fit.is_whole_on_gpu if whole_on_gpu else fit.fits

        if fits(limit):
            return limit
        steps = bisect_left(range(1, limit // CONTEXT_STEP + 1), True, key=lambda step: not fits(step * CONTEXT_STEP))
        return max(self._min_tokens, steps * CONTEXT_STEP)

    def _fit(self, tokens: int) -> _Fit:
        if (tokens, self._without_gpu) in self._fit_cache:
            return self._fit_cache[tokens, self._without_gpu]
        uses = self._demand.memory_uses(tokens, self._memory, on_gpu=not self._without_gpu)
        fits = all(use.fits for use in uses)
        if len(uses) > 1 and self._memory.is_shared:
            fits = sum(use.needed for use in uses) <= usable_bytes(min(use.free for use in uses))
        *gpus, computer = uses
        is_on_gpu = any(use.needed for use in gpus)
        has_part_beside = computer.kv or computer.weights > self._facts.weights.embedding_bytes
        is_whole = is_on_gpu and fits and not has_part_beside
        deciding = gpus if is_whole else uses
        needed, free = sum(use.needed for use in deciding), sum(use.free for use in deciding)
        fit = self._fit_cache[tokens, self._without_gpu] = _Fit(uses, fits, is_on_gpu, is_whole, needed, free)
        return fit

    def _place(self, tokens: int) -> str:
        fit = self._fit(tokens)
        if not fit.is_on_gpu:
            return _("allowed by the system") if self._memory.is_limited else _("free")
        if fit.is_whole_on_gpu:
            return _("free on {beside}", beside=self._memory.device_names)
        return _("free, including {beside}", beside=self._memory.device_names)

    def _offload_note(self, tokens: int) -> str:
        fit = self._fit(tokens)
        if not self._memory.devices or fit.is_whole_on_gpu:
            return ""
        if fit.is_on_gpu:
            return partial_offload_note(self._memory)
        return _placement_sentence(self._no_gpu_layers, self._memory.device_names)

    def _describe_usable(self, tokens: int) -> str:
        free, place = self._fit(tokens).free, self._place(tokens)
        usable = N_("Only {spare} of the {free} {place} can be used.")
        return _(usable, spare=format_size(usable_bytes(free)), free=format_size(free), place=place)

    def _make_choice(self, tokens: int, reason: str) -> ContextChoice:
        fit = self._fit(tokens)
        shared = share = ""
        if self._demand.slots > 1:
            shared = _("Up to {slots} parallel chats share this context.", slots=self._demand.slots)
        if fit.fits:
            text = N_(
                "With this context, the model needs about {needed} of the {free} {place}; {margin} stays reserved."
            )
            needed, free, reserved = map(format_size, (fit.needed, fit.free, margin_bytes(fit.free)))
            share = _(text, needed=needed, free=free, place=self._place(tokens), margin=reserved)
        # Half of kvchat's margin: a slightly low estimate moves no layer off the GPU.
        targets = [margin_bytes(device.free) // 2 for device in self._memory.devices if not self._without_gpu]
        return ContextChoice(
            tokens=tokens,
            reason=join_sentences(reason, shared),
            memory_note=share,
            kv_bytes=sum(use.kv for use in fit.memory_uses),
            needed=fit.needed,
            free=fit.free,
            fits=fit.fits,
            memory_uses=fit.memory_uses,
            offload_note=self._offload_note(tokens),
            fit_target=min(targets, default=None),
            without_gpu=self._without_gpu,
        )


def partial_offload_note(memory: MemoryFacts) -> str:
    return _("Part of the model runs outside {beside}, which is slower.", beside=memory.device_names)


def round_down_to_step(tokens: int) -> int:
    return tokens // CONTEXT_STEP * CONTEXT_STEP
