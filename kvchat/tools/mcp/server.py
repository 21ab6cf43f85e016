"""Snapshots of an MCP server, for the window and the commands."""

import re
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote

from kvchat.text.language import N_
from kvchat.text.safe_text import safe_prose
from kvchat.tools.mcp.config import ServerConfig
from kvchat.tools.tool import Tool

PARAMETER = re.compile(r"\{(\+?)(\w{1,64})\}")  # of a template: {name}, and {+name} that keeps reserved characters
_RESERVED = "/:?#[]@!$&'()*+,;="  # RFC 3986
_MAX_LINES, _MAX_LINE_LENGTH = 500, 2_000


class ServerState(Enum):
    """State of a server. The value is its text on screen."""

    OFF = N_("off")
    INVALID = N_("invalid entry")
    NOT_APPROVED = N_("waiting for approval")
    NOT_STARTED = N_("not started")
    STARTING = N_("starting")
    RUNNING = N_("running")
    FAILED = N_("failed")


@dataclass(frozen=True)
class ServerTool:
    tool: Tool
    enabled: bool  # the user has not turned it off
    approved: bool  # its definition is the one that the user approved
    approved_description: str | None = None  # of a tool whose definition has changed


@dataclass(frozen=True)
class Server:
    """A configured server and its current state."""

    config: ServerConfig
    state: ServerState
    reason: str = ""  # for INVALID and FAILED, in sentences
    tools: tuple[ServerTool, ...] = ()  # as last listed
    problems: tuple[str, ...] = ()  # sentences about tools that cannot be offered
    tools_changed: bool = False  # the running server announced a new list, which is read at the next use
    needs_sign_in: bool = False

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def pending_tools(self) -> tuple[Tool, ...]:
        """Tools with a new or changed definition, which `approve_tools` would allow."""
        return tuple(item.tool for item in self.tools if not item.approved)

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        return tuple(item.tool for item in self.tools if item.enabled and item.approved)


@dataclass(frozen=True)
class PromptArgument:
    name: str
    description: str
    required: bool


@dataclass(frozen=True)
class Prompt:
    name: str
    title: str
    description: str
    arguments: tuple[PromptArgument, ...]


@dataclass(frozen=True)
class Resource:
    uri: str
    title: str
    description: str
    media_type: str
    size: int | None
    arguments: tuple[PromptArgument, ...] = ()  # of a template, whose `uri` names them in braces

    def uri_with(self, values: Mapping[str, str]) -> str:
        return PARAMETER.sub(lambda found: quote(values.get(found[2], ""), _RESERVED if found[1] else ""), self.uri)


@dataclass(frozen=True)
class Attachment:
    """Content of a prompt or resource, to attach like a document. Untrusted."""

    name: str
    content: bytes
    media_type: str


class ServerLog:
    """The last lines of a server's standard error, and kvchat's notes. Thread-safe."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._rest = b""
        self.last_message = ""  # of the server
        self._lock = threading.Lock()

    @property
    def lines(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._lines)

    def note(self, line: str) -> None:
        with self._lock:
            self._lines.append(safe_prose(line[:_MAX_LINE_LENGTH]))

    def add_message(self, line: bytes) -> None:
        if text := line[:_MAX_LINE_LENGTH].decode("utf-8", "replace").rstrip():
            self.note(text)
            self.last_message = safe_prose(text)

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.add_message(line)
        self._rest = self._rest[:_MAX_LINE_LENGTH]

    def end(self) -> None:
        """Add the last line, which may have no line break."""
        self.feed(b"\n")
