"""Requests to llama-server: what kvchat's values are in JSON. Field names follow llama.cpp's server README."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvchat.engine.speaking.wire import ChatMessage, Sampling

Body = dict[str, Any]


def messages_body(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as the OpenAI-style API takes them."""
    return [
        {"role": message.role, "content": _content(message)}
        | ({"reasoning_content": message.thinking} if message.thinking else {})
        for message in messages
    ]


def prompt_body(messages: Sequence[ChatMessage], template: Mapping[str, bool | str] = {}) -> Body:
    """What a chat request says of its prompt. The same is rendered to count its tokens and sent to be answered."""
    return {"messages": messages_body(messages)} | ({"chat_template_kwargs": dict(template)} if template else {})


def chat_body(prompt: Body, sampling: Sampling, slot: int = 0) -> Body:
    """A streamed chat request, pinned to a slot: an unpinned one may land in another slot than the one we save."""
    mine = {
        "stream": True,
        "id_slot": slot,
        "cache_prompt": True,
        "return_progress": True,
        "timings_per_token": True,
    }
    drawn = vars(sampling) | {"json_schema": json.loads(sampling.json_schema) if sampling.json_schema else None}
    return prompt | mine | {name: value for name, value in drawn.items() if value is not None}


def prefill_body(prompt: Sequence[int] | Body, slot: int = 0) -> Body:
    """A request that reads the prompt into the slot and answers without a reply. Streamed, so that a hang shows.

    It is a list of tokens, or text and files where there are pictures.
    """
    return {
        "prompt": prompt,
        "n_predict": 0,
        "stream": True,
        "id_slot": slot,
        "cache_prompt": True,
        "return_progress": True,
    }


def _content(message: ChatMessage) -> str | list[dict[str, Any]]:
    """Words alone are a string; with pictures it is a list of parts."""
    if not message.pictures:
        return message.content
    pictures = [{"type": "image_url", "image_url": {"url": picture.url}} for picture in message.pictures]
    return [*pictures, *([{"type": "text", "text": message.content}] if message.content else [])]
