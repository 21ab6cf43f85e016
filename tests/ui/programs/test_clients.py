"""The configurations to paste, parsed like the programs do."""

import ast
import json
import shlex
import tomllib

import pytest

from kvchat.ui.programs.clients import CLIENTS, Client, ServerAccess

NASTY = ServerAccess("http://127.0.0.1:8737", "kv-a'b c", '模型 "Q4"', 32_768)


def lines(name: str, access: ServerAccess = NASTY) -> str:
    return next(client for client in CLIENTS if client.name == name).configuration(access)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda one: one.name)
def test_address_and_a_key_are_in_all_of_them(client: Client) -> None:
    plain = ServerAccess("http://127.0.0.1:8737", "kv-secret", "llama-3.2-3b")
    assert plain.url in client.configuration(plain)
    assert ("kv-secret" in client.configuration(plain)) == (client.name != "Zed")
    assert ("llama-3.2-3b" in client.configuration(plain)) == (client.name != "Open WebUI")
    assert client.link.startswith("https://")
    without = client.configuration(ServerAccess(plain.url, "", plain.model))
    assert plain.url in without
    assert "''" not in without
    assert '""' not in without


def test_what_is_to_be_a_file_is_one() -> None:
    provider = json.loads(lines("OpenCode"))["provider"]["kvchat"]
    assert provider["options"] == {"baseURL": "http://127.0.0.1:8737/v1", "apiKey": NASTY.key}
    assert provider["models"][NASTY.model]["limit"]["context"] == 32_768
    zed = json.loads(lines("Zed"))["language_models"]["openai_compatible"]["kvchat"]
    assert zed["available_models"][0]["name"] == NASTY.model
    codex = tomllib.loads(lines("Codex"))
    assert codex["model"] == NASTY.model
    assert codex["model_providers"]["kvchat"]["wire_api"] == "responses"
    said = ast.parse(lines("OpenAI SDK")).body[-1]
    assert ast.unparse(said).startswith("print("), "who runs it sees the answer"


def test_what_is_to_be_typed_in_a_shell_is_taken_whole() -> None:
    exports = dict(word.split("=", 1) for word in shlex.split(lines("Claude Code")) if "=" in word)
    assert exports["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8737"
    assert exports["ANTHROPIC_AUTH_TOKEN"] == NASTY.key
    assert exports["ANTHROPIC_MODEL"] == NASTY.model
    assert shlex.split(lines("Aider"))[-1] == f"openai/{NASTY.model}"
    windows = lines("Aider", ServerAccess(NASTY.url, NASTY.key, "m", for_windows=True))
    assert windows.splitlines()[1] == "$env:OPENAI_API_KEY = 'kv-a''b c'"
