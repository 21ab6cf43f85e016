"""The user's approvals of commands, URLs and tool definitions, and which servers had attachments."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvchat.errors import KvchatError
from kvchat.system.files import atomic_write, read_json
from kvchat.text.language import _
from kvchat.tools.mcp.config import ServerConfig
from kvchat.tools.tool import Tool


class Approvals:
    """Approved digests by server, in a file. An unreadable file approves nothing. `load` and all changes block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._servers: dict[str, dict[str, Any]] = {}

    def load(self) -> None:
        try:
            content = read_json(self._path)
        except (OSError, ValueError):
            content = {}
        entries = content.items() if isinstance(content, dict) else ()
        self._servers = {name: entry for name, entry in entries if isinstance(entry, dict)}

    def has_launch(self, config: ServerConfig) -> bool:
        return bool(config.digest) and self._servers.get(config.name, {}).get("launch") == config.digest

    def tool_digests(self, server: str) -> Mapping[str, str] | None:
        """Return the digests of the approved tools by name, or None if the server has never listed any."""
        digests = self._servers.get(server, {}).get("tools")
        return digests if isinstance(digests, dict) else None

    def approved_description(self, server: str, tool: str) -> str | None:
        """Return a tool's approved description, or None if there is none."""
        descriptions = self._servers.get(server, {}).get("descriptions")
        text = descriptions.get(tool) if isinstance(descriptions, dict) else None
        return text if isinstance(text, str) else None

    def has_attachments(self, server: str) -> bool:
        """True if the server listed prompts or resources when it last ran."""
        return self._servers.get(server, {}).get("attachments") is True

    def note_attachments(self, server: str, exist: bool) -> None:
        self._save(server, attachments=exist)

    def approve_launch(self, config: ServerConfig) -> None:
        self._save(config.name, launch=config.digest)

    def approve_tools(self, server: str, tools: Iterable[Tool]) -> None:
        tools = tuple(tools)
        descriptions = {tool.name: tool.description for tool in tools}
        self._save(server, tools={tool.name: tool.digest for tool in tools}, descriptions=descriptions)

    def forget(self, server: str) -> None:
        if self._servers.pop(server, None) is not None:
            self._write()

    def _save(self, server: str, **changes: Any) -> None:
        self._servers[server] = self._servers.get(server, {}) | changes
        self._write()

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with atomic_write(self._path, private=True) as temporary:
                temporary.write_text(json.dumps(self._servers), "utf-8")
        except OSError as error:
            raise KvchatError(_("The approval could not be saved"), f"{self._path}: {error.strerror}.") from error
