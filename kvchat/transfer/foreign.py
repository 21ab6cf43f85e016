"""Parsers that convert the exports of other applications, in their formats of 2025, to rows (see `rows.py`)."""

import html
import itertools
import json
import math
import re
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from kvchat.chat.record.messages import MessageState, Role, parse_arguments
from kvchat.chat.record.titles import title_from
from kvchat.text.language import _
from kvchat.transfer.rows import BadConversation, Row, without_surrogates

_NAMESPACE = uuid.UUID("8a9c7e5b-5a43-4d6f-9a35-3f1c4c1f2b7e")  # the same export always gives the same ids
_ROLES = {role.value: role for role in Role} | {"human": Role.USER}
# Open WebUI's markup for reasoning and calls in a reply: the text is escaped, and quoted in reasoning.
_DETAILS = re.compile(r'<details type="(reasoning|tool_calls)"([^<>]*)>\s*(?:<summary>[^<]*</summary>)?')
_DETAILS_END = re.compile(r"</details>\s*")
_ATTRIBUTE = re.compile(r'(?<![a-z])([a-z]+)="([^"]*)"')


@dataclass(frozen=True)
class _Message:
    key: str = ""
    parent: str | None = None
    role: Role | None = None
    text: str = ""
    thinking: str = ""
    at: float | None = None  # seconds since 1970
    calls: tuple[tuple[str, str, str], ...] = ()  # the export's id or "", name, arguments as JSON text
    answers: str = ""  # of a tool's result: the export's id of the call
    failed: bool = False

    @property
    def is_shown(self) -> bool:
        says_something = self.text.strip() or self.thinking.strip()
        return bool(self.role and (self.calls or says_something))


def _call_part(id: Any, name: Any, arguments: Any) -> _Message:
    if isinstance(arguments, str) and parse_arguments(arguments) is None:
        arguments = {"input": arguments}  # ChatGPT's tools take plain text, templates only objects
    text = arguments if isinstance(arguments, str) else json.dumps(_as_dict(arguments), ensure_ascii=False)
    return _Message(calls=((_as_key(id) or "", _as_text(name)[:200] or "tool", text or "{}"),))


def _result_part(id: Any, content: Any, *, failed: bool = False) -> _Message:
    parts = content if isinstance(content, list) else [content]
    return _Message(role=Role.TOOL, text=_join_parts(parts), answers=_as_key(id) or "", failed=failed)


def foreign_parser(entry: Any) -> Callable[[Any, str], Row] | None:
    """Return the parser for an entry of this shape, or None. A parser takes the entry and a fallback id."""
    if not isinstance(entry, dict):
        return None
    if isinstance(entry.get("mapping"), dict):
        return parse_chatgpt
    if isinstance(entry.get("chat_messages"), list):
        return parse_claude
    if isinstance(entry.get("chat"), dict):
        return parse_open_webui
    messages = entry.get("messages")
    if isinstance(messages, list) and any(isinstance(m, dict) and "versions" in m for m in messages):
        return parse_lm_studio
    return None


def parse_chatgpt(entry: Mapping[str, Any], name: str) -> Row:
    """Parse a ChatGPT conversation: `mapping` is the message tree, `current_node` its selected leaf."""
    messages = []
    for key, node in entry["mapping"].items():
        message = _as_dict(_as_dict(node).get("message"))
        role = _ROLES.get(_as_text(_as_dict(message.get("author")).get("role")))
        hidden = _as_dict(message.get("metadata")).get("is_visually_hidden_from_conversation") is True
        content, recipient = _as_dict(message.get("content")), _as_text(message.get("recipient")) or "all"
        text, thinking = _parse_chatgpt_content(content)
        raw, part = (
            _as_text(content.get("text") or content.get("result")) or text,
            _Message(text=text, thinking=thinking),
        )
        if role is Role.ASSISTANT and recipient != "all" and content.get("content_type") in ("code", "text"):
            part = _call_part("", recipient, raw)
        elif role is Role.TOOL:
            status = _as_text(_as_dict(_as_dict(message.get("metadata")).get("aggregate_result")).get("status"))
            failed = content.get("content_type") == "system_error" or status.startswith("failed")
            part = _result_part("", raw, failed=failed)
        parent, at = _as_key(_as_dict(node).get("parent")), _parse_time(message.get("create_time"))
        messages.append(replace(part, key=key, parent=parent, role=None if hidden else role, at=at))
    source_id = _as_text(entry.get("conversation_id")) or _as_text(entry.get("id")) or name
    times = (_parse_time(entry.get("create_time")), _parse_time(entry.get("update_time")))
    return _build_row(
        "chatgpt", source_id, _as_text(entry.get("title")), times, messages, _as_key(entry.get("current_node"))
    )


def parse_claude(entry: Mapping[str, Any], name: str) -> Row:
    """Parse an entry of Claude's conversations.json. In newer exports, `chat_messages` name their parents."""
    messages: list[_Message] = []
    known_ids: set[str] = set()
    for number, message in enumerate(map(_as_dict, entry["chat_messages"])):
        key = _as_key(message.get("uuid")) or str(number)
        key = f"{key}:{number}" if key in known_ids else key
        parent = _as_key(message.get("parent_message_uuid"))
        if parent not in known_ids:
            parent = messages[-1].key if messages and "parent_message_uuid" not in message else None
        blocks = [_as_dict(block) for block in _as_list(message.get("content"))]
        files = [
            f"{_as_text(file.get('file_name')) or 'attachment'}:\n\n{content}"
            for file in map(_as_dict, _as_list(message.get("attachments")))
            if (content := _as_text(file.get("extracted_content"))).strip()
        ]
        role, at = _ROLES.get(_as_text(message.get("sender"))), _parse_time(message.get("created_at"))
        parts = [*(_Message(text=file) for file in files), *map(_parse_block, blocks)]
        if not any(part.text or part.calls or part.role for part in parts[len(files) :]):
            parts.append(_Message(text=_as_text(message.get("text"))))
        messages += _split_message(_Message(key, parent, role, at=at), parts)
        known_ids.add(key)
    times = (_parse_time(entry.get("created_at")), _parse_time(entry.get("updated_at")))
    leaf = messages[-1].key if messages else None
    return _build_row("claude", _as_text(entry.get("uuid")) or name, _as_text(entry.get("name")), times, messages, leaf)


def parse_open_webui(entry: Mapping[str, Any], name: str) -> Row:
    """Parse an entry of Open WebUI's export: the tree `chat.history` or, in older exports, `chat.messages`."""
    chat = entry["chat"]
    history = _as_dict(chat.get("history"))
    tree = _as_dict(history.get("messages"))
    messages: list[_Message] = []
    before = None
    for number, (key, node) in enumerate(tree.items() or ((None, m) for m in _as_list(chat.get("messages")))):
        message = _as_dict(node)
        parent = _as_key(message.get("parentId")) if tree else before
        role = _ROLES.get(_as_text(message.get("role")))
        before = key or str(number)
        whole = _Message(before, parent, role, at=_parse_time(message.get("timestamp")))
        messages += _split_message(whole, _parse_open_webui_parts(message))
    leaf = _as_key(history.get("currentId")) if tree else (messages[-1].key if messages else None)
    times = (_parse_time(entry.get("created_at")), _parse_time(entry.get("updated_at")))
    title = _as_text(entry.get("title")) or _as_text(chat.get("title"))
    return _build_row("open-webui", _as_text(entry.get("id")) or name, title, times, messages, leaf)


def parse_lm_studio(entry: Mapping[str, Any], name: str) -> Row:
    """Parse LM Studio's *.conversation.json; each message follows the selected version of the previous one."""
    messages: list[_Message] = []
    parent: str | None = None
    system = _as_text(entry.get("systemPrompt"))
    if system.strip():
        messages.append(_Message("system", None, Role.SYSTEM, system))
        parent = "system"
    for number, message in enumerate(map(_as_dict, entry["messages"])):
        versions = [_as_dict(version) for version in _as_list(message.get("versions"))]
        chosen = message.get("currentlySelected", 0)
        for i, version in enumerate(versions):
            parts: list[_Message] = []
            for step in [_as_dict(step) for step in _as_list(version.get("steps"))] or [version]:
                found = [_parse_block(_as_dict(block)) for block in _as_list(step.get("content"))]
                thinks = _as_dict(step.get("style")).get("type") == "thinking"
                parts += [
                    replace(part, text="", thinking=part.text) if thinks and not part.role else part for part in found
                ]
            role = _ROLES.get(_as_text(version.get("role")))
            messages += _split_message(_Message(f"{number}.{i}", parent, role), parts)
        if versions:
            parent = f"{number}.{chosen if isinstance(chosen, int) and 0 <= chosen < len(versions) else 0}"
    started_at = _parse_time(entry.get("createdAt"))
    return _build_row("lm-studio", name, _as_text(entry.get("name")), (started_at, started_at), messages, parent)


def _build_row(
    application: str,
    source_id: str,
    title: str,
    times: tuple[float | None, float | None],
    messages: Iterable[_Message],
    leaf: str | None,
) -> Row:
    by_key = _pair_calls(messages)
    shown = {key: (m, m.role) for key, m in by_key.items() if m.role and m.is_shown}
    if not shown:
        raise BadConversation(_("it has no messages"))
    conversation_id, find_shown = _own_id(f"{application}:{source_id}"), _ancestor_finder(by_key, shown)

    def message_id(key: str | None) -> str | None:
        ancestor = find_shown(key)
        return None if ancestor is None else _own_id(f"{conversation_id}:{ancestor}")

    started_at = times[0] or min((m.at for m in by_key.values() if m.at), default=datetime.now(UTC).timestamp())
    rows = [
        {
            "id": message_id(key),
            "parent_id": message_id(message.parent),
            "role": role.value,
            "content": message.text,
            "thinking": message.thinking,
            "state": (MessageState.FAILED if message.failed else MessageState.COMPLETE).value,
            "tool": json.dumps({"calls": message.calls}, ensure_ascii=False) if message.calls else None,
            "created_at": message.at or started_at,
        }
        for key, (message, role) in shown.items()
    ]
    question = next((m.text for m in by_key.values() if m.role is Role.USER and m.text.strip()), "")
    return {
        "id": conversation_id,
        "title": title.strip() or title_from(question),
        "title_by_user": int(bool(title.strip())),
        "created_at": started_at,
        "updated_at": times[1] or max((m.at for m in by_key.values() if m.at), default=started_at),
        "leaf_id": message_id(leaf) or rows[-1]["id"],
        "messages": rows,
    }


def _ancestor_finder(by_key: Mapping[str, _Message], keys: Iterable[str]) -> Callable[[str | None], str | None]:
    """Return a function that finds the nearest of `keys`: the key itself or that of an ancestor."""
    nearest: dict[str, str | None] = {key: key for key in keys}

    def find(key: str | None) -> str | None:
        passed = []
        while key is not None and key not in nearest:
            nearest[key] = None  # placeholder: stops at cycles
            passed.append(key)
            key = by_key[key].parent if key in by_key else None
        ancestor = None if key is None else nearest[key]
        nearest.update(dict.fromkeys(passed, ancestor))
        return ancestor

    return find


def _pair_calls(messages: Iterable[_Message]) -> dict[str, _Message]:
    """Give calls unique ids, nine characters long for Mistral's templates, and results their calls.

    A call's later results, as of ChatGPT's search, are added to the first one.
    """
    by_key = {message.key: message for message in messages}
    shown = [key for key, message in by_key.items() if message.is_shown and message.role is not Role.TOOL]
    find_reply = _ancestor_finder(by_key, shown)
    waiting: defaultdict[tuple[str | None, str], deque[tuple[str, str, str]]] = defaultdict(deque)
    numbers = itertools.count(1)
    for key, message in by_key.items():
        calls = tuple((f"{next(numbers):09}", name, arguments) for _id, name, arguments in message.calls)
        for (export_id, *_rest), call in zip(message.calls, calls, strict=True):
            waiting[key, export_id].append(call)
        by_key[key] = replace(message, calls=calls)
    results: dict[str, str] = {}  # key of the first result by id of the call
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for key, message in by_key.items():
        if message.role is Role.TOOL and (found := waiting.get((find_reply(key), message.answers))):
            call = found.popleft() if len(found) > 1 else found[0]
            first = results.setdefault(call[0], key)
            texts[first].append(message.text)
            by_key[key] = replace(message, text="", calls=(call,) if key == first else ())
    return by_key | {key: replace(by_key[key], text="\n\n".join(filter(None, found))) for key, found in texts.items()}


def _split_message(message: _Message, parts: Iterable[_Message]) -> Iterator[_Message]:
    """Split a message at the results in it. The last piece keeps its key, so its replies follow that piece."""
    pieces: list[list[_Message]] = []
    for part in parts:
        if not pieces or Role.TOOL in (part.role, pieces[-1][0].role):
            pieces.append([])
        pieces[-1].append(part)
    parent = message.parent
    for number, piece in enumerate(pieces or [[_Message()]], 1):
        key = message.key if number >= len(pieces) else f"{message.key}/{number}"
        text, thinking = ("\n\n".join(filter(None, map(attrgetter(name), piece))) for name in ("text", "thinking"))
        calls = tuple(call for part in piece for call in part.calls if message.role is Role.ASSISTANT)
        whole = replace(piece[0], key=key, parent=parent, role=piece[0].role or message.role, at=message.at)
        yield replace(whole, text=text, thinking=thinking, calls=calls)
        parent = key


def _parse_block(block: Mapping[str, Any]) -> _Message:
    """Parse a content block of Claude or LM Studio, or an item of Open WebUI's `output`."""

    def first(*names: str) -> Any:
        return next((block[name] for name in names if name in block), None)

    kind, id = block.get("type"), first("call_id", "callId", "tool_use_id", "id")
    if kind in ("tool_use", "toolCallRequest", "function_call"):
        return _call_part(id, block.get("name"), first("input", "arguments", "parameters"))
    if kind in ("tool_result", "toolCallResult", "function_call_output"):
        return _result_part(id, first("content", "output"), failed=block.get("is_error") is True)
    if kind == "message":
        return _Message(text=_join_parts(_as_list(block.get("content"))))
    text, thinking = (_as_text(block.get(name)) if kind == name else "" for name in ("text", "thinking"))
    return _Message(text=text, thinking=thinking)


def _own_id(text: str) -> str:
    return uuid.uuid5(_NAMESPACE, without_surrogates(text)).hex


def _parse_chatgpt_content(content: Mapping[str, Any]) -> tuple[str, str]:
    kind = content.get("content_type")
    if kind == "thoughts":
        thoughts = [_as_dict(thought) for thought in _as_list(content.get("thoughts"))]
        return "", "\n\n".join(_as_text(t.get("content")) or _as_text(t.get("summary")) for t in thoughts)
    if kind in ("reasoning_recap", "user_editable_context"):
        return "", ""
    if kind in ("code", "execution_output"):
        text = _as_text(content.get("text"))
        return (f"```\n{text}\n```" if text.strip() else ""), ""
    return _join_parts(_as_list(content.get("parts"))), ""


def _join_parts(parts: Iterable[Any]) -> str:
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            kind = _as_text(part.get("content_type")) or _as_text(part.get("type")) or "attachment"
            texts.append(_as_text(part.get("text")) or f"[{kind}]")
    return "\n\n".join(filter(None, texts))


def _parse_open_webui_parts(message: Mapping[str, Any]) -> list[_Message]:
    if message.get("role") == "tool":
        return [_result_part(message.get("tool_call_id"), message.get("content"))]
    text = _as_text(message.get("content"))
    if message.get("role") != "assistant":
        return [_Message(text=text)]
    parts: list[_Message] = []
    at = 0
    while begin := _DETAILS.search(text, at):
        end = _DETAILS_END.search(text, begin.end())
        if end is None:
            break
        parts.append(_Message(text=text[at : begin.start()].strip("\n")))
        body, at = html.unescape(text[begin.end() : end.start()].strip()), end.end()
        if begin[1] == "reasoning":
            lines = (line.removeprefix("> ").removeprefix(">") for line in body.splitlines())
            parts.append(_Message(thinking="\n".join(lines)))
            continue
        fields = {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(begin[2])}
        parts.append(_call_part(fields.get("id"), fields.get("name"), _unquote(fields.get("arguments", ""))))
        if fields.get("done") != "false":
            parts.append(_result_part(fields.get("id"), _unquote(fields.get("result", body))))
    parts.append(_Message(text=text[at:]))
    output = [_as_dict(item) for item in _as_list(message.get("output"))]
    if any(item.get("type") == "function_call" for item in output) and not any(part.calls for part in parts):
        parts = [part for part in parts if part.thinking] + [_parse_block(item) for item in output]
    for call in map(_as_dict, _as_list(message.get("tool_calls"))):
        parts.append(_parse_block(call | _as_dict(call.get("function")) | {"type": "function_call"}))
    return parts


def _unquote(text: str) -> str:
    """Return the text in a JSON string: Open WebUI encodes texts twice."""
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return decoded if isinstance(decoded, str) else text


def _parse_time(value: Any) -> float | None:
    """Convert a Unix time in seconds or milliseconds, or an ISO 8601 time, to Unix seconds, or None."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return value / 1000 if value > 1e11 else float(value)


def _as_key(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int) and value != "" else None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
