"""Parsers that convert the exports of other applications, in their formats of 2025, to rows (see `rows.py`)."""

import html
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvchat.chat.record.messages import MessageState, Role
from kvchat.chat.record.titles import title_from
from kvchat.text.language import _
from kvchat.transfer.rows import BadConversation, Row

_NAMESPACE = uuid.UUID("8a9c7e5b-5a43-4d6f-9a35-3f1c4c1f2b7e")  # the same export always gives the same ids
_ROLES = {"system": Role.SYSTEM, "user": Role.USER, "human": Role.USER, "assistant": Role.ASSISTANT}
# Open WebUI's markup for reasoning in a reply: the text is quoted and escaped.
_REASONING = re.compile(r'<details type="reasoning"[^<>]*>\s*(?:<summary>[^<]*</summary>)?')
_REASONING_END = re.compile(r"</details>\s*")


@dataclass(frozen=True)
class _Message:
    key: str
    parent: str | None
    role: Role | None
    text: str
    thinking: str = ""
    at: float | None = None  # seconds since 1970


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
        text, thinking = _parse_chatgpt_content(_as_dict(message.get("content")))
        at = _parse_time(message.get("create_time"))
        messages.append(
            _Message(key, _as_key(_as_dict(node).get("parent")), None if hidden else role, text, thinking, at)
        )
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
        parent = _as_key(message.get("parent_message_uuid"))
        if parent not in known_ids:
            parent = messages[-1].key if messages and "parent_message_uuid" not in message else None
        blocks = [_as_dict(block) for block in _as_list(message.get("content"))]
        text = _join_blocks(blocks, "text") or _as_text(message.get("text"))
        files = [
            f"{_as_text(file.get('file_name')) or 'attachment'}:\n\n{content}"
            for file in map(_as_dict, _as_list(message.get("attachments")))
            if (content := _as_text(file.get("extracted_content"))).strip()
        ]
        role, at = _ROLES.get(_as_text(message.get("sender"))), _parse_time(message.get("created_at"))
        whole = "\n\n".join(filter(None, (*files, text)))
        messages.append(_Message(key, parent, role, whole, _join_blocks(blocks, "thinking"), at))
        known_ids.add(key)
    times = (_parse_time(entry.get("created_at")), _parse_time(entry.get("updated_at")))
    leaf = messages[-1].key if messages else None
    return _build_row("claude", _as_text(entry.get("uuid")) or name, _as_text(entry.get("name")), times, messages, leaf)


def parse_open_webui(entry: Mapping[str, Any], name: str) -> Row:
    """Parse an entry of Open WebUI's export: the tree `chat.history` or, in older exports, `chat.messages`."""
    chat = entry["chat"]
    history = _as_dict(chat.get("history"))
    tree = _as_dict(history.get("messages"))
    messages = []
    before = None
    for number, (key, node) in enumerate(tree.items() or ((None, m) for m in _as_list(chat.get("messages")))):
        message = _as_dict(node)
        text, thinking = _split_reasoning(_as_text(message.get("content")))
        parent = _as_key(message.get("parentId")) if tree else before
        role = _ROLES.get(_as_text(message.get("role")))
        before = key or str(number)
        messages.append(_Message(before, parent, role, text, thinking, _parse_time(message.get("timestamp"))))
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
            texts: dict[bool, list[str]] = {False: [], True: []}  # True: thoughts
            for step in [_as_dict(step) for step in _as_list(version.get("steps"))] or [version]:
                thinks = _as_dict(step.get("style")).get("type") == "thinking"
                texts[thinks].append(_join_blocks(map(_as_dict, _as_list(step.get("content"))), "text"))
            text, thinking = ("\n\n".join(filter(None, texts[thinks])) for thinks in (False, True))
            messages.append(
                _Message(f"{number}.{i}", parent, _ROLES.get(_as_text(version.get("role"))), text, thinking)
            )
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
    by_key = {message.key: message for message in messages}
    shown = {key: (m, m.role) for key, m in by_key.items() if m.role and (m.text.strip() or m.thinking.strip())}
    if not shown:
        raise BadConversation(_("it has no messages"))
    conversation_id = uuid.uuid5(_NAMESPACE, f"{application}:{source_id}").hex
    nearest: dict[str, str | None] = {key: key for key in shown}

    def message_id(key: str | None) -> str | None:
        passed = []
        while key is not None and key not in nearest:
            nearest[key] = None  # placeholder: stops at cycles
            passed.append(key)
            key = by_key[key].parent if key in by_key else None
        ancestor = None if key is None else nearest[key]
        nearest.update(dict.fromkeys(passed, ancestor))
        return None if ancestor is None else uuid.uuid5(_NAMESPACE, f"{conversation_id}:{ancestor}").hex

    started_at = times[0] or min((m.at for m in by_key.values() if m.at), default=datetime.now(UTC).timestamp())
    rows = [
        {
            "id": message_id(key),
            "parent_id": message_id(message.parent),
            "role": role.value,
            "content": message.text,
            "thinking": message.thinking,
            "state": MessageState.COMPLETE.value,
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
    parts = []
    for part in _as_list(content.get("parts")):
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict):
            parts.append(_as_text(part.get("text")) or f"[{_as_text(part.get('content_type')) or 'attachment'}]")
    return "\n\n".join(filter(None, parts)), ""


def _join_blocks(blocks: Iterable[Mapping[str, Any]], kind: str) -> str:
    return "\n\n".join(filter(None, (_as_text(block.get(kind)) for block in blocks if block.get("type") == kind)))


def _split_reasoning(text: str) -> tuple[str, str]:
    texts: list[str] = []
    thoughts: list[str] = []
    at = 0
    while begin := _REASONING.search(text, at):
        end = _REASONING_END.search(text, begin.end())
        if end is None:
            break
        quoted = html.unescape(text[begin.end() : end.start()].strip())
        thoughts.append("\n".join(line.removeprefix("> ").removeprefix(">") for line in quoted.splitlines()))
        texts.append(text[at : begin.start()])
        at = end.end()
    return "".join((*texts, text[at:])), "\n\n".join(thoughts)


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
