"""Requests of every dialect with everything that affects a prompt, and a chat template that renders all of it."""

from typing import Any

# Like templates of models with tool calls: tools in the system prompt; calls and thinking unchanged.
TEMPLATE = """{%- if tools %}<|im_start|>tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- if shout is defined and shout %}<|im_start|>shout<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.reasoning_content %}
<think>{{ message.reasoning_content }}</think>
{%- endif %}
{%- if message.content is string %}
{{ message.content }}
{%- elif message.content %}
{%- for part in message.content %}
{{ part.text }}
{%- endfor %}
{%- endif %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

SYSTEM = "You are a careful assistant. Heed every note: " + " ".join(f"note {n} is {n * 37 % 991}." for n in range(40))
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Zürich, 東京 …"}, "days": {"type": "integer"}},
    "required": ["city"],
}
ASKED = "What will the weather be in Zürich? 🌦️"
CALL = {"city": "Zürich", "days": 2}

_FUNCTION = {"name": "weather", "description": "It tells.", "parameters": SCHEMA}
_TOOL = {"type": "function", "function": _FUNCTION}
_CALLED = {"name": "weather", "arguments": '{"city": "Zürich", "days": 2}'}
_OPENAI_CALL = {"id": "call_1", "type": "function", "function": _CALLED}


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _text(text: str, kind: str = "text", **more: Any) -> dict[str, Any]:
    return {"type": kind, "text": text} | more


CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [{"role": "system", "content": SYSTEM}, _user(ASKED)]},
    "parts": {"messages": [_user([_text(SYSTEM)])]},
    "tools": {"messages": [_user(ASKED)], "tools": [_TOOL]},
    "called": {
        "messages": [
            {"role": "system", "content": SYSTEM},
            _user(ASKED),
            {"role": "assistant", "content": None, "reasoning_content": "I ask.", "tool_calls": [_OPENAI_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
        ],
        "tools": [_TOOL],
        "tool_choice": "auto",
    },
    "options": {"messages": [_user(SYSTEM)], "chat_template_kwargs": {"shout": True}, "stop": ["\n"], "seed": 1}
    | {"response_format": {"type": "json_object"}},
    "continued": {"messages": [_user(SYSTEM), {"role": "assistant", "content": "The first note"}]},
}
_BILLED = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=a5145;"
_TOOL_USES = [
    {"type": "thinking", "thinking": "I ask.", "signature": ""},
    _text("A moment."),
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": CALL},
    {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Bern", "days": 1.5}},
]
_RESULTS = [
    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain."},
    {"type": "tool_result", "tool_use_id": "toolu_2", "content": [_text("Sun.")]},
    _text("So?"),
]
MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {"system": SYSTEM, "messages": [_user(ASKED)]},
    "blocks": {
        "system": [_text(_BILLED), _text(SYSTEM, cache_control={"type": "ephemeral"})],
        "messages": [_user([_text(ASKED)])],
        "tools": [{"name": "weather", "description": "It tells.", "input_schema": SCHEMA}],
        "metadata": {"user_id": "somebody"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "called": {
        "system": SYSTEM,
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "messages": [_user(ASKED), {"role": "assistant", "content": _TOOL_USES}, _user(_RESULTS)],
    },
}
_TOLD_FIRST = {"type": "message", "role": "developer", "content": [_text(SYSTEM, "input_text")]}
_SAID_ONCE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {"instructions": SYSTEM, "input": ASKED},
    "items": {"instructions": "Be brief.", "input": [_TOLD_FIRST, _user(ASKED)], "reasoning": {"effort": "low"}},
    "called": {
        "instructions": SYSTEM,
        "tools": [{"type": "function"} | _FUNCTION, {"type": "web_search"}],
        "input": [
            _user(ASKED),
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [_text("I ask.", "reasoning_text")]},
            _SAID_ONCE | {"content": [_text("A moment.", "output_text", annotations=[])]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Zürich"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "Rain."},
        ],
    },
}
COMPLETIONS: dict[str, dict[str, Any]] = {"text": {"prompt": SYSTEM}, "ids": {"prompt": [1, *range(1000, 1100)]}}
_PATHS = {"/v1/chat/completions": CHATS, "/v1/messages": MESSAGES, "/v1/responses": RESPONSES}
_PATHS |= {"/v1/completions": COMPLETIONS}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{path} {name}": (path, body) for path, bodies in _PATHS.items() for name, body in bodies.items()
}

# A request, the parsed reply, and the client's next request.
_CHAT, _MESSAGE, _RESPONSE = CHATS["tools"], MESSAGES["blocks"], RESPONSES["plain"]
_SAID = {"role": "assistant", "content": "A moment.", "reasoning_content": "I ask."}
_USED = [_text("A moment."), {"type": "tool_use", "id": "t1", "name": "weather", "input": CALL}]
_ANSWERED = _user([{"type": "tool_result", "tool_use_id": "t1", "content": "Rain."}])
_OUTPUT = [
    {"type": "message", "role": "assistant", "content": [_text("A moment.", "output_text")]},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
]
_ITEMS = [_user(ASKED), *_OUTPUT]
_TOLD = {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}
_CALLS = {"role": "assistant", "content": None, "tool_calls": [_OPENAI_CALL]}


def _going_on(where: str, body: dict[str, Any], reply: dict[str, Any], listed: str, *turns: Any) -> tuple[Any, ...]:
    said = body[listed] if isinstance(body[listed], list) else []
    return where, body, reply, body | {listed: [*said, *turns]}


GOING_ON = [
    _going_on(
        *("/v1/chat/completions", _CHAT, _SAID, "messages"),
        *({"role": "assistant", "content": "A moment."}, _user(ASKED)),
    ),
    _going_on("/v1/chat/completions", _CHAT, _CALLS, "messages", _CALLS | {"content": ""}, _TOLD),
    _going_on(
        "/v1/messages", _MESSAGE, {"content": _USED}, "messages", {"role": "assistant", "content": _USED}, _ANSWERED
    ),
    _going_on(
        *("/v1/responses", _RESPONSE, {"output": _OUTPUT}, "input"),
        *(*_ITEMS, {"type": "function_call_output", "call_id": "c1", "output": "Rain."}),
    ),
    ("/v1/completions", COMPLETIONS["text"], {"text": " And so on"}, {"prompt": f"{SYSTEM} And so on, and on."}),
]
