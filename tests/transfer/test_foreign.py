"""Calls and results of tools in other applications' exports."""

import html
import json
from typing import Any

import pytest

from kvchat.chat.record.messages import Message, prompt_messages
from kvchat.transfer.exporting import ExportForm, export_file
from kvchat.transfer.foreign import foreign_parser
from kvchat.transfer.importing import import_paths
from tests.transfer.library import open_library

WEATHER, SUM = ("weather", '{"city": "Lisbon"}'), ("python", '{"input": "1 + 1"}')


def chatgpt() -> dict[str, Any]:
    def node(key, parent, role, kind, text, recipient="all", **metadata):
        content = {"content_type": kind} | ({"parts": [text]} if kind == "text" else {"text": text})
        author = {"role": role, "name": "python" if role == "tool" else None}
        message = {"author": author, "recipient": recipient, "content": content, "metadata": metadata}
        return key, {"id": key, "parent": parent, "message": message}

    failed = {"aggregate_result": {"status": "failed_with_in_kernel_exception"}}
    nodes = [
        node("q", None, "user", "text", "How warm is it?"),
        node("said", "q", "assistant", "text", "I look."),
        node("call", "said", "assistant", "text", WEATHER[1], "weather"),
        node("part 1", "call", "tool", "text", "21"),
        node("context", "part 1", "system", "text", "hidden", is_visually_hidden_from_conversation=True),
        node("part 2", "context", "tool", "text", "degrees"),
        node("code", "part 2", "assistant", "code", "1 + 1", "python"),
        node("error", "code", "tool", "execution_output", "no", **failed),
        node("end", "error", "assistant", "text", "Warm."),
    ]
    return {"title": "x", "conversation_id": "c", "current_node": "end", "mapping": dict(nodes)}


def blocks(application: str) -> list[dict[str, Any]]:
    if application == "claude":
        call, result, names = "tool_use", "tool_result", ("id", "tool_use_id", "input")
    elif application == "lm studio":
        call, result, names = "toolCallRequest", "toolCallResult", ("callId", "callId", "arguments")
    else:
        call, result, names = "function_call", "function_call_output", ("call_id", "call_id", "arguments")
    text = "output" if result == "function_call_output" else "content"
    made = [
        {"type": "text", "text": "I look."},
        {"type": call, names[0]: 1, "name": "weather", names[2]: {"city": "Lisbon"}},
        {"type": call, names[0]: 2, "name": "python", names[2]: "1 + 1"},
        {"type": result, names[1]: 2, text: "no", "is_error": True},
        {"type": result, names[1]: 1, text: [{"type": "text", "text": "21"}, {"type": "text", "text": "degrees"}]},
        {"type": "text", "text": "Warm."},
    ]
    if application == "open webui":
        return [{"type": "message", "content": [block]} if block["type"] == "text" else block for block in made]
    return made


def claude(content: Any = None) -> dict[str, Any]:
    messages = [
        {"uuid": "q", "sender": "human", "text": "How warm is it?"},
        {"uuid": "a", "sender": "assistant", "content": blocks("claude") if content is None else content},
        {"uuid": "next", "sender": "human", "text": "Thanks", "parent_message_uuid": "a"},
    ]
    return {"uuid": "c", "name": "x", "chat_messages": messages}


def open_webui(**reply: Any) -> dict[str, Any]:
    messages = {
        "q": {"role": "user", "content": "How warm is it?"},
        "a": {"parentId": "q", "role": "assistant"} | reply,
        "next": {"parentId": "a", "role": "user", "content": "Thanks"},
    }
    return {"id": "c", "title": "x", "chat": {"history": {"messages": messages, "currentId": "next"}}}


def details(id: str, name: str, arguments: str, result: str) -> str:
    fields = {"done": "true", "id": id, "name": name, "arguments": json.dumps(arguments), "result": json.dumps(result)}
    attributes = " ".join(f'{name}="{html.escape(value)}"' for name, value in fields.items())
    return f'<details type="tool_calls" {attributes}>\n<summary>Tool Executed</summary>\n</details>\n'


def native_open_webui() -> dict[str, Any]:
    calls = [
        {"id": str(number), "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate((WEATHER, SUM))
    ]
    messages = [
        {"role": "user", "content": "How warm is it?"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "no"},
        {"role": "tool", "tool_call_id": "0", "content": "21\n\ndegrees"},
        {"role": "assistant", "content": "Warm."},
    ]
    return {"id": "c", "title": "x", "chat": {"messages": messages}}


def lm_studio() -> dict[str, Any]:
    steps = [{"type": "contentBlock", "content": [block]} for block in blocks("lm studio")]
    user = {"role": "user", "content": [{"type": "text", "text": "How warm is it?"}]}
    versions = [[user], [{"type": "multiStep", "role": "assistant", "steps": steps}]]
    return {"name": "x", "messages": [{"versions": made, "currentlySelected": 0} for made in versions]}


def write(path: Any, entry: Any) -> Any:
    path.write_text(json.dumps([entry]), "utf-8")
    return path


def imported_branch(folder: Any, entry: Any) -> list[Message]:
    database = open_library(folder)
    report = import_paths(database, [write(folder / "x.json", entry)])
    assert report.problems == ()
    branch = database.branch(report.imported[0])
    database.close()
    assert_each_call_has_one_result(branch)
    return branch


def assert_each_call_has_one_result(branch: list[Message]) -> None:
    waiting: list[str] = []
    for message in prompt_messages(branch):
        if message.role == "tool":
            waiting.remove(message.calls[0].id)
        else:
            assert waiting == []
            waiting = [call.id for call in message.calls]
            assert len(set(waiting)) == len(waiting)


def shape(branch: list[Message]) -> list[tuple[str, str, str, tuple[tuple[str, str], ...]]]:
    return [(m.role.value, m.state.value, m.content, tuple((c.name, c.arguments) for c in m.calls)) for m in branch]


TOGETHER = [
    ("user", "complete", "How warm is it?", ()),
    ("assistant", "complete", "I look.", (WEATHER, SUM)),
    ("tool", "failed", "no", (SUM,)),
    ("tool", "complete", "21\n\ndegrees", (WEATHER,)),
    ("assistant", "complete", "Warm.", ()),
]
ONE_BY_ONE = [
    TOGETHER[0],
    ("assistant", "complete", "I look.", (WEATHER,)),
    TOGETHER[3],
    ("assistant", "complete", "", (SUM,)),
    TOGETHER[2],
    TOGETHER[4],
]
SAID = ("assistant", "complete", "I look.", ())  # ChatGPT exports calls apart from the text
NEXT = ("user", "complete", "Thanks", ())
MARKUP = "I look.\n" + details("1", *WEATHER, "21\n\ndegrees") + details("2", *SUM, "no") + "Warm."


def all_complete(expected: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [(role, "complete", *rest) for role, _state, *rest in expected]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (chatgpt(), [TOGETHER[0], SAID, ("assistant", "complete", "", (WEATHER,)), *ONE_BY_ONE[2:]]),
        (claude(), [*TOGETHER, NEXT]),
        (open_webui(content=MARKUP), [*all_complete(ONE_BY_ONE), NEXT]),
        (open_webui(content="Warm.", output=blocks("open webui")), [*TOGETHER, NEXT]),
        (native_open_webui(), all_complete(TOGETHER)),
        (lm_studio(), TOGETHER),
    ],
    ids=["ChatGPT", "Claude", "Open WebUI", "Open WebUI's output", "Open WebUI's messages", "LM Studio"],
)
def test_calls_and_results(tmp_path, entry, expected):
    """The branch keeps its order, also through kvchat's own export."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    branch = imported_branch(tmp_path / "a", entry)
    assert shape(branch) == expected
    database, file = open_library(tmp_path / "a"), tmp_path / "own.json"
    export_file(database, [branch[0].conversation_id], ExportForm.JSON, file)
    database.close()
    other = open_library(tmp_path / "b")
    report = import_paths(other, [file])
    assert other.branch(report.imported[0]) == branch
    other.close()


CALL, RESULT = {"type": "tool_use", "name": "weather", "input": {}}, {"type": "tool_result", "content": "21"}
ONE_CALL = [("assistant", "", (("weather", "{}"),)), ("tool", "21", (("weather", "{}"),))]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([RESULT, {"type": "text", "text": "Warm."}], [("tool", "21", ()), ("assistant", "Warm.", ())]),
        ([CALL, RESULT], ONE_CALL),
        ([CALL | {"id": 1}, RESULT | {"tool_use_id": 2}], [*ONE_CALL[:1], ("tool", "21", ())]),
        ([CALL | {"id": "x"}] * 2 + [RESULT | {"tool_use_id": "x"}] * 2, "two"),
        ([CALL | {"id": []}, RESULT | {"tool_use_id": {}, "content": [7, {}, None, {"text": "21"}]}], None),
        ([{"type": "tool_use", "id": "\ud800", "name": 7, "input": [float("nan")]}, RESULT, {"type": []}, 7], None),
        ([CALL | {"input": {"a": float("nan")}}, RESULT], None),
        ([CALL | {"input": "[" * 100_000, "name": "x" * 1000}, RESULT], None),
        ([{"type": "text", "text": "x"}, CALL, RESULT] * 2000, None),
        ([CALL | {"id": "x"}] * 2000 + [RESULT | {"tool_use_id": "x"}] * 4000, None),
    ],
)
def test_hostile_calls_lose_nothing_else(tmp_path, content, expected):
    branch = imported_branch(tmp_path, claude(content))
    assert [branch[0].content, branch[-1].content] == ["How warm is it?", "Thanks"]
    found = [(m.role.value, m.content, tuple((c.name, c.arguments) for c in m.calls)) for m in branch[1:-1]]
    if expected == "two":
        expected = [("assistant", "", ONE_CALL[0][2] * 2), ONE_CALL[1], ONE_CALL[1]]
    assert expected is None or found == expected
    calls = [call for message in prompt_messages(branch) if message.role == "assistant" for call in message.calls]
    assert not any("NaN" in call.arguments for call in calls)  # engines refuse it


def test_repeated_and_unpaired_ids(tmp_path):
    """Messages with one id do not form a loop; a lone surrogate in an id is replaced."""
    entry = claude()
    entry["uuid"] = entry["chat_messages"][1]["uuid"] = "\ud800"
    entry["chat_messages"][2] = {"uuid": "q", "sender": "human", "text": "Thanks"}
    assert shape(imported_branch(tmp_path, entry)) == [*TOGETHER, NEXT]


@pytest.mark.parametrize(
    "content",
    ['<details type="tool_calls" ' + "a" * 300_000 + "></details>", '<details type="tool_calls">' * 50_000, MARKUP],
)
def test_markup_takes_linear_time(content):
    """A user's own markup is kept as text."""
    entry = open_webui(content=content, tool_calls=[7, {"function": 7}], output=7)
    entry["chat"]["history"]["messages"]["q"]["content"] = content
    parser = foreign_parser(entry)
    assert parser is not None
    assert parser(entry, "x")["messages"][0]["content"] == content
