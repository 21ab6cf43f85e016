"""Conversion of other dialects' requests to chat completions, as in llama-server itself.

llama-server renders only chat completions (`/apply-template`), and kvchat needs the same token ids. A body that
llama-server would refuse raises Unconvertible; the engine reports the error. tests/gateway/test_real_engine.py
compares both.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from kvchat.engine.api.wire import Picture

Json = dict[str, Any]
BILLING, STAMP = "x-anthropic-billing-header:", "cch="  # Claude Code; the engine normalizes the five stamp characters


_PLACEHOLDER = {"url": "data:image/png;base64,iVBORw=="}  # templates render without reading the image
_UNCOUNTABLE = ("input_audio", "input_video", "file")  # their tokens are unknown


class Unconvertible(ValueError):
    """The request cannot be converted to a chat completion."""


def from_messages(body: Mapping[str, Any]) -> Json:
    """Convert the parts of Anthropic's `/v1/messages` that affect the prompt to a chat completion."""
    messages: list[Any] = []
    system = body.get("system")
    if isinstance(system, str | list):
        texts = [system] if isinstance(system, str) else [_str(b, "text") for b in system if _kind(b) == "text"]
        messages.append({"role": "system", "content": "".join(map(_normalize_stamp, texts))})
    for message in _list(body.get("messages")):
        messages += _convert_message(_dict(message))
    chat: Json = {"messages": messages}
    if isinstance(tools := body.get("tools"), list):
        chat["tools"] = []
        for tool in map(_dict, tools):
            described = {"name": _str(tool, "name"), "description": _str(tool, "description")}
            function = described | {"parameters": tool.get("input_schema", {})}
            chat["tools"].append({"type": "function", "function": function})
    if isinstance(choice := body.get("tool_choice"), dict):
        if choice.get("type") == "auto":
            chat["tool_choice"] = "auto"
        elif choice.get("type") in ("any", "tool"):
            chat["tool_choice"] = "required"
    if "chat_template_kwargs" in body:
        chat["chat_template_kwargs"] = body["chat_template_kwargs"]
    return chat


def _convert_message(message: Json) -> list[Json]:
    """Convert an Anthropic message to a chat message with its text and tool calls, followed by its tool results."""
    content, role = message.get("content"), message.get("role")
    if "content" not in message and role == "assistant":
        return []
    if not isinstance(content, list):
        return [message]
    parts: list[Json] = []
    calls: list[Json] = []
    results: list[Json] = []
    thinking = ""
    for block in map(_dict, content):
        match block.get("type"):
            case "text":
                parts.append(block)
            case "thinking":
                thinking += str(block.get("thinking") or "")
            case "image":
                parts += _convert_image(block)
            case "tool_use":
                arguments = json.dumps(block.get("input", {}), separators=(",", ":"), ensure_ascii=False)
                function = {"name": _str(block, "name"), "arguments": arguments}
                calls.append({"id": _str(block, "id"), "type": "function", "function": function})
            case "tool_result":
                result = _convert_result(block.get("content"))
                results.append({"role": "tool", "tool_call_id": _str(block, "tool_use_id"), "content": result})
    converted: Json = {"role": role, "content": parts or ""}
    if calls:
        converted["tool_calls"] = calls
    if thinking:
        converted["reasoning_content"] = thinking
    return [*([converted] if parts or calls or thinking else []), *results]


def _convert_result(content: Any) -> Any:
    if isinstance(content, str):
        return content
    parts: list[Json] = []
    for block in map(_dict, _list(content)):
        if _kind(block) == "text":
            parts.append({"type": "text", "text": _str(block, "text")})
        elif _kind(block) == "image":
            parts += _convert_image(block)
    if any(part["type"] == "image_url" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _convert_image(block: Json) -> list[Json]:
    source = _dict(block.get("source", {}))
    match source.get("type"):
        case "base64":
            url = f"data:{source.get('media_type', 'image/jpeg')};base64,{_str(source, 'data')}"
        case "url":
            url = _str(source, "url")
        case _:
            return []
    return [{"type": "image_url", "image_url": {"url": url}}]


def _normalize_stamp(text: str) -> str:
    if not text.startswith(BILLING) or (at := text.find(STAMP, len(BILLING))) < 0:
        return text
    begin = at + len(STAMP)
    return text[:begin] + "fffff" + text[begin + 5 :] if text[begin + 5 : begin + 6] == ";" else text


def from_responses(body: Mapping[str, Any]) -> Json:
    """Convert the body of an OpenAI `/v1/responses` request to a chat completion request. Raises Unconvertible."""
    chat = {key: value for key, value in body.items() if key not in ("input", "instructions", "tools", "reasoning")}
    messages: list[Json] = []
    if "instructions" in body:
        messages.append({"role": "system", "content": body["instructions"] or ""})
    input_items = body.get("input")
    if isinstance(input_items, str):
        messages.append({"role": "user", "content": input_items})
    else:
        for item in _list(input_items):
            _append_item(messages, dict(_dict(item)))
    chat["messages"] = messages
    tools = []
    for tool in _list(body.get("tools", [])):
        if _kind(tool) == "function":
            described = {key: value for key, value in tool.items() if key != "type"}
            tools.append({"type": "function", "function": described | {"strict": tool.get("strict", True)}})
    if tools:
        chat["tools"] = tools
    if "effort" in (reasoning := body.get("reasoning") or {}):
        chat["reasoning_effort"] = reasoning["effort"]
    return chat


def _append_item(messages: list[Json], item: Json) -> None:
    """Convert an input item; append it to `messages` or merge it into the last assistant message."""
    last = messages[-1] if messages and messages[-1].get("role") == "assistant" else None
    content = item.get("content")
    if isinstance(content, str):
        content = [{"text": content, "type": "input_text"}]
    role, kind = item.get("role"), item.get("type")
    if role in ("user", "system", "developer") and isinstance(content, list):
        fields = {key: value for key, value in item.items() if key not in ("type", "status")}
        messages.append(
            fields | {"content": [_convert_part(_dict(part), "input_text", "input_image") for part in content]}
        )
    elif role == "assistant" and kind == "message":
        parts = [_convert_part(_dict(part), "output_text", "input_text", "refusal") for part in content or ()]
        if last is None:
            fields = {key: value for key, value in item.items() if key not in ("type", "status")}
            messages.append(fields | {"content": parts})
        else:
            last["content"] = [*(last["content"] if isinstance(last.get("content"), list) else ()), *parts]
    elif kind == "function_call":
        function = {"arguments": item["arguments"], "name": item["name"]}
        call = {"function": function, "id": item["call_id"], "type": "function"}
        if last is None:
            messages.append(last := {"role": "assistant"})
        last["tool_calls"] = [*last.get("tool_calls", ()), call]
    elif kind == "function_call_output":
        output = item.get("output")
        result = output if isinstance(output, str) else [_dict(part) | {"type": "text"} for part in _list(output)]
        messages.append({"content": result, "role": "tool", "tool_call_id": item.get("call_id")})
    elif kind == "reasoning" and isinstance(content, list) and content:
        if last is None:
            messages.append(last := {"role": "assistant", "content": []})
        last["reasoning_content"] = _dict(content[0]).get("text")
    else:
        raise Unconvertible(f"unsupported item type {kind}")


def _convert_part(part: Json, *allowed: str) -> Json:
    kind = part.get("type")
    if kind not in allowed:
        raise Unconvertible(f"unsupported content type {kind}")
    if kind == "input_image":
        return {"image_url": {"url": part.get("image_url")}, "type": "image_url"}
    if kind == "refusal":
        return {"refusal": part.get("refusal"), "type": "refusal"}
    return {"text": part.get("text"), "type": "text"}


def split_pictures(chat: Json) -> tuple[Json, tuple[Picture, ...]]:
    """Replace images with placeholders; return the chat and the images. Raises Unconvertible."""
    pictures: list[Picture] = []
    messages = chat.get("messages")
    if not isinstance(messages, list):
        raise Unconvertible("no messages")
    bare = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            message = message | {"content": [_without_picture(part, pictures) for part in content]}
        bare.append(message)
    return (chat | {"messages": bare} if pictures else chat), tuple(pictures)


def _without_picture(part: Any, pictures: list[Picture]) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _UNCOUNTABLE:
        raise Unconvertible(f"unsupported content type {kind}")
    if kind != "image_url":
        return part
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    head, comma, data = str(url).partition(";base64,")
    if not comma or not head.startswith("data:"):
        raise Unconvertible("an image URL that is not a data: URL")
    try:
        pictures.append(Picture(base64.b64decode(data, validate=True)))
    except binascii.Error as error:
        raise Unconvertible("an image that is not valid base64") from error
    return part | {"image_url": _PLACEHOLDER}


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _str(block: Json, name: str) -> str:
    value = block.get(name)
    return value if isinstance(value, str) else ""


def _dict(value: Any) -> Json:
    if not isinstance(value, dict):
        raise Unconvertible("not an object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Unconvertible("not a list")
    return value
