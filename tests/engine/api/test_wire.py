import json

import pytest

from kvchat.engine.api import wire
from kvchat.engine.api.errors import EngineRefused
from kvchat.engine.api.wire import ChatChunk, ChatMessage, PromptProgress, Sampling, Timings

# Events of a real llama-server (b11434), reduced to the fields kvchat reads.
PROGRESS = (
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"id":"chatcmpl-1",'
    '"object":"chat.completion.chunk","prompt_progress":{"total":40,"cache":12,"processed":40,"time_ms":174.0}}'
)
TOKEN = (
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"content":" Red"}}],"timings":{"cache_n":12,"prompt_n":28,'
    '"prompt_ms":174.896,"prompt_per_second":160.1,"predicted_n":2,"predicted_ms":19.5,"predicted_per_second":102.5}}'
)


def test_events() -> None:
    assert wire.parse_event(PROGRESS) == ChatChunk(progress=PromptProgress(total=40, cache=12, processed=40))
    chunk = wire.parse_event(TOKEN)
    assert chunk == ChatChunk(text=" Red", timings=Timings(12, 28, 174.896, 2, 19.5))
    assert chunk.timings.prompt_tokens == 40
    thought = wire.parse_event('{"choices":[{"delta":{"reasoning_content":"hm"}}]}')
    assert thought == ChatChunk(thinking="hm")
    assert wire.parse_event('{"choices":[{"finish_reason":"length","delta":{}}]}') == ChatChunk(finish_reason="length")
    for last in ("[DONE]", '{"content":"","stop":true}'):
        assert wire.parse_event(last) == ChatChunk(is_last=True)
    assert wire.parse_facts({"n_ctx": 512}).context_size == 512  # an older version


def test_irrelevant_events_and_invalid_timings_are_ignored() -> None:
    choices = ('{"choices":[]}', '{"choices":null}', '{"choices":[{"delta":null}]}')
    for data in ("", "[DONE]", "null", "[1]", "{", '{"x":1}', *choices):
        assert wire.parse_event(data).is_empty, data
    for timings in ("{}", "null", "3", '{"cache_n":5}', '{"prompt_n":"many"}', '{"prompt_n":3,"cache_n":null}'):
        chunk = wire.parse_event(f'{{"choices":[{{"delta":{{"content":"x"}}}}],"timings":{timings}}}')
        assert (chunk.text, chunk.timings is None or chunk.timings.cache_n == 0) == ("x", True), timings


@pytest.mark.parametrize(
    ("body", "status", "message", "kind"),
    [
        ('{"error":{"code":401,"message":"Invalid API Key","type":"t"}}', 401, "Invalid API Key", "t"),
        ('{"error":"plain"}', 502, "plain", ""),
        ('{"error":{}}', 502, "HTTP status 502", ""),
        ("<html>no", 502, "<html>no", ""),
        ("", 502, "HTTP status 502", ""),
        (b"\xff", 502, "�", ""),
    ],
)
def test_error_bodies(body: str | bytes, status: int, message: str, kind: str) -> None:
    error = wire.parse_error(body, 502)
    assert (error.status, error.message, error.kind) == (status, message, kind)
    if isinstance(body, str) and "error" in body:  # inside a stream
        assert isinstance(wire.parse_event(body), EngineRefused)


def test_tokens() -> None:
    assert wire.parse_tokens(b'{"tokens": [1, 2]}') == (1, 2)
    assert wire.parse_tokens(b'{"tokens": [{"id": 1}]}') is None
    assert wire.parse_tokens(b"{}") is None
    many = tuple(range(300_000))
    assert wire.parse_tokens(json.dumps({"tokens": many}).encode()) == many
    assert wire.parse_tokens(json.dumps({"tokens": [*many, "one"]}).encode()) is None
    assert wire.parse_tokens(b'{"tokens": []}') == ()
    assert wire.parse_tokens(b'{"tokens": [1, 2') is None


def test_chat_body() -> None:
    body = wire.chat_body(wire.prompt_body([ChatMessage("user", "hi")]), Sampling())
    assert body["id_slot"] == 0
    assert body["stream"] is body["cache_prompt"] is body["return_progress"] is body["timings_per_token"] is True
    assert not {"max_tokens", "temperature", "seed"} & body.keys()
    zeros = wire.chat_body({}, Sampling(max_tokens=5, temperature=0.0, seed=0))
    assert (zeros["max_tokens"], zeros["temperature"], zeros["seed"]) == (5, 0.0, 0)
    messages = [ChatMessage("user", "q"), ChatMessage("assistant", "a", "because")]
    assert wire.prompt_body(messages)["messages"] == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "because"},
    ]
