"""llama-server client: one request, one typed response."""

from __future__ import annotations

import contextlib
import copy
import json
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvchat.engine.api import wire
from kvchat.engine.api.errors import EngineError, EngineLifetime, EngineRefused, ForeignServer
from kvchat.engine.api.pictures import (
    FIRST_PICTURE_ID,
    PicturePrompts,
    pictures_unusable,
    with_placeholder_pictures,
)
from kvchat.engine.api.transport import CONNECT_TIMEOUT_S, QUICK_TIMEOUT_S, EngineResponse, Transport
from kvchat.engine.api.wire import (
    ChatChunk,
    ChatMessage,
    Picture,
    PromptProgress,
    Sampling,
    ServerFacts,
    SlotFile,
    Timings,
)
from kvchat.system.concurrency import run_in_thread_if_large
from kvchat.text.language import _
from kvchat.text.search import common_prefix_length

GROWTH_PROBE = "more"  # added after a growing message to find its end
THREAD_PARSE_BYTES = 32_768  # bytes of token ids; more are parsed off the window's thread
COUNT_CHUNK_CHARS = 100_000  # characters
CACHED_PROMPTS = 4  # prompts: the turn's, its two boundary probes and one spare
MAX_CACHED_CHARS = 5_000_000  # characters of a prompt; its ids take ten times the bytes
_HEALTH_TIMEOUT_S = 2.0  # polled, so a slow answer costs nothing
_REPLY_TIMEOUT_S = 3600.0  # for a reply in one piece, sent when complete
_SLOT_TIMEOUT_S = 900.0  # may wait for a busy slot and move many GB on a slow disk


TokenIds = tuple[int, ...]
Tokenize = Callable[[str, bool], Awaitable[TokenIds]]  # ids of a text; True adds those that start a prompt


class UnchangedRows:
    """Counts a slot's leading tokens whose KV cache rows are known to be unchanged since the last save or restore."""

    def __init__(self, exclusive: bool = True) -> None:
        self._exclusive = exclusive  # False: others send requests to this engine, so nothing is ever known
        self.count = 0  # rows are kept if taken from the cache (`cache_n`), else recomputed

    def mark_saved(self, tokens: int) -> None:
        """Record that the slot holds `tokens`, just saved or restored."""
        self.count = tokens if self._exclusive else 0

    def invalidate(self) -> int:
        """Record that a request begins or the slot's contents change; return the previous count."""
        before, self.count = self.count, 0
        return before

    def confirm(self, expected: int, cached: int) -> None:
        """Record how many tokens a request took from the cache; `expected`: what `invalidate` returned."""
        self.count = min(expected, cached)


class PromptTokenizer:
    """Incremental tokenizer: processes only the part of a prompt after a cached prefix.

    Special tokens split a text: the parts before and after one are tokenized separately. A prompt can therefore be cut
    after a message's end-of-text token. The first such prompt tests whether this holds for the model; if not, every
    prompt is tokenized whole.
    """

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self._cache: deque[tuple[str, TokenIds]] = deque(maxlen=CACHED_PROMPTS)
        self.end, self._end_id = "", -1  # the end-of-text token, once known
        self._can_cut: bool | None = None  # None: not tried

    async def tokenize(self, text: str, *, is_draft: bool = False) -> TokenIds:
        """Return the ids of a prompt; those of a draft are not cached. Raises the errors of `/tokenize`."""
        for cached, cached_ids in self._cache:
            if cached == text:
                return cached_ids
        ids = await self._extend_cached_prompt(text)
        if ids is None or self._can_cut is None:
            whole = await self._tokenize(text, True)
            if ids is not None:
                self._can_cut = ids == whole
            ids = whole
        if not is_draft and len(text) <= MAX_CACHED_CHARS:
            self._cache.append((text, ids))
        return ids

    async def _extend_cached_prompt(self, text: str) -> TokenIds | None:
        """Derive the ids from the cached prompt with the longest common prefix; None if it cannot be cut."""
        if not self.end or self._can_cut is False or not self._cache:
            return None
        cached, ids = max(self._cache, key=lambda prompt: common_prefix_length(prompt[0], text))
        cut = text.rfind(self.end, 0, common_prefix_length(cached, text))
        if cut <= 0:
            return None
        if self._end_id < 0:
            end_ids = await self._tokenize(self.end, False)
            if len(end_ids) != 1:
                self._can_cut = False
                return None
            self._end_id = end_ids[0]
        if ids.count(self._end_id) != cached.count(self.end):
            return None
        place = -1
        for _end in range(text.count(self.end, 0, cut) + 1):
            place = ids.index(self._end_id, place + 1)
        return ids[:place] + await self._tokenize(text[cut:], False)


class LlamaServerClient:
    """HTTP client of a ready llama-server. All methods raise EngineGone or EngineRefused. Close with `aclose`."""

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        silence_timeout_s: float = 600.0,
        on_fault: Callable[[EngineError], None] = lambda _: None,
        on_silence: Callable[[], None] = lambda: None,
        exclusive: bool = True,
    ) -> None:
        """`silence_timeout_s`: longest silence within a stream, in seconds; a prefill shows progress after each batch.

        `exclusive`: no other program uses this server. `on_fault` gets every request error before the caller does;
        `on_silence` is called periodically while a started reply produces no output.
        """
        self.base_url, self.key, self.exclusive = base_url, key, exclusive
        self._rows = defaultdict[int, UnchangedRows](lambda: UnchangedRows(exclusive))
        self.slot = 0  # used for every request
        self._template: Mapping[str, bool | str] = {}
        self._pictures: PicturePrompts | None = None
        self._prompts = PromptTokenizer(self._tokenize_text)
        self._http = Transport(base_url, key, silence_timeout_s, on_fault, on_silence)

    @property
    def lifetime(self) -> EngineLifetime:
        return self._http.lifetime

    def begin_lifetime(self) -> None:
        self._http.lifetime = EngineLifetime()

    async def aclose(self) -> None:
        await self._http.close()

    async def is_loaded(self, timeout_s: float = _HEALTH_TIMEOUT_S) -> bool:
        """Query /health; False while loading. Raises EngineGone if no server is listening, and ForeignServer."""
        status = await self._http.get_status("/health", timeout_s)
        if status not in (200, 503):
            raise ForeignServer(_("Another program is using the engine's port"), f"/health says {status}.")
        return status == 200

    async def verify(self) -> ServerFacts:
        """Return the server's facts after checking that it requires and accepts our key. Raises ForeignServer.

        The call without the key goes first, so that a foreign server never gets our key.
        """
        if await self._http.get_status("/props", CONNECT_TIMEOUT_S) == 401:
            with contextlib.suppress(EngineRefused):
                return await self.facts()
        raise ForeignServer(
            _("Another program is using the engine's port"), _("It does not accept the API key that kvchat set.")
        )

    @property
    def rows(self) -> UnchangedRows:
        return self._rows[self.slot]

    def on_slot(self, slot: int) -> LlamaServerClient:
        return self._copy(slot=slot)

    def with_template(self, options: Mapping[str, bool | str]) -> LlamaServerClient:
        """Return a client on the same connections with these chat template options."""
        return self._copy(_template=options)

    def with_projector(self, projector: str, marker: str) -> LlamaServerClient:
        async def call(path: str, body: wire.Body) -> wire.Body:
            return await self._http.request_json("POST", path, body)

        return self._copy(_pictures=PicturePrompts(call, self._tokenize_text, projector, marker))

    def _copy(self, **changes: Any) -> LlamaServerClient:
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    async def check_schema(self, schema: str) -> None:
        """Raise EngineRefused for an unusable JSON schema. POST /apply-template converts it to a grammar."""
        await self._render(wire.prompt_body([ChatMessage("user", "?")]) | {"json_schema": json.loads(schema)})

    async def facts(self) -> ServerFacts:
        facts = wire.parse_facts(await self._http.request_json("GET", "/props"))
        self._prompts.end = facts.end_token
        return facts

    async def prompt_tokens(self, messages: Sequence[ChatMessage]) -> TokenIds:
        """Return the token ids of a chat request: /apply-template, then /tokenize."""
        pictures = [picture for message in messages for picture in message.pictures]
        body = wire.prompt_body(with_placeholder_pictures(messages), self._template)
        return (await self.request_tokens(body, pictures))[1]

    async def stable_prefix_tokens(self, messages: Sequence[ChatMessage]) -> tuple[TokenIds, int]:
        """Return the ids up to the end of the last message (may be extended), and the number of tokens after it.

        Does not support pictures.
        """
        last = messages[-1]
        longer = [*messages[:-1], replace(last, content=f"{last.content} {GROWTH_PROBE}")]
        whole = await self._render(wire.prompt_body(messages, self._template))
        end = common_prefix_length(whole, await self._render(wire.prompt_body(longer, self._template)))
        return await self._prompts.tokenize(whole[:end], is_draft=True), await self.count_tokens(whole[end:])

    async def request_tokens(self, body: Mapping[str, Any], pictures: Sequence[Picture] = ()) -> tuple[str, TokenIds]:
        """Return the prompt of a chat request in API form and its ids. Pictures in the body may be placeholders."""
        rendered = await self._render(body)
        if pictures:
            return rendered, await self._picture_prompts().tokens(rendered, pictures)
        return rendered, await self._prompts.tokenize(rendered)

    async def text_tokens(self, text: str) -> TokenIds:
        return await self._prompts.tokenize(text)

    async def count_tokens(self, text: str) -> int:
        return len(await self._tokenize_text(text, False))

    async def count_tokens_up_to(self, text: str, limit: int) -> tuple[int, bool]:
        """Return a text's token count, and True if it is exact; counts above `limit` may be extrapolated."""
        tokens = 0
        for begin in range(0, len(text), COUNT_CHUNK_CHARS):
            end = begin + COUNT_CHUNK_CHARS
            tokens += await self.count_tokens(text[begin:end])
            if tokens > limit and end < len(text):
                return tokens * len(text) // end, False
        return tokens, True

    def chat(self, messages: Sequence[ChatMessage], sampling: Sampling) -> AsyncGenerator[ChatChunk, None]:
        """POST /v1/chat/completions, streamed and pinned to the slot. Use `aclosing`: closing drops the request."""
        prompt = wire.prompt_body(messages, self._template)
        return self._stream_request("/v1/chat/completions", wire.chat_body(prompt, sampling, self.slot))

    async def prefill(
        self, tokens: Sequence[int], progress: Callable[[PromptProgress], None] = lambda progress: None
    ) -> Timings:
        """POST /completion with n_predict 0: make the slot hold exactly these tokens."""
        timings = Timings(cache_n=0, prompt_n=len(tokens), prompt_ms=0.0, predicted_n=0, predicted_ms=0.0)
        has_pictures = min(tokens, default=0) <= FIRST_PICTURE_ID
        prompt = await self._picture_prompts().prompt(tokens) if has_pictures else list(tokens)
        stream = self._stream_request("/completion", wire.prefill_body(prompt, self.slot))
        async with contextlib.aclosing(stream) as chunks:
            async for chunk in chunks:
                timings = chunk.timings or timings
                if chunk.progress:
                    progress(chunk.progress)
        return timings

    async def save_slot(self, filename: str) -> SlotFile:
        return await self._slot_action("save", filename=filename)

    async def restore_slot(self, filename: str) -> SlotFile:
        self.rows.invalidate()
        return await self._slot_action("restore", filename=filename)

    async def erase_slot(self) -> None:
        self.rows.invalidate()
        await self._slot_action("erase")

    async def _slot_action(self, action: str, **body: str) -> SlotFile:
        path = f"/slots/{self.slot}?action={action}"
        return wire.parse_slot_file(await self._http.request_json("POST", path, body, timeout_s=_SLOT_TIMEOUT_S))

    def forward(self, path: str, body: bytes) -> contextlib.AbstractAsyncContextManager[EngineResponse]:
        """See `Transport.forward`. If the request changes the slot, update `rows`."""
        return self._http.forward(path, body, silence_s=_REPLY_TIMEOUT_S)

    async def get(self, path: str, timeout_s: float = QUICK_TIMEOUT_S) -> bytes:
        """GET a path that the engine's compute loop answers, unlike /health. Raises EngineSilent after `timeout_s`."""
        return await self._http.request("GET", path, timeout_s=timeout_s)

    async def _stream_request(self, path: str, body: wire.Body) -> AsyncGenerator[ChatChunk, None]:
        before = self.rows.invalidate()
        async with contextlib.aclosing(self._http.stream(path, body)) as chunks:
            async for chunk in chunks:
                if chunk.timings:
                    self.rows.confirm(before, chunk.timings.cache_n)
                elif chunk.progress:
                    self.rows.confirm(before, chunk.progress.cache)
                yield chunk

    async def _render(self, body: Mapping[str, Any]) -> str:
        return str((await self._http.request_json("POST", "/apply-template", dict(body))).get("prompt"))

    def _picture_prompts(self) -> PicturePrompts:
        if self._pictures is None:
            raise pictures_unusable(_("no vision file (mmproj) is loaded"))
        return self._pictures

    async def _tokenize_text(self, text: str, parse_special: bool) -> TokenIds:
        body = {"content": text, "add_special": parse_special, "parse_special": True}
        answer = await self._http.request("POST", "/tokenize", body)
        tokens = await run_in_thread_if_large(len(answer) > THREAD_PARSE_BYTES, wire.parse_tokens, answer)
        if tokens is None:
            raise EngineRefused(200, _("The engine's response to /tokenize is invalid."))
        return tokens
