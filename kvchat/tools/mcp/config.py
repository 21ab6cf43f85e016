"""mcp.json: the MCP servers, in the format of Claude Desktop, Cursor and others."""

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvchat.errors import KvchatError
from kvchat.system.files import atomic_write, read_json
from kvchat.text.language import _
from kvchat.text.safe_text import safe_prose
from kvchat.tools.tool import BUILT_IN

SERVERS = "mcpServers"
MAX_CONFIG_BYTES = 4_000_000
MAX_SERVERS = 200
MAX_NAME_LENGTH = 64
_HTTP_TYPES = {"http": "http", "streamable-http": "http", "streamablehttp": "http", "sse": "sse"}
_LAUNCH_KEYS = ("type", "command", "args", "env", "cwd", "url", "headers")


class ConfigBroken(KvchatError):
    """mcp.json cannot be read or written. It is not changed."""


@dataclass(frozen=True)
class ServerConfig:
    name: str
    command: str = ""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""  # working folder of the command
    url: str = ""
    kind: str = ""  # of a URL: "http", "sse" or "" for whichever the server offers
    headers: Mapping[str, str] = field(default_factory=dict)
    disabled: bool = False
    disabled_tools: frozenset[str] = frozenset()
    problem: str = ""  # why the server cannot be used, as a sentence
    digest: str = ""  # hash of everything that determines what is run or contacted

    @property
    def launch(self) -> str:
        """The exact command line or URL, with variables and headers, for the user to approve."""
        lines = [self.url or shlex.join((self.command, *self.arguments))]
        lines += [f"{name}={value}" for name, value in self.environment.items()]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\n".join([*lines, *([f"cwd: {self.folder}"] if self.folder else [])])


def parse_server(name: str, entry: Any) -> ServerConfig:
    """Parse an entry of mcp.json. If it is invalid, the result has a `problem`."""
    if name_problem := name_error(name):
        return ServerConfig(name, problem=name_problem)
    if not isinstance(entry, dict):
        return ServerConfig(name, problem=_("Its entry is not a JSON object."))
    launch = {key: entry[key] for key in _LAUNCH_KEYS if key in entry}
    kind = str(entry.get("type", "")).lower()
    problem = _launch_error(entry, kind)
    if problem:
        return ServerConfig(name, disabled=entry.get("disabled") is True, problem=problem)
    url = entry.get("url", "")
    tools = entry.get("disabledTools", [])
    return ServerConfig(
        name,
        command="" if url else entry["command"],
        arguments=() if url else tuple(entry.get("args", ())),
        environment={} if url else dict(entry.get("env", {})),
        folder="" if url else entry.get("cwd", ""),
        url=url,
        kind=_HTTP_TYPES.get(kind, "") if url else "",
        headers=dict(entry.get("headers", {})) if url else {},
        disabled=entry.get("disabled") is True,
        disabled_tools=frozenset(tool for tool in tools if isinstance(tool, str))
        if isinstance(tools, list)
        else frozenset(),
        digest=hashlib.sha256(json.dumps(launch, sort_keys=True).encode()).hexdigest(),
    )


def name_error(name: str) -> str:
    if not name.strip() or len(name) > MAX_NAME_LENGTH or safe_prose(name) != name or "\n" in name:
        return _("Its name is empty, too long, or contains invisible characters.")
    return _("This name is reserved for built-in tools.") if name.lower() == BUILT_IN else ""


def _launch_error(entry: Mapping[str, Any], kind: str) -> str:
    for key, empty in (("command", ""), ("url", ""), ("cwd", ""), ("args", []), ("env", {}), ("headers", {})):
        value = entry.get(key, empty)
        parts = [value] if isinstance(value, str) else list(value.values()) if isinstance(value, dict) else value
        if type(value) is not type(empty) or not all(isinstance(part, str) and "\0" not in part for part in parts):
            if isinstance(empty, str):
                return _("“{key}” must be a string.", key=key)
            is_list = isinstance(empty, list)
            return (
                _("“{key}” must be a list of strings.", key=key)
                if is_list
                else _("“{key}” must be an object whose values are strings.", key=key)
            )
    if any("${input:" in part for part in _texts(entry)):
        return _("Replace “${input:…}” with the value.")
    if url := entry.get("url"):
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            valid = False
        if kind and kind not in _HTTP_TYPES:
            return _("Its type {kind} is not supported.", kind=repr(kind))
        return "" if valid else _("Its URL is not an http or https address.")
    if kind not in ("", "stdio"):
        return _("It has no URL.") if kind in _HTTP_TYPES else _("Its type {kind} is not supported.", kind=repr(kind))
    return "" if entry.get("command", "").strip() else _("It has neither a command nor a URL.")


def _texts(entry: Mapping[str, Any]) -> list[str]:
    env, headers = entry.get("env", {}), entry.get("headers", {})
    return [entry.get("command", ""), entry.get("url", ""), *entry.get("args", []), *env.values(), *headers.values()]


class ConfigFile:
    """mcp.json, which the user may edit by hand. Its methods block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """Return the content; empty without a file. Raises ConfigBroken."""
        try:
            content = read_json(self.path, MAX_CONFIG_BYTES)
        except FileNotFoundError:
            return {}
        except json.JSONDecodeError as error:
            place = _("Line {line}, column {column}: {error}.", line=error.lineno, column=error.colno, error=error.msg)
            raise self._broken(place) from error
        except (OSError, ValueError) as error:
            raise self._broken(f"{error}.") from error
        if not isinstance(content, dict) or not isinstance(content.get(SERVERS, {}), dict):
            raise self._broken(_("It does not contain an object named “{key}”.", key=SERVERS))
        if len(content.get(SERVERS, {})) > MAX_SERVERS:
            raise self._broken(_("It has more than {count} servers.", count=MAX_SERVERS))
        return content

    def servers(self) -> dict[str, ServerConfig]:
        return {name: parse_server(name, entry) for name, entry in self.read().get(SERVERS, {}).items()}

    def change(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Let `change` edit the entries by name, and save the file; the rest stays unchanged. Raises KvchatError."""
        content = self.read()
        change(content.setdefault(SERVERS, {}))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with atomic_write(self.path, private=True) as temporary:
                temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
        except OSError as error:
            detail = f"{self.path}: {error.strerror}."
            raise ConfigBroken(_("The MCP servers could not be saved"), detail) from error

    def _broken(self, detail: str) -> ConfigBroken:
        advice = _("Correct the file in a text editor. Until then, kvchat does not change it.")
        return ConfigBroken(_("The MCP servers could not be read"), f"{self.path}: {detail}", advice)
