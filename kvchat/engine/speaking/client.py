"""llama-server client: one request, one typed response."""

from __future__ import annotations

import contextlib
import copy
import json
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvchat.engine.speaking import wire
from kvchat.engine.speaking.errors import EngineError, EngineRefused, Life, NotOurEngine
from kvchat.engine.speaking.pictures import FIRST_ID, PicturePrompts, cannot_show, without_pictures
from kvchat.engine.speaking.transport import CONNECT_S, QUICK_S, Answer, Transport
from kvchat.engine.speaking.wire import (
    ChatChunk,
    ChatMessage,
    Picture,
    PromptProgress,
    Sampling,
    ServerFacts,
    SlotFile,
    Timings,
)
from kvchat.system.concurrency import apart
from kvchat.words.folding import shared_text
from kvchat.words.language import _

MORE = "more"  # added after a growing message to find its end
MANY = 32_768  # bytes of token ids; more are parsed off the window's thread
COUNTED_AT_ONCE = 100_000  # characters
KEPT = 4  # prompts: the turn's, its two boundary probes and one spare
LONGEST_KEPT = 5_000_000  # characters of a prompt; its ids take ten times the bytes
_HEALTH_S = 2.0  # polled, so a slow answer costs nothing
_LONGEST_S = 3600.0  # for a reply in one piece, sent when complete
_SLOT_S = 900.0  # may wait for a busy slot and move many GB on a slow disk


Ids = tuple[int, ...]
Tokenize = Callable[[str, bool], Awaitable[Ids]]


class SlotRows:
    """Counts a slot's leading tokens whose rows are unchanged since the last save or restore.

    An engine never changes a row: it keeps those it took from its cache (`cache_n`) and recomputes the others.
    Until a request has reported that, nothing is known.
    """

    def __init__(self, alone: bool = True) -> None:
        """`alone`: nobody else sends requests to this engine; otherwise nothing is ever known."""
        self.alone = alone
        self.kept = 0

    def count_as_saved(self, tokens: int) -> None:
        """Record that the slot holds `tokens`, just saved or restored."""
        self.kept = tokens if self.alone else 0

    def asked(self) -> int:
        """Record that a request begins or the slot's contents change; return the count known until now."""
        before, self.kept = self.kept, 0
        return before

    def answered(self, before: int, cached: int) -> None:
        """Record how many tokens a request took from the cache; `before`: what `asked` returned."""
        self.kept = min(before, cached)


class PromptTokens:
    """Incremental tokenizing: a prompt that begins like an earlier one is tokenized from there on.

    Special tokens split a text: the parts before and after one are tokenized separately. So a prompt can be cut where
    a message ends, at the model's end-of-text token. The first prompt that can be cut tests whether this holds for the
    model; if not, every prompt is tokenized whole.
    """

    def __init__(self, tokenize: Tokenize) -> None:
        """`tokenize` asks the engine for a text's ids, with or without those that start a prompt."""
        self._tokenize = tokenize
        self._known: deque[tuple[str, Ids]] = deque(maxlen=KEPT)  # prompts
        self.end, self._end_id = "", -1  # the end-of-text token, once known
        self._holds: bool | None = None  # True if prompts can be cut; None: not tried

    async def of(self, text: str, *, grows: bool = False) -> Ids:
        """Return the ids of a prompt. Raises what `tokenize` does.

        If it `grows`, as a draft does, it is not remembered.
        """
        for known, known_ids in self._known:
            if known == text:
                return known_ids
        ids = await self._from_a_known_one(text)
        if ids is None or self._holds is None:
            whole = await self._tokenize(text, True)
            if ids is not None:
                self._holds = ids == whole
            ids = whole
        if not grows and len(text) <= LONGEST_KEPT:
            self._known.append((text, ids))
        return ids

    async def _from_a_known_one(self, text: str) -> Ids | None:
        """Derive the ids from the prompt that shares most; None if none can be cut."""
        if not self.end or self._holds is False or not self._known:
            return None
        known, ids = max(self._known, key=lambda prompt: shared_text(prompt[0], text))
        cut = text.rfind(self.end, 0, shared_text(known, text))
        if cut <= 0:
            return None
        if self._end_id < 0:
            alone = await self._tokenize(self.end, False)
            if len(alone) != 1:
                self._holds = False
                return None
            self._end_id = alone[0]
        if ids.count(self._end_id) != known.count(self.end):
            return None
        place = -1
        for _end in range(text.count(self.end, 0, cut) + 1):
            place = ids.index(self._end_id, place + 1)
        return ids[:place] + await self._tokenize(text[cut:], False)


async def count_until(count: Callable[[str], Awaitable[int]], text: str, most: int) -> tuple[int, bool]:
    """Count a text's tokens; False if the rest beyond `most` was extrapolated."""
    tokens = 0
    for begin in range(0, len(text), COUNTED_AT_ONCE):
        piece = text[begin : begin + COUNTED_AT_ONCE]
        tokens += await count(piece)
        if tokens > most and begin + len(piece) < len(text):
            return tokens * len(text) // (begin + len(piece)), False
    return tokens, True


class LlamaServerClient:
    """HTTP client of a ready llama-server. All methods raise EngineGone or EngineRefused. Close with `aclose`."""

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        hang_guard_s: float = 600.0,
        on_fault: Callable[[EngineError], None] = lambda _: None,
        on_silence: Callable[[], None] = lambda: None,
        alone: bool = True,
    ) -> None:
        """`hang_guard_s`: longest silence within a stream, in seconds; a prefill shows progress after each batch.

        `alone`: nobody else sends requests to this server. `on_fault` gets every request error before the caller does;
        `on_silence` is called now and then while a reply that had begun is silent.
        """
        self.base_url, self.key, self.alone = base_url, key, alone
        self._rows = defaultdict[int, SlotRows](lambda: SlotRows(alone))
        self.slot = 0  # used for every request
        self._template: Mapping[str, bool | str] = {}
        self._pictures: PicturePrompts | None = None
        self._prompts = PromptTokens(self._tokens)
        self._http = Transport(base_url, key, hang_guard_s, on_fault, on_silence)

    @property
    def life(self) -> Life:
        return self._http.life

    def begin_life(self) -> None:
        self._http.life = Life()

    async def aclose(self) -> None:
        await self._http.close()

    async def is_loaded(self, timeout_s: float = _HEALTH_S) -> bool:
        """Query /health; False while loading. Raises EngineGone if nobody listens yet, and NotOurEngine."""
        status = await self._http.knock("/health", timeout_s)
        if status not in (200, 503):
            raise NotOurEngine(_("Another program is using the engine's port"), f"/health says {status}.")
        return status == 200

    async def verify(self) -> ServerFacts:
        """Return the facts of a server that rejects calls without our key and knows ours. Raises NotOurEngine.

        The call without the key goes first, so that a stranger listening there never gets our key.
        """
        if await self._http.knock("/props", CONNECT_S) == 401:
            with contextlib.suppress(EngineRefused):
                return await self.facts()
        raise NotOurEngine(
            _("Another program is using the engine's port"), _("It does not accept the API key that kvchat set.")
        )

    @property
    def rows(self) -> SlotRows:
        return self._rows[self.slot]

    def on_slot(self, slot: int) -> LlamaServerClient:
        other = copy.copy(self)
        other.slot = slot
        return other

    def with_template(self, options: Mapping[str, bool | str]) -> LlamaServerClient:
        """Return a client on the same connections with these chat template options."""
        other = copy.copy(self)
        other._template = options
        return other

    def with_projector(self, projector: str, marker: str) -> LlamaServerClient:
        async def call(path: str, body: dict[str, Any]) -> dict[str, Any]:
            return await self._http.call("POST", path, body)

        other = copy.copy(self)
        other._pictures = PicturePrompts(call, self._tokens, projector, marker)
        return other

    async def check_schema(self, schema: str) -> None:
        """Raise EngineRefused for an unusable JSON schema: POST /apply-template makes a grammar of it."""
        body = wire.prompt_body([ChatMessage("user", "?")]) | {"json_schema": json.loads(schema)}
        await self._http.call("POST", "/apply-template", body)

    async def facts(self) -> ServerFacts:
        facts = wire.parse_facts(await self._http.call("GET", "/props"))
        self._prompts.end = facts.end_token
        return facts

    async def prompt_tokens(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Return the token ids of a chat request: /apply-template, then /tokenize."""
        pictures = [picture for message in messages for picture in message.pictures]
        return (await self.request_tokens(self._prompt_body(without_pictures(messages)), pictures))[1]

    async def growing_tokens(self, messages: Sequence[ChatMessage]) -> tuple[tuple[int, ...], int]:
        """Return the ids up to the end of the last message, which may grow, and the number of those after it.

        No pictures.
        """
        last = messages[-1]
        longer = [*messages[:-1], replace(last, content=f"{last.content} {MORE}")]
        whole, other = [await self._rendered(self._prompt_body(said)) for said in (messages, longer)]
        end = shared_text(whole, other)
        return await self._prompts.of(whole[:end], grows=True), await self.count_tokens(whole[end:])

    async def request_tokens(
        self, body: Mapping[str, Any], pictures: Sequence[Picture] = ()
    ) -> tuple[str, tuple[int, ...]]:
        """Return the prompt of a chat request in API form, tools included, and its ids.

        `pictures`: those in it, in order; the body only needs placeholders.
        """
        rendered = await self._rendered(body)
        if pictures:
            return rendered, await self._picture_prompts().tokens(rendered, pictures)
        return rendered, await self._prompts.of(rendered)

    async def text_tokens(self, text: str) -> tuple[int, ...]:
        return await self._prompts.of(text)

    async def count_tokens(self, text: str) -> int:
        return len(await self._tokens(text, False))

    def chat(self, messages: Sequence[ChatMessage], sampling: Sampling) -> AsyncGenerator[ChatChunk, None]:
        """POST /v1/chat/completions, streamed, pinned to the slot, with progress and timings.

        Closing it drops the request: wrap it in `contextlib.aclosing`.
        """
        return self._ask("/v1/chat/completions", wire.chat_body(self._prompt_body(messages), sampling, self.slot))

    async def prefill(
        self, tokens: Sequence[int], progress: Callable[[PromptProgress], None] = lambda progress: None
    ) -> Timings:
        """POST /completion with n_predict 0: make the slot hold exactly these tokens."""
        timings = Timings(cache_n=0, prompt_n=len(tokens), prompt_ms=0.0, predicted_n=0, predicted_ms=0.0)
        has_pictures = min(tokens, default=0) <= FIRST_ID
        prompt = await self._picture_prompts().prompt(tokens) if has_pictures else list(tokens)
        async with contextlib.aclosing(self._ask("/completion", wire.prefill_body(prompt, self.slot))) as chunks:
            async for chunk in chunks:
                timings = chunk.timings or timings
                if chunk.progress:
                    progress(chunk.progress)
        return timings

    async def save_slot(self, filename: str) -> SlotFile:
        """POST /slots/N?action=save, where N is the slot of all requests."""
        return wire.parse_slot_file(await self._slot("save", {"filename": filename}), "n_saved", "n_written")

    async def restore_slot(self, filename: str) -> SlotFile:
        self.rows.asked()
        return wire.parse_slot_file(await self._slot("restore", {"filename": filename}), "n_restored", "n_read")

    async def erase_slot(self) -> None:
        self.rows.asked()
        await self._slot("erase", {})

    def passed_on(
        self, path: str, body: bytes, meanwhile: Callable[[], Awaitable[None]] | None = None, patience_s: float = 0.0
    ) -> contextlib.AbstractAsyncContextManager[Answer]:
        """See `Transport.passed_on`. If the request reads into the slot, update `rows`."""
        return self._http.passed_on(path, body, silence_s=_LONGEST_S, meanwhile=meanwhile, patience_s=patience_s)

    async def look(self, path: str, timeout_s: float = QUICK_S) -> bytes:
        """GET something without side effects, such as /slots or /metrics. Raises EngineSilent after `timeout_s`.

        The computing loop answers these; another thread answers /health.
        """
        return await self._http.answer("GET", path, timeout_s=timeout_s)

    async def _ask(self, path: str, body: dict[str, Any]) -> AsyncGenerator[ChatChunk, None]:
        before = self.rows.asked()
        async with contextlib.aclosing(self._http.stream(path, body)) as chunks:
            async for chunk in chunks:
                if chunk.timings or chunk.progress:
                    cached = chunk.timings.cache_n if chunk.timings else chunk.progress.cache if chunk.progress else 0
                    self.rows.answered(before, cached)
                yield chunk

    def _prompt_body(self, messages: Sequence[ChatMessage]) -> wire.Body:
        return wire.prompt_body(messages, self._template)

    async def _rendered(self, body: Mapping[str, Any]) -> str:
        return str((await self._http.call("POST", "/apply-template", dict(body))).get("prompt"))

    def _picture_prompts(self) -> PicturePrompts:
        if self._pictures is None:
            raise cannot_show(_("no vision file (mmproj) is loaded"))
        return self._pictures

    async def _tokens(self, text: str, special: bool) -> tuple[int, ...]:
        body = {"content": text, "add_special": special, "parse_special": True}
        answer = await self._http.answer("POST", "/tokenize", body)
        tokens = await apart(len(answer) > MANY, wire.parse_tokens, answer)
        if tokens is None:
            raise EngineRefused(200, _("The engine's response to /tokenize is invalid."))
        return tokens

    async def _slot(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._http.call("POST", f"/slots/{self.slot}?action={action}", body, timeout_s=_SLOT_S)
