"""Import of MCP servers from other apps or from pasted JSON."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.errors import KvchatError
from kvchat.system.files import parse_json, read_regular_file
from kvchat.text.language import _
from kvchat.tools.mcp.config import MAX_CONFIG_BYTES, SERVERS

_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*[}\]])')


@dataclass(frozen=True)
class ForeignServers:
    """The servers of another app. `entries` are for mcp.json, by name."""

    app: str
    path: Path
    entries: Mapping[str, Mapping[str, Any]]
    problem: str = ""  # why the file cannot be read


def parse_servers(text: str) -> dict[str, dict[str, Any]]:
    """Parse a configuration in any common format, with or without comments, into entries. Raises ValueError."""
    text = _COMMENT.sub(lambda found: found[1] or "", text)
    content = parse_json(_TRAILING_COMMA.sub(lambda found: found[1] or "", text))
    if not isinstance(content, dict):
        raise ValueError(_("it is not a JSON object"))
    nested = content.get("mcp")
    for candidate in (
        content.get(SERVERS),
        content.get("servers"),
        nested.get("servers") if isinstance(nested, dict) else None,
    ):
        if isinstance(candidate, dict):
            content = candidate
            break
    servers = {name: entry for name, entry in content.items() if _is_entry(entry)}
    return {name: {key: value for key, value in entry.items() if key != "gallery"} for name, entry in servers.items()}


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and any(isinstance(entry.get(key), str) for key in ("command", "url"))


def read_pasted(text: str) -> dict[str, dict[str, Any]]:
    """Parse a pasted configuration into entries. Raises KvchatError."""
    try:
        servers = parse_servers(text)
    except ValueError as error:
        raise KvchatError(
            _("The text is not a valid configuration"), f"{error}.", _("Paste JSON that contains “mcpServers”.")
        ) from error
    if not servers:
        raise KvchatError(_("The text contains no MCP servers"), advice=_("Paste JSON that contains “mcpServers”."))
    return servers


def find_foreign_servers(
    home: Path | None = None, environment: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> list[ForeignServers]:
    """Read the MCP configurations of other apps on this computer. Blocks."""
    home = home or Path.home()
    if platform == "win32":
        settings = Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    elif platform == "darwin":
        settings = home / "Library" / "Application Support"
    else:
        settings = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    places = (
        ("Claude Desktop", settings / "Claude" / "claude_desktop_config.json"),
        ("Cursor", home / ".cursor" / "mcp.json"),
        ("LM Studio", home / ".lmstudio" / "mcp.json"),
        ("LM Studio", home / ".cache" / "lm-studio" / "mcp.json"),
        ("VS Code", settings / "Code" / "User" / "mcp.json"),
        ("VS Code", settings / "Code" / "User" / "settings.json"),
    )
    found = [_read(app, path) for app, path in places if path.is_file()]
    return [servers for servers in found if servers.entries or servers.problem]


def _read(app: str, path: Path) -> ForeignServers:
    try:
        text = read_regular_file(path, MAX_CONFIG_BYTES).decode("utf-8-sig")
        if path.name == "settings.json" and '"mcp"' not in text:
            return ForeignServers(app, path, {})
        return ForeignServers(app, path, parse_servers(text))
    except (OSError, ValueError) as error:
        return ForeignServers(app, path, {}, f"{path}: {error}.")
