"""Requests of every dialect, with all that makes a prompt; and a chat template that heeds it all."""

from __future__ import annotations

from typing import Any

# As the templates of models that call tools: tools in the system prompt, calls and thinking as they were said.
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

_TOOL = {"type": "function", "function": {"name": "weather", "description": "It tells.", "parameters": SCHEMA}}
_OPENAI_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Zürich", "days": 2}'},
}

CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": SYSTEM}]}]},
    "tools": {"messages": [{"role": "user", "content": ASKED}], "tools": [_TOOL]},
    "called": {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": None, "reasoning_content": "I ask.", "tool_calls": [_OPENAI_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
        ],
        "tools": [_TOOL],
        "tool_choice": "auto",
    },
    "options": {
        "messages": [{"role": "user", "content": SYSTEM}],
        "chat_template_kwargs": {"shout": True},
        "response_format": {"type": "json_object"},
        "stop": ["\n"],
        "seed": 1,
    },
    "continued": {
        "messages": [{"role": "user", "content": SYSTEM}, {"role": "assistant", "content": "The first note"}]
    },
}
MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {"system": SYSTEM, "messages": [{"role": "user", "content": ASKED}]},
    "blocks": {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=a5145;"},
            {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": ASKED}]}],
        "tools": [{"name": "weather", "description": "It tells.", "input_schema": SCHEMA}],
        "metadata": {"user_id": "somebody"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "called": {
        "system": SYSTEM,
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "messages": [
            {"role": "user", "content": ASKED},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I ask.", "signature": ""},
                    {"type": "text", "text": "A moment."},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": CALL},
                    {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Bern", "days": 1.5}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain."},
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "Sun."}]},
                    {"type": "text", "text": "So?"},
                ],
            },
        ],
    },
}
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {"instructions": SYSTEM, "input": ASKED},
    "items": {
        "instructions": "Be brief.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": SYSTEM}]},
            {"role": "user", "content": ASKED},
        ],
        "reasoning": {"effort": "low"},
    },
    "called": {
        "instructions": SYSTEM,
        "tools": [
            {"type": "function", "name": "weather", "description": "It tells.", "parameters": SCHEMA},
            {"type": "web_search"},
        ],
        "input": [
            {"role": "user", "content": ASKED},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "I ask."}],
            },
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "A moment.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Zürich"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "Rain."},
        ],
    },
}
COMPLETIONS: dict[str, dict[str, Any]] = {"text": {"prompt": SYSTEM}, "ids": {"prompt": [1, *range(1000, 1100)]}}

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{path} {name}": (path, body)
    for path, bodies in (
        ("/v1/chat/completions", CHATS),
        ("/v1/messages", MESSAGES),
        ("/v1/responses", RESPONSES),
        ("/v1/completions", COMPLETIONS),
    )
    for name, body in bodies.items()
}

# A request, the reply as it is heard, and what the client asks next.
_CHAT, _MESSAGE, _RESPONSE = CHATS["tools"], MESSAGES["blocks"], RESPONSES["plain"]
_SAID = {"role": "assistant", "content": "A moment.", "reasoning_content": "I ask."}
_USED = [{"type": "text", "text": "A moment."}, {"type": "tool_use", "id": "t1", "name": "weather", "input": CALL}]
_ANSWERED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Rain."}]}
_OUTPUT = [
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A moment."}]},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
]
_ITEMS = [{"role": "user", "content": ASKED}, *_OUTPUT]
_TOLD = {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}
GOING_ON: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        _CHAT,
        _SAID,
        _CHAT | {"messages": [*_CHAT["messages"], {"role": "assistant", "content": "A moment."}, _CHAT["messages"][0]]},
    ),
    (
        "/v1/chat/completions",
        _CHAT,
        {"role": "assistant", "content": None, "tool_calls": [_OPENAI_CALL]},
        _CHAT
        | {"messages": [*_CHAT["messages"], {"role": "assistant", "tool_calls": [_OPENAI_CALL], "content": ""}, _TOLD]},
    ),
    (
        "/v1/messages",
        _MESSAGE,
        {"content": _USED},
        _MESSAGE | {"messages": [*_MESSAGE["messages"], {"role": "assistant", "content": _USED}, _ANSWERED]},
    ),
    (
        "/v1/responses",
        _RESPONSE,
        {"output": _OUTPUT},
        _RESPONSE | {"input": [*_ITEMS, {"type": "function_call_output", "call_id": "c1", "output": "Rain."}]},
    ),
    ("/v1/completions", COMPLETIONS["text"], {"text": " And so on"}, {"prompt": f"{SYSTEM} And so on, and on."}),
]
