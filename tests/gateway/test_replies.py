"""Parsing answers while passing them on: a stream, cut anywhere, gives the same as a whole body."""

import json
from typing import Any

import pytest

from kvchat.engine.api.wire import Timings
from kvchat.gateway.dialects.replies import ResponseParser, UsageCorrection
from kvchat.gateway.dialects.request import Dialect

TIMINGS = {"cache_n": 90, "prompt_n": 10, "prompt_ms": 5.0, "predicted_n": 7}
CALL = {"id": "call_1", "type": "function", "function": {"name": "go", "arguments": '{"where":"東"}'}}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "go", "input": {"where": "東"}}
OUTPUT = [{"type": "function_call", "call_id": "c1", "name": "go", "arguments": "{}"}]


def delta(**words: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": words}]}


def block(index: int, **words: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": words}


STREAMS: dict[Dialect, list[Any]] = {
    Dialect.CHAT: [
        delta(role="assistant", content=None),
        delta(reasoning_content="I "),
        delta(reasoning_content="ask."),
        delta(content="A mo"),
        {"choices": [{"index": 1, "delta": {"content": "another answer"}}]},
        delta(content="ment."),
        delta(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": {"name": "go"}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"where":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"東"}'}}]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "timings": TIMINGS},
        "[DONE]",
    ],
    Dialect.COMPLETION: [
        {"choices": [{"index": 0, "text": "A mo"}]},
        {"choices": [{"index": 0, "text": "ment."}], "timings": TIMINGS},
        "[DONE]",
    ],
    Dialect.MESSAGES: [
        {"type": "message_start", "message": {"usage": {"cache_read_input_tokens": 90, "input_tokens": 10}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        block(0, type="thinking_delta", thinking="I ask."),
        block(0, type="signature_delta", signature=""),
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        block(1, type="text_delta", text="A mo"),
        block(1, type="text_delta", text="ment."),
        {"type": "content_block_start", "index": 2, "content_block": TOOL_USE | {"input": {}}},
        block(2, type="input_json_delta", partial_json='{"where":'),
        block(2, type="input_json_delta", partial_json='"東"}'),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ],
    Dialect.RESPONSES: [
        {"type": "response.created", "response": {}},
        {"type": "response.output_text.delta", "delta": "ignored: all of it comes at the end"},
        {"type": "response.completed", "response": {"output": OUTPUT}, "timings": TIMINGS},
    ],
}
WHOLE: dict[Dialect, dict[str, Any]] = {
    Dialect.CHAT: {
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "A moment.",
                    "reasoning_content": "I ask.",
                    "tool_calls": [CALL],
                },
            }
        ],
        "timings": TIMINGS,
    },
    Dialect.COMPLETION: {"choices": [{"index": 0, "text": "A moment."}], "timings": TIMINGS},
    Dialect.MESSAGES: {
        "content": [
            {"type": "thinking", "thinking": "I ask.", "signature": ""},
            {"type": "text", "text": "A moment."},
            TOOL_USE,
        ],
        "usage": {"cache_read_input_tokens": 90, "input_tokens": 10, "output_tokens": 7},
    },
    Dialect.RESPONSES: {
        "output": OUTPUT,
        "usage": {"input_tokens": 100, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 90}},
    },
}


def stream(dialect: Dialect) -> bytes:
    lines = [event if isinstance(event, str) else json.dumps(event, ensure_ascii=False) for event in STREAMS[dialect]]
    return "".join(f"event: x\ndata: {line}\n\n" for line in lines).encode()


@pytest.mark.parametrize("dialect", STREAMS)
def test_stream_in_any_pieces_equals_the_whole_body(dialect: Dialect) -> None:
    whole = ResponseParser(dialect, stream=False)
    whole.feed(json.dumps(WHOLE[dialect]).encode())
    whole.finish()
    assert whole.reply is not None
    data = stream(dialect)
    for size in (1, 7, 64, len(data)):
        parser = ResponseParser(dialect, stream=True)
        for at in range(0, len(data), size):
            parser.feed(data[at : at + size])
        parser.finish()
        assert parser.reply == whole.reply
        assert (parser.timings.cache_n, parser.timings.prompt_n, parser.timings.predicted_n) == (90, 10, 7)
    parser = ResponseParser(dialect, stream=True)
    parser.feed(data[: len(data) * 2 // 3])
    parser.finish()
    assert parser.reply is None, "it broke off"


@pytest.mark.parametrize("dialect", STREAMS)
@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"choices": 7}', b'{"choices": [7], "content": 3, "output": 3}'])
def test_answer_of_unknown_shape_is_passed_on(dialect: Dialect, body: bytes) -> None:
    for streamed in (False, True):
        parser = ResponseParser(dialect, streamed)
        parser.feed(b"data: " + body + b"\n\n" if streamed else body)
        parser.finish()
        assert parser.timings in (None, Timings(0, 0, 0.0, 0, 0.0))


USAGE = UsageCorrection("heron", processed_tokens=70, processing_ms=100.0)
FROM_ENGINE = {
    Dialect.CHAT: {"usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 90}}, "timings": TIMINGS},
    Dialect.RESPONSES: {"usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 90}}},
    Dialect.MESSAGES: {"usage": {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 7}},
}
FOR_CLIENT = {
    Dialect.CHAT: {"usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 20}}},
    Dialect.RESPONSES: {"usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 20}}},
    Dialect.MESSAGES: {"usage": {"input_tokens": 80, "cache_read_input_tokens": 20, "output_tokens": 7}},
}
INNER = {Dialect.RESPONSES: "response", Dialect.MESSAGES: "message"}


@pytest.mark.parametrize("dialect", sorted(FROM_ENGINE, key=str))
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tokens_processed_by_kvchat_do_not_count_as_reused(dialect: Dialect, newline: str) -> None:
    """In a body and in a stream, cut anywhere; and the path of a model's file is never shown."""
    answer = FROM_ENGINE[dialect] | {"model": "/home/ada/models/heron.gguf"}
    whole = ResponseParser(dialect, stream=False, usage=USAGE)
    assert whole.feed(json.dumps(answer).encode()) == b""
    told = json.loads(whole.finish())
    assert told["usage"] == FOR_CLIENT[dialect]["usage"]
    assert told["model"] == "heron"
    if timings := told.get("timings"):
        assert (timings["cache_n"], timings["prompt_n"], timings["prompt_ms"]) == (20, 80, 105.0)
    event = {INNER[dialect]: answer} if dialect in INNER else answer
    lines = ["event: one", f"data: {json.dumps(event)}", "", ": a comment", "data: [DONE]", "", ""]
    stream = newline.join(lines).encode()
    for size in (1, 7, len(stream)):
        parser = ResponseParser(dialect, stream=True, usage=USAGE)
        passed = b"".join(parser.feed(stream[at : at + size]) for at in range(0, len(stream), size)) + parser.finish()
        said = passed.decode().split(newline)
        assert [line for n, line in enumerate(said) if n != 1] == [line for n, line in enumerate(lines) if n != 1]
        assert json.loads(said[1].removeprefix("data: ")) == ({INNER[dialect]: told} if dialect in INNER else told)
        assert parser.timings == whole.timings
        assert parser.timings.cache_n == 90, "what the engine counts proves what was loaded"


@pytest.mark.parametrize("dialect", sorted(STREAMS, key=str))
def test_correct_lines_pass_unchanged(dialect: Dialect) -> None:
    lines = [
        f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode() for event in STREAMS[dialect]
    ]
    parser = ResponseParser(dialect, stream=True, usage=UsageCorrection("heron"))
    assert b"".join(map(parser.feed, lines)) + parser.finish() == b"".join(lines)
    odd = [b'data: {"usage": {"cache_read_input_tokens": "x"}}\n\n', b"data: {\n\n", b"data: []\n\n"]
    parser = ResponseParser(dialect, stream=True, usage=USAGE)
    assert b"".join(map(parser.feed, odd)) + parser.finish() == b"".join(odd)
