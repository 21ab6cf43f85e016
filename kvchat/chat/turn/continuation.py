"""A reply that goes on: older builds repeat in the stream what they were given of it. Pure."""

from __future__ import annotations

from dataclasses import replace

from kvchat.engine.speaking.wire import ChatChunk


class Echo:
    """Takes out of a stream what it repeats of the reply it goes on with.

    llama.cpp b11434 sends that in one piece with the first new token, b11549 does not send it (both measured).
    """

    def __init__(self, text: str, thinking: str) -> None:
        self._text, self._thinking = text, thinking
        self._thinking_over = bool(text)  # then whatever comes as thinking is the echo

    def removed_from(self, chunk: ChatChunk) -> ChatChunk:
        """The chunk without what was there before. Give it each chunk once, in order."""
        if chunk.thinking:
            chunk = replace(chunk, thinking=self._new_thinking(chunk.thinking))
        if chunk.text and self._text:
            chunk = replace(chunk, text=_after(self._text, chunk.text))
            self._text = ""
        return chunk

    def _new_thinking(self, thinking: str) -> str:
        if not self._thinking:
            return thinking
        new = _after(self._thinking, thinking)
        self._thinking = ""
        return new.strip() if self._thinking_over else new  # the template's own line break before its end mark


def _after(known: str, text: str) -> str:
    """`text` without `known` at its beginning; templates trim what they are given."""
    for beginning in (known, known.rstrip(), known.strip()):
        if beginning and text.startswith(beginning):
            return text[len(beginning) :]
    return text
