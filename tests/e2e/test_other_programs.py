"""Programs using the API server of `kvchat serve`: two sessions with a restart between, and all is warm."""

import contextlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kvchat.engine.process.plan import free_port
from tests.api_dialects import answer_text
from tests.e2e.home import Home, engine_arguments, notes
from tests.e2e.serving import TEMPLATE, Serving, serving
from tests.gateway import agents
from tests.models import starter_model
from tests.models import tiny_model as tiny

pytestmark = pytest.mark.e2e

SYSTEM = "Answer from these notes, or call a tool.\n" + notes(10)
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Ulm"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "It tells.", "parameters": CITY}}
NEW = 40  # tokens of the last question and its template
CALL: Any = {"name": "weather", "arguments": '{"city": "Ulm"}'}


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny("llama", heeds=True)


@contextlib.contextmanager
def serving_any_model(home: Home, model: Path, port: int = 0) -> Iterator[Serving]:
    """Serve with a template for tools, accepting any model name."""
    template = home.folder / "template.jinja"
    template_argument = f"--chat-template-file {template}"
    home.write_settings(context_size=16384, free_floor_bytes=0, api_any_model=True, engine_arguments=template_argument)
    template.write_text(TEMPLATE, "utf-8")
    arguments = "--model", str(model), *engine_arguments("llama-server")
    with serving(home, *arguments, port=port or free_port("127.0.0.1")) as at:
        yield at
        assert at.end(signal.SIGINT) == 0
    assert "Traceback" not in at.errors.read_text("utf-8")


RESTORED = ("disk", "warm")  # the last program's state may be rebuilt already


def is_warm(request: dict[str, Any], *sources: str) -> bool:
    return bool(request["source"] in (sources or RESTORED) and request["cached"] >= request["prompt"] - NEW > 0)


def test_the_packages_of_openai_and_anthropic(tmp_path):
    """Their answers parse. A tool is called in the first session and answers in the second: warm, and then hot."""
    home, model = Home(tmp_path / "home"), starter_model()
    with serving_any_model(home, model) as server:
        chats = {"openai": _openai(server), "responses": _responses(server), "anthropic": _anthropic(server)}
        assert {request["program"] for request in server.requests()} == {"openai-python", "anthropic-python"}
    home.make_prefill_expensive()
    with serving_any_model(home, model) as server:
        for name, continue_chat in chats.items():
            for sources, turn in zip((RESTORED, ("hot",)), continue_chat(server), strict=True):
                request = server.requests()[-1]
                assert is_warm(request, *sources), json.dumps([name, turn, request])


ContinueChat = Callable[[Serving], Iterator[str]]  # sends the tool's answer, then another question


def _openai_client(server: Serving) -> Any:
    from openai import OpenAI  # takes a second

    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def _anthropic_client(server: Serving) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=server.url, api_key="none", max_retries=0)


def _openai(server: Serving) -> ContinueChat:
    client = _openai_client(server)
    (model,) = (model.id for model in client.models.list())
    assert model == starter_model().stem
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for name in ("one", "two"):  # the model is small: it repeats what was done before
        called = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": name, "type": "function", "function": CALL}],
        }
        messages += [{"role": "user", "content": "Weather in Ulm?"}, called]
        messages += [
            {"role": "tool", "tool_call_id": name, "content": "Rain."},
            {"role": "assistant", "content": "Rain."},
        ]
    messages += [{"role": "user", "content": "Weather in Ulm?"}]
    greedy: Any = {"model": model, "max_tokens": 40, "temperature": 0}

    raw = client.chat.completions.with_raw_response.create(messages=messages, **greedy)
    whole = raw.parse()
    assert raw.headers["x-kvchat-source"] == "cold"
    assert whole.usage
    assert int(raw.headers["x-kvchat-prompt"]) == whole.usage.prompt_tokens
    streamed = client.chat.completions.create(messages=messages, stream=True, **greedy)
    words = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    assert words
    shaped: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    answer = client.chat.completions.create(messages=messages, response_format=shaped, **greedy)
    assert json.loads(answer.choices[0].message.content or "") == {"city": "Ulm"}

    called = client.chat.completions.create(messages=messages, tools=[TOOL], **greedy)
    (made,) = called.choices[0].message.tool_calls or ()
    assert made.type == "function"
    assert json.loads(made.function.arguments) == {"city": "Ulm"}
    parts = client.chat.completions.create(messages=messages, tools=[TOOL], stream=True, **greedy)
    calls = [call for chunk in parts if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(call.function.arguments or "" for call in calls if call.function) == made.function.arguments
    messages += [called.choices[0].message.model_dump(exclude_none=True)]
    text = client.completions.create(prompt=SYSTEM, **greedy | {"model": "gpt-4o"})
    assert text.choices[0].text
    assert text.model == model

    def continue_chat(server: Serving) -> Iterator[str]:
        client = _openai_client(server)
        messages.append({"role": "tool", "tool_call_id": made.id, "content": "Rain."})
        after = client.chat.completions.create(messages=messages, tools=[TOOL], **greedy).choices[0].message
        yield "answered"
        messages.extend([after.model_dump(exclude_none=True), {"role": "user", "content": "And?"}])
        client.chat.completions.create(messages=messages, tools=[TOOL], **greedy)
        yield "asked again"

    return continue_chat


def _responses(server: Serving) -> ContinueChat:
    client = _openai_client(server)
    asked: Any = {
        "model": "gpt-5-codex",
        "instructions": "Be brief. " + SYSTEM,
        "max_output_tokens": 40,
        "temperature": 0,
        "tools": [{"type": "function", "strict": True, **TOOL["function"]}],
    }
    messages: list[Any] = []
    for name in ("one", "two"):
        messages += [{"role": "user", "content": "Weather in Ulm?"}, {"type": "function_call", "call_id": name, **CALL}]
        messages += [{"type": "function_call_output", "call_id": name, "output": "Rain."}]
        messages += [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]}]
    messages += [{"role": "user", "content": "Weather in Ulm?"}]
    whole = client.responses.create(input=messages, **asked)
    made = next(item for item in whole.output if item.type == "function_call")
    assert json.loads(made.arguments) == {"city": "Ulm"}
    events = list(client.responses.create(input=messages, stream=True, **asked))
    last = events[-1]
    assert last.type == "response.completed"
    parts = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(parts) == made.arguments
    messages += whole.model_dump(exclude_none=True)["output"]

    def continue_chat(server: Serving) -> Iterator[str]:
        client = _openai_client(server)
        messages.append({"type": "function_call_output", "call_id": made.call_id, "output": "Rain."})
        after = client.responses.create(input=messages, **asked)
        yield "answered"
        messages.extend([*after.model_dump(exclude_none=True)["output"], {"role": "user", "content": "And?"}])
        client.responses.create(input=messages, **asked)
        yield "asked again"

    return continue_chat


def _anthropic(server: Serving) -> ContinueChat:
    client = _anthropic_client(server)
    asked: Any = {
        "model": "claude",
        "system": "Heed the notes. " + SYSTEM,
        "max_tokens": 40,
        "extra_body": {"temperature": 0},
    }
    messages: list[Any] = []
    for name in ("one", "two"):
        use = {"type": "tool_use", "id": name, "name": "weather", "input": {"city": "Ulm"}}
        result = {"type": "tool_result", "tool_use_id": name, "content": "Rain."}
        messages += [{"role": "user", "content": "Weather in Ulm?"}, {"role": "assistant", "content": [use]}]
        messages += [{"role": "user", "content": [result]}, {"role": "assistant", "content": "Rain."}]
    messages += [{"role": "user", "content": "Weather in Ulm?"}]
    counted = client.messages.count_tokens(model="any", system=asked["system"], messages=messages)
    whole = client.messages.create(messages=messages, **asked)
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    with client.messages.stream(messages=messages, **asked) as stream:
        assert "".join(stream.text_stream) == stream.get_final_text()
    tool: Any = {"name": "weather", "description": "It tells.", "input_schema": CITY}
    called = client.messages.create(messages=messages, tools=[tool], **asked)
    used = next(block for block in called.content if block.type == "tool_use")
    assert used.input == {"city": "Ulm"}
    messages += [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in called.content]}]

    def continue_chat(server: Serving) -> Iterator[str]:
        client = _anthropic_client(server)
        messages.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.id, "content": "Rain."}]}
        )
        after = client.messages.create(messages=messages, tools=[tool], **asked)
        yield "answered"
        messages.append(
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in after.content]}
        )
        client.messages.create(messages=[*messages, {"role": "user", "content": "And?"}], tools=[tool], **asked)
        yield "asked again"

    return continue_chat


AGENTS: dict[str, tuple[str, Callable[..., agents.Body], str]] = {
    "Claude Code": ("/v1/messages", agents.claude_code, "max_tokens"),
    "Codex": ("/v1/responses", agents.codex, "max_output_tokens"),
    "Cline": ("/v1/chat/completions", agents.cline, "max_tokens"),
    "Aider": ("/v1/chat/completions", agents.aider, "max_tokens"),
    "OpenCode": ("/v1/chat/completions", agents.opencode, "max_tokens"),
}


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen35"])
def test_agents_of_every_kind_continue_after_a_restart(tmp_path, architecture):
    """Also with models whose states cannot be cut."""
    home, model = Home(tmp_path / "home"), tiny(architecture, heeds=True)
    with serving_any_model(home, model) as server:
        turns = {name: _turns(server, name) for name in AGENTS}
    home.make_prefill_expensive()
    with serving_any_model(home, model) as server:
        for name, messages in turns.items():
            _ask(server, name, *messages)
            request = server.requests()[-1]
            assert is_warm(request), json.dumps([name, request])


def _turns(server: Serving, name: str) -> list[agents.Body]:
    """Return an agent's messages after its first two requests."""
    messages: list[agents.Body] = []
    for text in ("And the lexer?", "And the printer?"):
        reply = _ask(server, name, *messages)
        messages += [_message(name, "assistant", reply), _message(name, "user", text)]
    return messages


def _message(name: str, role: str, text: str) -> agents.Body:
    if name != "Codex":
        return {"role": role, "content": text}
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _ask(server: Serving, name: str, *messages: agents.Body) -> str:
    path, shape, limit = AGENTS[name]
    body = shape(*messages) | {limit: 12, "temperature": 0}
    answer = httpx2.post(f"{server.url}{path}", json=body, timeout=240, headers={"user-agent": f"{name}/1.0"})
    assert answer.status_code == 200, answer.text
    server.requests()  # wait until its state is saved
    return answer_text(answer) or ""


def test_bench_compares_servers(tmp_path):
    """kvchat, the engine itself, and hearth if installed."""
    home, model = Home(tmp_path / "home"), tiny("llama", heeds=True)
    arguments = "--tokens", "1500", "--model", str(model), *engine_arguments("llama-server")
    figures = home.bench("gateway", *arguments)
    ours, engine = figures["servers"][:2]
    hearth = ["hearth"] if shutil.which("hearth") else []
    assert [server["name"] for server in figures["servers"]] == ["kvchat", "llama-server", *hearth]
    assert ours["restarted_read"] <= NEW, "the turn before each restart was saved to its end"
    assert engine["restarted_cached"] == 0
    assert ours["disk_ratio"] < 1.5
    assert engine["overhead_ms"] is None
    assert not list((home.folder / "cache").glob("bench-*"))
