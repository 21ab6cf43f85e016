"""Access checks, keys, and program names."""

import socket
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from kvchat.errors import KvchatError
from kvchat.gateway.checks import AccessPolicy, parse_origins
from kvchat.gateway.dialects.request import RequestRefused
from kvchat.gateway.keys import ANY_PROGRAM, Keys, program_name, read_key_file
from tests.systems import not_on_windows

HERE = AccessPolicy("127.0.0.1", Keys({}))


def status(checks: AccessPolicy, **headers: str) -> int:
    headers = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    try:
        checks.check_host_and_origin(headers)
        checks.program(headers)
    except RequestRefused as refused:
        return refused.status
    return 200


OURS = (
    "127.0.0.1:8737",
    "localhost:8737",
    "LOCALHOST",
    "[::1]:8737",
    "192.168.1.5:8737",
    f"{socket.gethostname()}:8737",
)
THEIRS = ("evil.example:8737", "localhost.evil.example", "127.0.0.1.evil.example:8737", "", "127.0.0.1:80/slots?x=")
THEIRS += ("127.0.0.1/slots", "[::1]/slots:80")


def test_foreign_host_names_are_refused() -> None:
    assert {status(HERE, host=host) for host in OURS} == {200}
    assert {status(HERE, host=host) for host in THEIRS} == {403}


def test_only_allowed_web_origins_are_accepted() -> None:
    named = AccessPolicy("127.0.0.1", Keys({}), parse_origins("https://chat.example/, http://localhost:3000"))
    host = "127.0.0.1:8737"
    for origin in ("https://evil.example", "null", "http://127.0.0.1:8737", "https://chat.example.evil.example"):
        assert status(named, host=host, origin=origin) == 403
    assert status(named, host=host, origin="https://chat.example") == 200
    assert status(HERE, host=host, origin="https://chat.example") == 403
    assert status(HERE, host=host, sec_fetch_site="cross-site") == 403
    assert status(HERE, host=host, sec_fetch_site="none") == 200, "the user typed the address"


def test_key_identifies_its_program() -> None:
    keys = Keys({ANY_PROGRAM: "one-for-all", "editor": "the-editors-own"})
    assert keys.program_of("the-editors-own") == "editor"
    assert keys.program_of("one-for-all") == ANY_PROGRAM
    assert keys.program_of("") is None
    assert keys.program_of("ünknown") is None
    checks = AccessPolicy("0.0.0.0", keys)
    headers = {"user-agent": "claude-cli/2.0 (external, cli)"}
    assert checks.program(Headers(headers | {"authorization": "Bearer one-for-all"})) == "claude-cli"
    assert checks.program(Headers(headers | {"x-api-key": "one-for-all"})) == "claude-cli"
    assert checks.program(Headers(headers | {"authorization": "bearer the-editors-own"})) == "editor"
    with pytest.raises(RequestRefused) as refused:
        checks.program(Headers(headers | {"authorization": "Bearer another"}))
    assert refused.value.status == 401
    assert "another" not in refused.value.message
    for known in ({}, {"kvchat": "the-key-of-kvchat"}, {"": "everybodys-key"}):  # the owner's key, and no name
        checks = AccessPolicy("127.0.0.1", Keys(known, "the-owners-key"))
        for shown in ("", "the-key-of-kvchat", "everybodys-key"):
            assert not checks.is_owner(Headers({"authorization": f"Bearer {shown}", "user-agent": "kvchat"}))
        assert checks.is_owner(Headers({"authorization": "Bearer the-owners-key"}))
        assert not AccessPolicy("127.0.0.1", Keys(known)).is_owner(Headers({"authorization": "Bearer "}))


NAMES = {"OpenAI/Python 3.54.0": "openai-python", "Anthropic/JS 0.60.0": "anthropic-js", "": "other"}
NAMES |= {"claude-cli/2.0.1 (external, cli)": "claude-cli", "codex_cli_rs/0.40.0 (Debian 12; x86_64)": "codex_cli_rs"}
NAMES |= {"opencode/1.18.33": "opencode", "Mozilla/5.0 (X11; Linux)": "browser", "../../etc/passwd": "other"}
NAMES |= {"etc\\passwd'; --": "etc-passwd", "\x00\x1b\x7f" * 40: "other", "\u3164\u2800\U000e0041/1": "other"}
NAMES |= {"聊天助手/1.2": "聊天助手", "Écrivain/2 (Linux)": "écrivain", "مساعد/1": "مساعد", "हिन्दी/1": "हिन्दी"}
NAMES |= {"Ｆｕｌｌ/1": "full", "ab\u202ecd\u2066ef\u200bgh": "ab-cd-ef-gh", "助" * 100: "助" * 40}
NAMES |= {"caf\xe9/1": "café"}  # not UTF-8: decoded as Latin-1, a letter per byte


def test_program_names_from_user_agents() -> None:
    for agent, name in NAMES.items():
        headers = agent.encode("latin-1") if "\xe9/" in agent else agent.encode()
        assert HERE.program(Headers(raw=[(b"user-agent", headers)])) == name
        assert program_name(name) == name


@not_on_windows("modes as POSIX has them")
def test_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-for-everybody\nopencode: sk-for-opencode\n\n")
    file.chmod(0o644)
    with pytest.raises(match="not private"):
        read_key_file(file)
    file.chmod(0o600)
    assert read_key_file(file) == {ANY_PROGRAM: "sk-for-everybody", "opencode": "sk-for-opencode"}
    file.write_bytes("助手: sk-for-the-helper\r\n".encode("utf-8-sig"))  # as Windows' Notepad does
    assert read_key_file(file) == {"助手": "sk-for-the-helper"}
    for bad in ("", "short", "a name with blanks: sk-for-everybody"):
        file.write_text(bad)
        with pytest.raises(KvchatError):
            read_key_file(file)
    with pytest.raises(KvchatError):
        read_key_file(tmp_path / "none")
