"""Tokenizing of prompts that repeat most of an earlier one."""

from collections.abc import Awaitable, Callable, Mapping

from kvchat.text.search import common_prefix_length

CACHED_PROMPTS = 16  # one of each conversation
MAX_CACHED_CHARS = 20_000_000  # of all of them; the ids take ten times the bytes
SAME_CHAT_CHARS = 200  # a longer prompt of the same conversation lacks at most this many at a prompt's end

TokenIds = tuple[int, ...]
Tokenize = Callable[[str, bool], Awaitable[TokenIds]]  # returns the ids of a text, with the prompt's first ids if True


class PromptTokenizer:
    """Incremental tokenizer: processes only the part of a prompt after a cached prefix.

    The text before and after a special token is tokenized separately, so a prompt can be cut at the end-of-text
    token after a message. The first such prompt is also tokenized as a whole, to check this for the model. If the
    results differ, all prompts are tokenized as a whole.
    """

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self._cache: list[tuple[str, TokenIds]] = []  # newest last
        self.end_token, self._end_id = "", -1  # text and id of the end-of-text token, once known
        self.render_options: Mapping[str, str] = {}  # to render prompts with tools in less time
        self._can_cut: bool | None = None  # None: not checked yet

    async def tokenize(self, text: str, *, is_draft: bool = False) -> TokenIds:
        """Return a prompt's token ids and, unless it is a draft, cache them. Raises EngineGone and EngineRefused."""
        for cached, cached_ids in self._cache:
            if cached == text:
                return cached_ids
        ids = await self._extend_cached_prompt(text)
        if ids is None or self._can_cut is None:
            whole = await self._tokenize(text, True)
            if ids is not None:
                self._can_cut = ids == whole
            ids = whole
        if not is_draft:
            self._cache_prompt(text, ids)
        return ids

    def _cache_prompt(self, text: str, ids: TokenIds) -> None:
        """Cache a prompt instead of those that are the same except for their last characters."""
        others = [p for p in self._cache if len(p[0]) - common_prefix_length(p[0], text) > SAME_CHAT_CHARS]
        self._cache = [*others, (text, ids)][-CACHED_PROMPTS:]
        while sum(len(cached) for cached, _ids in self._cache) > MAX_CACHED_CHARS:
            del self._cache[0]

    async def _extend_cached_prompt(self, text: str) -> TokenIds | None:
        """Return the ids by extending the cached prompt with the longest common prefix; None if this is impossible."""
        if not self.end_token or self._can_cut is False or not self._cache:
            return None
        cached, ids = max(self._cache, key=lambda prompt: common_prefix_length(prompt[0], text))
        cut = text.rfind(self.end_token, 0, common_prefix_length(cached, text))
        if cut <= 0:
            return None
        if self._end_id < 0:
            end_ids = await self._tokenize(self.end_token, False)
            if len(end_ids) != 1:
                self._can_cut = False
                return None
            self._end_id = end_ids[0]
        if ids.count(self._end_id) != cached.count(self.end_token):
            return None
        place = -1
        for _end in range(text.count(self.end_token, 0, cut) + 1):
            place = ids.index(self._end_id, place + 1)
        return ids[:place] + await self._tokenize(text[cut:], False)
