"""Client for llama-server with typed requests and responses."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import re
import ssl
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kvchat.engine.api import wire
from kvchat.engine.api.errors import AccessRefused, EngineError, EngineLifetime, EngineRefused, ForeignServer
from kvchat.engine.api.pictures import (
    FIRST_PICTURE_ID,
    PicturePrompts,
    pictures_unusable,
    with_placeholder_pictures,
    without_pictures,
)
from kvchat.engine.api.response import EngineResponse
from kvchat.engine.api.tokenizer import PromptTokenizer, TokenIds
from kvchat.engine.api.transport import CONNECT_TIMEOUT_S, QUICK_TIMEOUT_S, PageFile, Transport, split_lines
from kvchat.engine.api.wire import (
    ChatChunk,
    ChatMessage,
    Picture,
    PromptProgress,
    Sampling,
    Timings,
)
from kvchat.system.concurrency import run_in_thread_if_large
from kvchat.text.language import _
from kvchat.text.search import common_prefix_length

MAX_CHAT_NAME = 64  # characters
GROWTH_PROBE = "more"  # appended to a message that may grow, to find where it ends in the prompt
THREAD_PARSE_BYTES = 32_768  # longer responses of /tokenize are parsed in a thread
COUNT_CHUNK_CHARS = 100_000
_HEALTH_TIMEOUT_S = 2.0
_REPLY_TIMEOUT_S = 3600.0  # for a reply that is not streamed
_EMBEDDING_TIMEOUT_S = 300.0  # for a few texts, on a busy computer
_SLOT_TIMEOUT_S = 900.0  # may wait for a busy slot and write many GB to a slow disk
_PREPARE_TIMEOUT_S = 600.0  # without progress: other work comes first


def chat_name(owner: str) -> str:
    """Return the name under which another kvchat knows a chat."""
    return re.sub("[^0-9A-Za-z_-]", "-", owner)[:MAX_CHAT_NAME]


class UnchangedRows:
    """Counts the leading tokens of a slot whose KV cache rows are unchanged since the last save or restore.

    A request keeps the rows that it takes from the cache (`cache_n`) and computes the others again.
    """

    def __init__(self, exclusive: bool = True) -> None:
        self._exclusive = exclusive  # False: other programs may change the slot, so the count stays 0
        self.count = 0

    def mark_saved(self, tokens: int) -> None:
        """Record that the slot's first `tokens` tokens were just saved or restored."""
        self.count = tokens if self._exclusive else 0

    def invalidate(self) -> int:
        """Set the count to 0 when a request begins or the slot changes; return the previous count."""
        before, self.count = self.count, 0
        return before

    def confirm(self, expected: int, cached: int) -> None:
        """Set the count to `cached`, the tokens that a request took from the cache, limited to `expected`."""
        self.count = min(expected, cached)


# Without it, /apply-template also builds a grammar of all tools, which takes twice as long as rendering (b11434).
_NO_CALLS = {"tool_choice": "none"}
_PROBE_TOOL = '[{"type": "function", "function": {"name": "a", "description": "b", "parameters": {"type": "object"}}}]'


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
        tls: ssl.SSLContext | None = None,
        response_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """Create a client. Each request opens a connection of its own within `response_s`, with `tls` for https.

        A stream fails after `silence_timeout_s` without output. `on_fault` receives each error before the caller does,
        and `on_silence` is called repeatedly while a started reply is silent. With `exclusive`, no other program uses
        the server.
        """
        self.base_url, self.key, self.exclusive, self._is_paired = base_url, key, exclusive, tls is not None
        self._rows = defaultdict[int, UnchangedRows](lambda: UnchangedRows(exclusive))
        self.slot = 0  # used for every request
        self._headers: Mapping[str, str] = {}  # of requests that generate
        self._template: Mapping[str, bool | str] = {}
        self._model = ""  # name sent with requests; "": the server's choice
        self._pictures: PicturePrompts | None = None
        self._prompts = PromptTokenizer(self._tokenize_text)
        self._http = Transport(base_url, key, silence_timeout_s, on_fault, on_silence, tls, response_s)

    @property
    def lifetime(self) -> EngineLifetime:
        return self._http.lifetime

    def begin_lifetime(self) -> None:
        self._http.lifetime = EngineLifetime()

    async def aclose(self) -> None:
        await self._http.close()

    def end_silent_requests(self) -> None:
        self._http.end_silent_requests()

    async def is_loaded(self, timeout_s: float = _HEALTH_TIMEOUT_S) -> bool:
        """Return True once the engine has loaded its model (GET /health).

        Raises EngineGone and ForeignServer, and AccessRefused if a paired kvchat does not know the key.
        """
        status = await self._http.get_status("/health", timeout_s)
        if status == 401 and self._is_paired:
            raise AccessRefused
        if status not in (200, 503):
            raise ForeignServer(_("Another program is using the engine's port"), f"/health says {status}.")
        return status == 200

    async def verify(self) -> None:
        """Check that the server requires and accepts our key. Raises ForeignServer.

        The first request is sent without the key, so that a foreign server does not receive it.
        """
        if await self._http.get_status("/props", CONNECT_TIMEOUT_S) == 401:
            with contextlib.suppress(EngineRefused):
                await self._http.request("GET", "/props")
                return
        raise ForeignServer(
            _("Another program is using the engine's port"), _("It does not accept the API key that kvchat set.")
        )

    @property
    def rows(self) -> UnchangedRows:
        return self._rows[self.slot]

    def for_slot(self, slot: int) -> LlamaServerClient:
        return self._copy(slot=slot)

    def for_chat(self, owner: str) -> LlamaServerClient:
        """Return a client that tells another kvchat which chat its requests belong to."""
        return self._copy(_headers={**self._headers, "X-Kvchat-Chat": chat_name(owner)})

    def without_saving(self) -> LlamaServerClient:
        """Return a client whose requests another kvchat does not save."""
        return self._copy(_headers={"X-Kvchat-Save": "never"})

    def with_model(self, name: str) -> LlamaServerClient:
        return self._copy(_model=name)

    def with_template(self, options: Mapping[str, bool | str]) -> LlamaServerClient:
        return self._copy(_template=options)

    def with_projector(self, projector: str, marker: str) -> LlamaServerClient:
        call = partial(self._http.request_json, "POST")
        return self._copy(_pictures=PicturePrompts(call, self._tokenize_text, projector, marker))

    def _copy(self, **changes: Any) -> LlamaServerClient:
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    async def check_schema(self, schema: str) -> None:
        """Raise EngineRefused if the engine cannot convert this JSON schema to a grammar."""
        await self._render(wire.prompt_body([ChatMessage("user", "?")]) | {"json_schema": json.loads(schema)})

    async def facts(self) -> wire.ServerFacts:
        facts = wire.parse_facts(await self._http.request_json("GET", "/props"))
        self._prompts.end_token = facts.end_token
        if facts.has_tools:
            with contextlib.suppress(EngineRefused):
                probe = wire.prompt_body([ChatMessage("system", "", tools=_PROBE_TOOL), ChatMessage("user", "?")])
                self._prompts.render_options = {}
                if await self._render(probe) == await self._render(probe | _NO_CALLS):
                    self._prompts.render_options = _NO_CALLS
        return facts

    async def prompt_tokens(self, messages: Sequence[ChatMessage]) -> TokenIds:
        """Return the token ids of the messages' prompt, with placeholder ids for pictures."""
        messages = await self._with_visible_pictures(messages)
        pictures = [picture for message in messages for picture in message.pictures]
        body = wire.prompt_body(with_placeholder_pictures(messages), self._template)
        return (await self.request_tokens(body, pictures))[1]

    async def stable_prefix_tokens(self, messages: Sequence[ChatMessage]) -> tuple[TokenIds, int]:
        """Return the token ids of the prompt up to the end of the last message's text, and the number of tokens after.

        The ids stay the same if text is appended to the last message. Messages must not have pictures.
        """
        last = messages[-1]
        longer = [*messages[:-1], replace(last, content=f"{last.content} {GROWTH_PROBE}")]
        whole = await self._render(wire.prompt_body(messages, self._template))
        end = common_prefix_length(whole, await self._render(wire.prompt_body(longer, self._template)))
        return await self._prompts.tokenize(whole[:end], is_draft=True), await self.count_tokens(whole[end:])

    async def request_tokens(self, body: Mapping[str, Any], pictures: Sequence[Picture] = ()) -> tuple[str, TokenIds]:
        """Return the prompt that the engine makes of the request `body`, as text and as token ids."""
        rendered = await self._render(body)
        if pictures:
            return rendered, await self._picture_prompts().tokens(rendered, pictures)
        return rendered, await self._prompts.tokenize(rendered)

    async def text_tokens(self, text: str) -> TokenIds:
        return await self._prompts.tokenize(text)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vector of each text, from an engine with an embedding model. Raises EngineRefused if invalid."""
        body = {"input": list(texts)}
        answer = await self._http.request_json("POST", "/v1/embeddings", body, timeout_s=_EMBEDDING_TIMEOUT_S)
        try:
            vectors = [item["embedding"] for item in sorted(answer["data"], key=lambda item: item["index"])]
            rows = [[float(value) for value in vector] for vector in vectors]
            if len(rows) != len(texts) or len({len(row) for row in rows}) > 1:
                raise ValueError
            if not all(any(row) and all(map(math.isfinite, row)) for row in rows):
                raise ValueError
            return rows
        except (KeyError, TypeError, ValueError) as error:
            raise EngineRefused(200, _("The response is invalid")) from error

    async def count_tokens(self, text: str) -> int:
        return len(await self._tokenize_text(text, False))

    async def count_tokens_up_to(self, text: str, limit: int) -> tuple[int, bool]:
        """Return a text's token count, extrapolated if it exceeds `limit`, and True if the count is exact."""
        tokens = 0
        for begin in range(0, len(text), COUNT_CHUNK_CHARS):
            end = begin + COUNT_CHUNK_CHARS
            tokens += await self.count_tokens(text[begin:end])
            if tokens > limit and end < len(text):
                return tokens * len(text) // end, False
        return tokens, True

    async def chat(self, messages: Sequence[ChatMessage], sampling: Sampling) -> AsyncGenerator[ChatChunk, None]:
        """Stream a reply, computed in this client's slot. Closing the generator cancels the request."""
        prompt = self._prompt_body(await self._with_visible_pictures(messages))
        stream = self._stream_request("/v1/chat/completions", wire.chat_body(prompt, sampling, self.slot))
        async with contextlib.aclosing(stream) as chunks:
            async for chunk in chunks:
                yield chunk

    async def prepare(
        self, messages: Sequence[ChatMessage], progress: Callable[[int, int], None], *, read: bool
    ) -> tuple[int, int]:
        """Have another kvchat load this prompt in its idle time and, if `read`, process and save the rest.

        A last user message is a draft. `progress` gets the tokens ready so far and in total, which are returned in the
        end: fewer if the work was interrupted, 0 if it could not begin. Cancelling ends the work.
        """
        body = json.dumps(self._prompt_body(messages)).encode()
        path, done = f"/kvchat/prepare?read={int(read)}", wire.MemoryForecast("", 0, 0, 0)
        request = self._http.forward(path, body, silence_s=_PREPARE_TIMEOUT_S, more_headers=self._headers)
        async with request as response:
            if response.status_code != 200:
                raise wire.parse_error(await response.aread(), response.status_code)
            rest = b""
            while data := await response.read():
                *lines, rest = split_lines(rest + data)
                for done in map(wire.parse_forecast, map(wire.parse_object, lines)):
                    progress(done.ready, done.total)
        return done.ready, done.total

    async def forecast(self, messages: Sequence[ChatMessage]) -> wire.MemoryForecast:
        """Ask another kvchat what it could load for this prompt, whose last user message is a draft."""
        body = self._prompt_body(messages)
        return wire.parse_forecast(
            await self._http.request_json("POST", "/kvchat/forecast", body, more_headers=self._headers)
        )

    async def models(self) -> tuple[str, ...]:
        """Return the names of another kvchat's models, the one in use first."""
        return wire.parse_models(await self._http.request_json("GET", "/v1/models"))

    async def load_model(self, name: str) -> None:
        """Have another kvchat load a model as soon as it is generating no reply."""
        await self._http.request_json("POST", "/kvchat/model", {"model": name}, timeout_s=_REPLY_TIMEOUT_S)

    async def chat_memory(self) -> tuple[int, tuple[wire.ChatMemory, ...]]:
        """Return the bytes of this computer's chats on another kvchat, and the memory of each."""
        return wire.parse_chat_memory(await self._http.request_json("GET", "/kvchat/chats"))

    async def keep_chat(self, owner: str, keep: str) -> None:
        """Set whether another kvchat keeps a chat's memory: "always", "never" or "automatic"."""
        await self._http.request_json("PUT", f"/kvchat/chats/{chat_name(owner)}", {"keep": keep})

    async def forget_chat(self, owner: str) -> None:
        """Have another kvchat delete a chat's memory."""
        await self._http.request_json("DELETE", f"/kvchat/chats/{chat_name(owner)}")

    async def prefill(
        self, tokens: Sequence[int], progress: Callable[[PromptProgress], None] = lambda progress: None
    ) -> Timings:
        """Process a prompt without a reply, so that the slot holds exactly these tokens."""
        timings = Timings(cache_n=0, prompt_n=len(tokens), prompt_ms=0.0, predicted_n=0, predicted_ms=0.0)
        has_pictures = min(tokens, default=0) <= FIRST_PICTURE_ID
        prompt = await self._picture_prompts().completion_prompt(tokens) if has_pictures else list(tokens)
        stream = self._stream_request("/completion", wire.prefill_body(prompt, self.slot))
        async with contextlib.aclosing(stream) as chunks:
            async for chunk in chunks:
                timings = chunk.timings or timings
                if chunk.progress:
                    progress(chunk.progress)
        return timings

    async def save_slot(self, filename: str) -> wire.SlotFile:
        return await self._slot_action("save", filename=filename)

    async def restore_slot(self, filename: str) -> wire.SlotFile:
        self.rows.invalidate()
        return await self._slot_action("restore", filename=filename)

    async def erase_slot(self) -> None:
        self.rows.invalidate()
        await self._slot_action("erase")

    async def _slot_action(self, action: str, **body: str) -> wire.SlotFile:
        path = f"/slots/{self.slot}?action={action}"
        return wire.parse_slot_file(await self._http.request_json("POST", path, body, timeout_s=_SLOT_TIMEOUT_S))

    def forward(self, path: str, body: bytes) -> contextlib.AbstractAsyncContextManager[EngineResponse]:
        """Send another program's request. If the slot changes, the caller must update `rows`.

        See `Transport.forward`.
        """
        return self._http.forward(path, body, silence_s=_REPLY_TIMEOUT_S)

    async def get(self, path: str, timeout_s: float = QUICK_TIMEOUT_S) -> bytes:
        """Return the response to a GET request, such as /metrics. Raises EngineSilent after `timeout_s`."""
        return await self._http.request("GET", path, timeout_s=timeout_s)

    async def page_file(self, path: str) -> PageFile | None:
        """Return a file of the engine's web page, or None if there is none.

        The key is not sent: the engine serves its page without one, and nothing else.
        """
        return await self._http.get_public(path)

    async def _stream_request(self, path: str, body: wire.Body) -> AsyncGenerator[ChatChunk, None]:
        before = self.rows.invalidate()
        async with contextlib.aclosing(self._http.stream(path, body, self._headers)) as chunks:
            async for chunk in chunks:
                if chunk.timings:
                    self.rows.confirm(before, chunk.timings.cache_n)
                elif chunk.progress:
                    self.rows.confirm(before, chunk.progress.cache)
                yield chunk

    def _prompt_body(self, messages: Sequence[ChatMessage]) -> wire.Body:
        return wire.prompt_body(messages, self._template) | ({"model": self._model} if self._model else {})

    async def _render(self, body: Mapping[str, Any]) -> str:
        options = self._prompts.render_options if body.get("tools") else {}
        return str((await self._http.request_json("POST", "/apply-template", {**options, **body})).get("prompt"))

    async def _with_visible_pictures(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Replace pictures in tool results with a sentence if the chat template omits them."""
        if not any(message.role == "tool" and message.pictures for message in messages):
            return messages
        rendered = await self._render(wire.prompt_body(with_placeholder_pictures(messages), self._template))
        if self._picture_prompts().count_markers(rendered) == sum(len(message.pictures) for message in messages):
            return messages
        return [without_pictures(message) if message.role == "tool" else message for message in messages]

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
