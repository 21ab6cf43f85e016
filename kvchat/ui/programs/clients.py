"""Configuration to paste into other programs, in the form that their documentation describes. Does not use Qt."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvchat.text.language import N_

KEY_PLACEHOLDER = "none"  # placeholder for programs that require a key


@dataclass(frozen=True)
class ServerAccess:
    url: str  # without a path
    key: str  # empty if no key is required
    model: str  # the model's name
    context: int | None = None  # tokens
    for_windows: bool = False  # write PowerShell instead of shell

    @property
    def v1_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def key_or_placeholder(self) -> str:
        return self.key or KEY_PLACEHOLDER


@dataclass(frozen=True)
class Client:
    """Program that can use the API server. `link` is its documentation; `configuration` returns the text to paste."""

    name: str
    config_location: str
    link: str
    configuration: Callable[[ServerAccess], str]


CLIENTS: list[Client] = []


def _client(name: str, config_location: str, link: str) -> Callable[[Callable[[ServerAccess], str]], object]:
    return lambda lines: CLIENTS.append(Client(name, config_location, link, lines))


@_client("OpenAI SDK", N_("Use this in a Python program."), "https://github.com/openai/openai-python")
def _openai(access: ServerAccess) -> str:
    return (
        "from openai import OpenAI\n\n"
        "client = OpenAI(\n"
        f"    base_url={_quoted(access.v1_url)},\n"
        f"    api_key={_quoted(access.key_or_placeholder)},\n"
        ")\n"
        "answer = client.chat.completions.create(\n"
        f"    model={_quoted(access.model)},\n"
        '    messages=[{"role": "user", "content": "Hello"}],\n'
        ")\n"
        "print(answer.choices[0].message.content)"
    )


@_client(
    "Claude Code",
    N_(
        "Run this in a terminal. CLAUDE_CODE_ATTRIBUTION_HEADER removes text that changes with every Claude Code "
        "update; otherwise every update would cause full reprocessing."
    ),
    "https://code.claude.com/docs/en/llm-gateway",
)
def _claude_code(access: ServerAccess) -> str:
    variables = {
        "ANTHROPIC_BASE_URL": access.url,
        "ANTHROPIC_AUTH_TOKEN": access.key_or_placeholder,
        "ANTHROPIC_MODEL": access.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": access.model,
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    }
    return _environment(access, variables, "claude")


@_client(
    "Codex",
    N_("Add this at the beginning of ~/.codex/config.toml."),
    "https://developers.openai.com/codex/config-advanced",
)
def _codex(access: ServerAccess) -> str:
    key = f"# {_environment(access, {'KVCHAT_API_KEY': access.key})}\n" if access.key else ""
    named = '\nenv_key = "KVCHAT_API_KEY"' if access.key else ""
    return (
        f"{key}model = {_quoted(access.model)}\n"
        'model_provider = "kvchat"\n\n'
        "[model_providers.kvchat]\n"
        'name = "kvchat"\n'
        f"base_url = {_quoted(access.v1_url)}\n"
        f'wire_api = "responses"{named}'
    )


@_client("OpenCode", N_("Add this to opencode.json."), "https://opencode.ai/docs/providers/")
def _opencode(access: ServerAccess) -> str:
    model: dict[str, Any] = {"name": access.model}
    if access.context:
        model["limit"] = {"context": access.context, "output": access.context // 4}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "kvchat",
        "options": {"baseURL": access.v1_url, "apiKey": access.key_or_placeholder},
        "models": {access.model: model},
    }
    name = f"kvchat/{access.model}"
    schema = "https://opencode.ai/config.json"
    whole = {"$schema": schema, "provider": {"kvchat": provider}, "model": name, "small_model": name}
    return _quoted(whole, indent=2)


@_client(
    "Cline",
    N_("Enter these values in Cline’s settings (gear icon)."),
    "https://docs.cline.bot/provider-config/openai-compatible",
)
def _cline(access: ServerAccess) -> str:
    return (
        f"API Provider: OpenAI Compatible\nBase URL: {access.v1_url}\n"
        f"OpenAI Compatible API Key: {access.key_or_placeholder}\nModel ID: {access.model}"
    )


@_client("Aider", N_("Run this in a terminal."), "https://aider.chat/docs/llms/openai-compat.html")
def _aider(access: ServerAccess) -> str:
    variables = {"OPENAI_API_BASE": access.v1_url, "OPENAI_API_KEY": access.key_or_placeholder}
    return _environment(access, variables, f"aider --model {shlex.quote(f'openai/{access.model}')}")


@_client(
    "Zed",
    N_(
        "Add this to settings.json. Enter the API key in Zed’s agent settings under LLM Providers, "
        "or set KVCHAT_API_KEY."
    ),
    "https://zed.dev/docs/ai/use-api-access",
)
def _zed(access: ServerAccess) -> str:
    model = {
        "name": access.model,
        "display_name": access.model,
        "max_tokens": access.context or 32_768,
        "capabilities": {"tools": True, "images": False, "parallel_tool_calls": False, "prompt_cache_key": False},
    }
    provider = {"api_url": access.v1_url, "available_models": [model]}
    return _quoted({"language_models": {"openai_compatible": {"kvchat": provider}}}, indent=2)


@_client("Continue", "In ~/.continue/config.yaml.", "https://docs.continue.dev/reference")
def _continue(access: ServerAccess) -> str:
    return (
        "name: kvchat\nversion: 0.0.1\nschema: v1\nmodels:\n"
        f"  - name: {_quoted(access.model)}\n"
        "    provider: openai\n"
        f"    model: {_quoted(access.model)}\n"
        f"    apiBase: {access.v1_url}\n"
        f"    apiKey: {_quoted(access.key_or_placeholder)}\n"
        "    roles: [chat, edit, apply]"
    )


@_client(
    "Open WebUI",
    N_(
        "Run this in a terminal. If Open WebUI is already running, enter the values under Admin Settings › Connections."
    ),
    "https://docs.openwebui.com/getting-started/quick-start/connect-a-provider/starting-with-openai-compatible",
)
def _open_webui(access: ServerAccess) -> str:
    variables = {"OPENAI_API_BASE_URL": access.v1_url, "OPENAI_API_KEY": access.key_or_placeholder}
    return _environment(access, variables, "open-webui serve")


def _environment(access: ServerAccess, variables: dict[str, str], command: str = "") -> str:
    if access.for_windows:
        lines = [f"$env:{name} = '{value.replace(chr(39), 2 * chr(39))}'" for name, value in variables.items()]
    else:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*lines, *([command] if command else [])])


def _quoted(value: object, indent: int | None = None) -> str:
    """Return a value as JSON, whose strings are also valid in Python, TOML and YAML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
