"""MCP server as a child process that communicates over standard input and output and ends with kvchat."""

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

from kvchat.system import parent_guard
from kvchat.text.formatting import format_size
from kvchat.text.language import _, join_sentences
from kvchat.tools.mcp.config import ServerConfig
from kvchat.tools.mcp.server import ServerLog
from kvchat.tools.tool import ToolFailed

MAX_MESSAGE_BYTES = 32_000_000  # three images of 8 MB in base64
MAX_OPEN_REQUESTS = 100  # of a server that does not read the responses
MAX_DECLINED_REQUESTS = 200  # requests for user input or a reply of the model
STOP_TIMEOUTS_S = (2.0, 2.0)  # after closing standard input, and after SIGTERM
_DRAIN_S = 1.0
_POLL_S = 0.02
_MAX_MESSAGE_CHARS = 300  # of a server's last message in an error
_STDERR_BYTES = 65_536
_INHERITED = (  # other variables may contain secrets of other programs
    ("APPDATA COMSPEC HOMEDRIVE HOMEPATH LOCALAPPDATA NUMBER_OF_PROCESSORS OS PATH PATHEXT PROCESSOR_ARCHITECTURE")
    + " PROGRAMDATA PROGRAMFILES SYSTEMDRIVE SYSTEMROOT TEMP TMP USERNAME USERPROFILE WINDIR"
    if sys.platform == "win32"
    else "HOME LOGNAME PATH SHELL TERM USER LANG LANGUAGE TZ TMPDIR XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME"
).split()
# Folders of npx, uvx and others, which are missing from the PATH of apps started from the desktop.
_MORE_FOLDERS = ("/opt/homebrew/bin", "/usr/local/bin", "~/.local/bin", "~/.cargo/bin", "~/.bun/bin")
_INSTALL = {"npx": "Node.js", "node": "Node.js", "uvx": "uv", "uv": "uv", "python": "Python", "docker": "Docker"}

# Type that the SDK's transports yield; its name there is private.
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


def server_environment(config: ServerConfig) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if name.upper() in _INHERITED or name.startswith("LC_")
    }
    if sys.platform != "win32":
        folders = [inherited.get("PATH", ""), *(os.path.expanduser(folder) for folder in _MORE_FOLDERS)]  # noqa: PTH111
        inherited["PATH"] = os.pathsep.join(filter(None, folders))
    return inherited | dict(config.environment)


def find_program(config: ServerConfig, environment: dict[str, str]) -> str:
    """Return the absolute path of the command. Raises ToolFailed."""
    command = os.path.expanduser(config.command)  # noqa: PTH111
    if os.path.dirname(command) and config.folder:  # noqa: PTH120
        command = str(Path(config.folder, command))
    if found := shutil.which(command, path=environment.get("PATH")):
        return os.path.abspath(found)  # noqa: PTH100 - a link to busybox must stay one
    name = Path(command).stem.lower()
    advice = _("Install {program}, or enter the full path of the command.", program=_INSTALL.get(name, command))
    raise ToolFailed(
        _("The MCP server “{name}” could not be started", name=config.name),
        _("{command} was not found.", command=command),
        advice,
    )


class ServerProcess:
    """The process of a server. `transport` serves one SDK `Client`."""

    def __init__(self, config: ServerConfig, log: ServerLog, on_end: Callable[[], object]) -> None:
        self._config, self._log, self._on_end = config, log, on_end
        self.problem = ""  # why the connection was closed by kvchat
        self._process: asyncio.subprocess.Process
        self._has_started = False
        self._job = self._lifeline = 0  # handle on Windows, file descriptor elsewhere; ends the process when closed
        self._open_requests = self._declined = 0

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Streams]:
        """Start the process, yield its streams, and stop it. Raises ToolFailed and OSError."""
        await self._spawn()
        into_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception]()
        into_server, from_client = anyio.create_memory_object_stream[SessionMessage]()
        tasks = [
            asyncio.create_task(self._read(into_client)),
            asyncio.create_task(self._write(from_client)),
            asyncio.create_task(self._read_errors()),
        ]
        try:
            yield from_server, into_server
        finally:
            stopping = asyncio.ensure_future(self._stop())
            while not stopping.done():  # even if cancelled meanwhile: every wait in it has a timeout
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([stopping])
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for stream in (into_client, from_server, into_server, from_client):
                stream.close()
            self._log.end()

    def explain_end(self) -> str:
        """Return why the connection ended, in sentences."""
        if self.problem or not self._has_started:
            return self.problem
        code = self._process.returncode
        end = _("The server stopped.") if not code else _("The server stopped with exit code {code}.", code=code)
        message = self._log.last_message[:_MAX_MESSAGE_CHARS]
        return join_sentences(end, _("Its last message: {text}", text=message) if message else "")

    async def _spawn(self) -> None:
        environment = server_environment(self._config)
        command = [find_program(self._config, environment), *self._config.arguments]
        self._log.note(f"$ {self._config.launch.splitlines()[0]}")
        self._log.last_message = ""
        guarded = None
        if sys.platform != "win32":
            guarded, self._lifeline = os.pipe()
            command = parent_guard.command(command, use_pipe=True, descriptor=guarded)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                limit=MAX_MESSAGE_BYTES,
                env=environment,
                cwd=self._config.folder or None,
                start_new_session=True,
                pass_fds=() if guarded is None else (guarded,),
                creationflags=parent_guard.no_window_flags(),
            )
        except BaseException:
            self._close_lifeline()
            raise
        finally:
            if guarded is not None:
                os.close(guarded)
        self._has_started = True
        if sys.platform == "win32":
            popen = self._process._transport.get_extra_info("subprocess")  # type: ignore[attr-defined]
            self._job = parent_guard.join_job(int(popen._handle))

    async def _read(self, into_client: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                try:
                    message = _parse(line)
                except (ValueError, RecursionError):  # some servers print other text by mistake
                    self._log.add_message(line)
                    continue
                if isinstance(message, JSONRPCRequest) and self._is_flooded_by(message.method):
                    self.problem = _("The server sent too many requests.")
                    break
                await into_client.send(SessionMessage(message))
        except ValueError:  # of StreamReader
            limit = format_size(MAX_MESSAGE_BYTES)
            self.problem = _("The server sent a message of more than {limit}.", limit=limit)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            into_client.close()
        await self._exits_within(_DRAIN_S)  # for the exit code and the last log lines
        self._on_end()

    def _is_flooded_by(self, method: str) -> bool:
        """Count a request from the server; return True if it has sent too many."""
        self._open_requests += 1
        if method != "ping":
            self._declined += 1
            self._log.note(_("kvchat declined the server’s request {method}.", method=method))
        return self._open_requests > MAX_OPEN_REQUESTS or self._declined > MAX_DECLINED_REQUESTS

    async def _write(self, from_client: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert self._process.stdin is not None
        try:
            async for item in from_client:
                if isinstance(item.message, JSONRPCResponse | JSONRPCError):
                    self._open_requests -= 1
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(text.encode() + b"\n")
                await self._process.stdin.drain()
        except (OSError, anyio.ClosedResourceError):  # the server closed its input
            from_client.close()
            self._on_end()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(_STDERR_BYTES):
            self._log.feed(data)

    async def _stop(self) -> None:
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        if self.problem or not await self._exits_within(STOP_TIMEOUTS_S[0]):
            self._terminate()
            await self._exits_within(STOP_TIMEOUTS_S[1])
        self._kill()
        await self._exits_within(_DRAIN_S)
        process._transport.close()  # type: ignore[attr-defined]  # a grandchild may keep the pipes open

    async def _exits_within(self, seconds: float) -> bool:
        """Poll, because asyncio's `wait` also waits for children of the server that keep its pipes open."""
        deadline = time.monotonic() + seconds
        while self._process.returncode is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return self._process.returncode is not None

    def _terminate(self) -> None:
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def _kill(self) -> None:
        """Kill the process and its children, even if the process has already ended."""
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        elif self._process.returncode is None:
            self._process.kill()
        self._close_lifeline()

    def _close_lifeline(self) -> None:
        if self._lifeline:
            os.close(self._lifeline)
        if sys.platform == "win32" and self._job:
            ctypes.WinDLL("kernel32").CloseHandle(ctypes.c_void_p(self._job))
        self._lifeline = self._job = 0


def _parse(line: bytes) -> JSONRPCMessage:
    """Parse a message. Halves of surrogate pairs, which JavaScript writes when it cuts a text, become "?"."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        whole = json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace")
        return jsonrpc_message_adapter.validate_json(whole, by_name=False)
