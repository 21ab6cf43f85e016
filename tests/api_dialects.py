"""Requests in the four API dialects, and the text of their answers."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2

Body = dict[str, Any]
Turn = tuple[str, str]  # question and reply

DIALECTS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions")


def request_body(
    path: str, question: str, *, system: str = "", turns: Sequence[Turn] = (), max_tokens: int = 8
) -> Body:
    """Return a greedy request after these turns."""
    messages = []
    for asked, reply in turns:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]
    messages.append({"role": "user", "content": question})
    limits: Body = {"max_tokens": max_tokens, "temperature": 0}
    match path:
        case "/v1/chat/completions":
            start = [{"role": "system", "content": system}] if system else []
            return {"messages": [*start, *messages], **limits}
        case "/v1/messages":
            return {"system": system, "messages": messages, **limits}
        case "/v1/responses":
            kinds = {"user": "input_text", "assistant": "output_text"}
            items = []
            for message in messages:
                content = [{"type": kinds[message["role"]], "text": message["content"]}]
                items.append({"type": "message", "role": message["role"], "content": content})
            return {"instructions": system, "input": items, "max_output_tokens": max_tokens, "temperature": 0}
    text = "".join(f"{asked}\n{reply}\n" for asked, reply in turns)
    return {"prompt": f"{system}\n{text}{question}\n", **limits}


def answer_text(answer: httpx2.Response) -> str | None:
    """Return the text of an answer, streamed or not; None if a stream ended early."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return _whole_text(answer.json())
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    ends = ("message_stop", "response.completed")
    has_ended = "data: [DONE]" in answer.text or any(event.get("type") in ends for event in events)
    return "".join(map(_delta_text, events)) if has_ended else None


def _delta_text(event: Body) -> str:
    delta = event.get("delta")
    if event.get("type") == "response.output_text.delta":
        return str(delta)
    if event.get("type") == "content_block_delta":
        return str((delta or {}).get("text") or "")
    choices = event.get("choices") or ()
    return "".join(choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in choices)


def _whole_text(answer: Body) -> str:
    if "output" in answer:
        return "".join(part["text"] for item in answer["output"] for part in item.get("content") or ())
    if "content" in answer:
        return "".join(block.get("text") or "" for block in answer["content"])
    (choice,) = answer["choices"]
    return str(choice["text"] if "text" in choice else choice["message"]["content"] or "")
