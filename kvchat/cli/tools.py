"""`kvchat tools`: MCP servers."""

import asyncio
import webbrowser
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kvchat.cli import arguments
from kvchat.cli.owned import CommandRunner
from kvchat.cli.terminal import format_columns, print_err, print_result, working_folder
from kvchat.errors import KvchatError
from kvchat.system.files import read_regular_file
from kvchat.text.formatting import one_line
from kvchat.text.language import N_, _, plural
from kvchat.text.safe_text import safe_prose
from kvchat.tools.mcp.bundles import read_bundle
from kvchat.tools.mcp.config import MAX_CONFIG_BYTES
from kvchat.tools.mcp.foreign import find_foreign_servers, read_pasted
from kvchat.tools.mcp.manager import ServerManager
from kvchat.tools.mcp.server import Server, ServerState
from kvchat.tools.tool import SourceTools, ToolFailed

_DESCRIPTION_WIDTH = 100
_LISTED_NAMES = 30  # tools in an error


@asynccontextmanager
async def _open_servers(runner: CommandRunner) -> AsyncIterator[ServerManager]:
    """Yield the server manager of the open runtime or, without one, a manager that is closed afterwards."""
    manager = runner.open_runtime.mcp_servers if runner.open_runtime else ServerManager(runner.paths)
    await manager.load()
    if manager.problem:
        raise manager.problem
    try:
        yield manager
    finally:
        if not runner.open_runtime:
            await manager.close()


def _fields(server: Server) -> dict[str, Any]:
    return {
        "name": server.name,
        "state": server.state.name.lower(),
        "reason": server.reason,
        "launch": server.config.launch,
        "tools": [
            {
                "name": item.tool.name,
                "description": item.tool.description,
                "read_only": item.tool.read_only,
                "enabled": item.enabled,
                "approved": item.approved,
            }
            for item in server.tools
        ],
        "problems": server.problems,
    }


async def list_servers(options: arguments.JsonOptions, runner: CommandRunner) -> int:
    async with _open_servers(runner) as manager:
        servers, file = manager.servers, manager.file
    text = N_("No MCP servers. Add one with `kvchat tools add NAME COMMAND...`, or edit {file}.")
    rows = [
        (safe_prose(server.name), _(server.state.value), one_line(server.reason or server.config.launch))
        for server in servers
    ]
    lines = [str(file), *format_columns(rows)] if rows else [_(text, file=file)]
    return print_result(options.as_json, {"file": file, "servers": list(map(_fields, servers))}, lines)


async def add(options: arguments.AddServerOptions, runner: CommandRunner) -> int:
    launch = options.launch
    async with _open_servers(runner) as manager:
        if len(launch) == 1 and launch[0].endswith(".mcpb"):
            bundle = await asyncio.to_thread(read_bundle, working_folder() / launch[0])
            name = await manager.install(bundle, _pairs(options.values))
        else:
            name = options.name
            is_url = launch[0].startswith(("http://", "https://"))
            entry: dict[str, Any] = {"url": launch[0]} if is_url else {"command": launch[0], "args": list(launch[1:])}
            entry |= {"headers" if is_url else "env": values} if (values := _pairs(options.values)) else {}
            await manager.add(name, entry)
        await manager.hide_secrets(name)
        await manager.approve(manager.source(name).server)  # the user typed it
        server = manager.source(name).server
    next_step = _("Test it with `{command}`.", command=f"kvchat tools test {safe_prose(name)}")
    lines = [_("“{name}” was added.", name=safe_prose(name)), server.config.launch, next_step]
    return print_result(options.as_json, _fields(server), lines)


def _pairs(values: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, _equals, value in (text.partition("=") for text in values)}


async def import_servers(options: arguments.ImportServersOptions, runner: CommandRunner) -> int:
    if options.file is None:
        found = await asyncio.to_thread(find_foreign_servers)
        for servers in found:
            print_err(servers.problem or f"{servers.app}: {servers.path}")
        entries = {name: entry for servers in reversed(found) for name, entry in servers.entries.items()}
    else:
        try:
            text = await asyncio.to_thread(read_regular_file, options.file, MAX_CONFIG_BYTES)
        except OSError as error:
            raise KvchatError(_("The file cannot be read"), f"{options.file}: {error.strerror}.") from error
        entries = dict(read_pasted(text.decode("utf-8-sig", "replace")))
    async with _open_servers(runner) as manager:
        added = await manager.add_all(entries) if entries else []
    lines = [plural(len(added), "{count} MCP server was added.", "{count} MCP servers were added."), *added]
    if added:
        lines.append(_("Review and approve each one with `kvchat tools approve NAME` before its first start."))
    print_result(options.as_json, {"added": added}, lines)
    return 0 if added else 1


async def remove(options: arguments.NameOptions, runner: CommandRunner) -> int:
    async with _open_servers(runner) as manager:
        await manager.remove(options.name)
    return print_result(
        options.as_json, {"removed": options.name}, [_("“{name}” was removed.", name=safe_prose(options.name))]
    )


async def approve(options: arguments.NameOptions, runner: CommandRunner) -> int:
    async with _open_servers(runner) as manager:
        source = manager.source(options.name)
        await manager.approve(source.server)
        if source.server.pending_tools:
            await manager.approve_tools(source.server)
        server = source.server
    return print_result(options.as_json, _fields(server), [_("Approved:"), server.config.launch])


def check_may_start(manager: ServerManager, name: str) -> None:
    """Raise KvchatError if there is no such server, or if it is not approved, turned off or invalid."""
    source = manager.source(name)
    if source.server.state is ServerState.NOT_APPROVED:
        advice = _("Run `kvchat tools approve {name}` if you trust it.", name=name)
        raise KvchatError(_("The MCP server is not approved"), source.config.launch, advice)
    source.check_may_start()


def check_tools_exist(offers: Sequence[SourceTools], selected: Collection[str]) -> None:
    """Raise KvchatError if a source lacks a selected tool. Sources that cannot list theirs are left to the turn."""
    for offer in offers:
        names = [tool.name for tool in offer.tools]
        for name in (text.partition("/")[2] for text in selected if text.startswith(f"{offer.source}/")):
            if not offer.error and name not in ("*", *names):
                title = _("There is no tool “{name}” in “{source}”", name=name, source=offer.source)
                listed = ", ".join(names[:_LISTED_NAMES]) + (", …" if len(names) > _LISTED_NAMES else "")
                raise KvchatError(title, _("Tools: {names}.", names=listed) if names else "")


async def test(options: arguments.TestServerOptions, runner: CommandRunner) -> int:
    async with _open_servers(runner) as manager:
        check_may_start(manager, options.name)
        source = manager.source(options.name)
        try:
            if options.sign_in:
                await manager.sign_in(options.name, _browser(print_err))
            else:
                await manager.start(options.name)
        except ToolFailed as error:
            print_err("\n".join(source.log.lines))
            command = f"kvchat tools test {options.name} --sign-in"
            advice = _("Run `{command}`.", command=command) if source.server.needs_sign_in else ""
            raise KvchatError(error.title, error.detail, advice) from error
        server = source.server
    rows = [
        (
            safe_prose(item.tool.name),
            _("read-only") if item.tool.read_only else "",
            "" if item.approved else _("changed"),
            one_line(item.tool.description)[:_DESCRIPTION_WIDTH],
        )
        for item in server.tools
    ]
    count = plural(len(server.tools), "{count} tool", "{count} tools")
    return print_result(options.as_json, _fields(server), [count, *format_columns(rows), *server.problems])


def _browser(show: Callable[[str], None]) -> Callable[[str], None]:
    loop = asyncio.get_running_loop()

    def open_browser(url: str) -> None:
        loop.call_soon_threadsafe(show, _("Sign in at {url}", url=url))
        webbrowser.open(url)

    return open_browser
