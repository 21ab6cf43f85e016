"""mcp.json, edited by hand and by kvchat, and the configurations of other apps."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvchat.errors import KvchatError
from kvchat.tools.mcp.config import ConfigBroken, ConfigFile, parse_server
from kvchat.tools.mcp.foreign import find_foreign_servers, parse_servers, read_pasted
from kvchat.tools.mcp.secrets import looks_secret


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"mcpServers": {\n  "a": }}', "Line 2, column 8"),
        ("[]", "does not contain an object named “mcpServers”"),
        ('{"mcpServers": []}', "does not contain an object named “mcpServers”"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({"mcpServers": {f"{number}": {} for number in range(201)}}), "more than 200 servers"),
    ],
)
def test_broken_file_is_explained_and_kept(tmp_path: Path, text: str, place: str) -> None:
    file = ConfigFile(tmp_path / "mcp.json")
    file.path.write_text(text)
    with pytest.raises(ConfigBroken, match="could not be read") as broken:
        file.servers()
    assert place in str(broken.value)
    with pytest.raises(ConfigBroken):
        file.change(lambda entries: entries.clear())
    assert file.path.read_text() == text


def test_unknown_keys_are_kept(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "mcp.json")
    content = {"theme": "x", "mcpServers": {"a": {"command": "b", "autoApprove": ["c"]}, "broken": 5}}
    file.path.write_text(json.dumps(content))
    file.change(lambda entries: entries["a"].update(disabled=True))
    content["mcpServers"]["a"]["disabled"] = True  # type: ignore[index]
    assert json.loads(file.path.read_text()) == content
    assert file.servers()["broken"].problem == "Its entry is not a JSON object."


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({}, "neither a command nor a URL"),
        ({"command": 5}, "“command” must be a string"),
        ({"command": "a", "args": "b"}, "“args” must be a list of strings"),
        ({"command": "a", "args": [1]}, "“args” must be a list of strings"),
        ({"command": "a", "env": {"A": 1}}, "“env” must be an object whose values are strings"),
        ({"command": "a", "env": None}, "“env” must be an object whose values are strings"),
        ({"command": "a\0"}, "“command” must be a string"),
        ({"command": "a", "type": "telnet"}, "type 'telnet' is not supported"),
        ({"type": "sse"}, "It has no URL"),
        ({"url": "ftp://a"}, "not an http or https address"),
        ({"url": "http://[::1"}, "not an http or https address"),
        ({"url": "http://a:99999"}, "not an http or https address"),
        ({"command": "a", "env": {"TOKEN": "${input:token}"}}, "Replace “${input:…}” with the value"),
    ],
)
def test_invalid_entries(entry: dict[str, Any], problem: str) -> None:
    assert problem in parse_server("a", entry).problem


@pytest.mark.parametrize("name", ["", " ", "kvchat", "KVChat", "a" * 65, "a\u202eb", "a\nb", "a\0"])
def test_invalid_names(name: str) -> None:
    assert parse_server(name, {"command": "a"}).problem


def test_launch_and_digest() -> None:
    entry = {"command": "npx", "args": ["-y", "a b"], "env": {"A": "1"}, "cwd": "/tmp", "disabledTools": ["x", 5]}
    config = parse_server("a", entry)
    assert config.launch == "npx -y 'a b'\nA=1\ncwd: /tmp"
    assert config.disabled_tools == {"x"}
    same = parse_server("b", {**entry, "disabled": True, "disabledTools": []})
    assert same.digest == config.digest, "what is run is the same"
    for change in ({"args": ["-y"]}, {"env": {}}, {"cwd": ""}, {"command": "npm"}):
        assert parse_server("a", entry | change).digest != config.digest
    assert parse_server("a", {"url": "https://a/mcp", "headers": {"X": "1"}}).launch == "https://a/mcp\nX: 1"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(
            (name, True)
            for name in ("GITHUB_TOKEN", "API_KEY", "x-api-key", "Authorization", "DB_PASSWORD", "GITHUB_PAT")
        ),
        *((name, False) for name in ("PATH", "KEYBOARD", "TIMEZONE", "Accept", "MONKEY_ISLAND")),
    ],
)
def test_names_of_secrets(name: str, expected: bool) -> None:
    assert looks_secret(name) is expected


VS_CODE = """{
  // the servers
  "inputs": [{"id": "token"}],
  "servers": {
    "docs": {"type": "http", "url": "https://example.org/mcp//x", "gallery": true}, /* and "another" */
    "local": {"command": "uvx", "args": ["a", "// no comment"],},
    "no server": {"text": "x"},
  },
}"""


@pytest.mark.parametrize(
    ("platform", "folder"),
    [("linux", ".config"), ("darwin", "Library/Application Support"), ("win32", "AppData/Roaming")],
)
def test_other_apps_are_found(tmp_path: Path, platform: str, folder: str) -> None:
    files = {
        f"{folder}/Claude/claude_desktop_config.json": '{"mcpServers": {"files": {"command": "npx"}}, "other": 1}',
        ".cursor/mcp.json": '{"mcpServers": {"files": {"command": "other"}}}',
        ".lmstudio/mcp.json": '{"mcpServers": ',
        f"{folder}/Code/User/mcp.json": "\ufeff" + VS_CODE,
        f"{folder}/Code/User/settings.json": '{"editor.tabSize": 2, "task": {"command": "make"}}',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    found = {servers.app: servers for servers in find_foreign_servers(tmp_path, {}, platform)}
    assert list(found) == ["Claude Desktop", "Cursor", "LM Studio", "VS Code"]
    assert found["Claude Desktop"].entries == {"files": {"command": "npx"}}
    assert found["VS Code"].entries == {
        "docs": {"type": "http", "url": "https://example.org/mcp//x"},
        "local": {"command": "uvx", "args": ["a", "// no comment"]},
    }
    assert "mcp.json: " in found["LM Studio"].problem


def test_pasted_texts() -> None:
    entry = {"command": "a"}
    for text in ('{"mcpServers": {"x": %s}}', '{"servers": {"x": %s}}', '{"mcp": {"servers": {"x": %s}}}', '{"x": %s}'):
        assert parse_servers(text % json.dumps(entry)) == {"x": entry}
    for text in ("", "{", "[]", "{}", '{"x": 1}'):
        with pytest.raises(KvchatError, match="Paste JSON"):
            read_pasted(text)
