"""All MCP servers: configuration, approval and state, for the window and the commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kvchat.errors import KvchatError
from kvchat.system.concurrency import in_thread
from kvchat.system.paths import Paths
from kvchat.text.language import _
from kvchat.tools.mcp.approvals import Approvals
from kvchat.tools.mcp.bundles import Bundle, Value, bundle_entry, bundle_folder, install_bundle, remove_bundle
from kvchat.tools.mcp.config import ConfigBroken, ConfigFile, ServerConfig, name_error, parse_server
from kvchat.tools.mcp.secrets import Secrets, looks_secret, reference, secret_names
from kvchat.tools.mcp.server import Server
from kvchat.tools.mcp.source import OAUTH, McpSource, ServerThread, SourceContext

Entry = Mapping[str, Any]


class ServerManager:
    """The configured servers. Event-loop thread only; files are read and written in threads.

    `servers` has snapshots to show; `source(name).log.lines` has a server's log. Methods raise KvchatError.
    """

    def __init__(self, paths: Paths) -> None:
        self.problem: ConfigBroken | None = None  # of mcp.json, whose servers are then unknown
        self._paths, self._file = paths, ConfigFile(paths.mcp_file)
        self._approvals, self._secrets = Approvals(paths.mcp_approvals), Secrets(paths.config)
        self._context = SourceContext(ServerThread(), self._approvals, self._secrets, self._publish)
        self._sources: dict[str, McpSource] = {}
        self._listeners: list[Callable[[], object]] = []
        self._changing = asyncio.Lock()

    @property
    def file(self) -> Path:
        return self._file.path

    @property
    def servers(self) -> tuple[Server, ...]:
        return tuple(source.server for source in self._sources.values())

    @property
    def sources(self) -> tuple[McpSource, ...]:
        """The servers whose tools a chat can use."""
        return tuple(
            source
            for source in self._sources.values()
            if not source.config.disabled and not source.config.problem and self._approvals.has_launch(source.config)
        )

    @property
    def attachment_sources(self) -> tuple[McpSource, ...]:
        """The usable servers that had prompts or resources when they last ran."""
        return tuple(source for source in self.sources if self._approvals.has_attachments(source.id))

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` after each change of `servers` or `problem`. Return a function that unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def source(self, name: str) -> McpSource:
        """Return a configured server. Raises KvchatError."""
        if name not in self._sources:
            known = ", ".join(self._sources) or "-"
            raise KvchatError(
                _("There is no MCP server “{name}”", name=name), _("Configured servers: {names}.", names=known)
            )
        return self._sources[name]

    async def load(self) -> None:
        """Read mcp.json, at startup or after a manual change. Servers with an unchanged entry keep running."""
        async with self._changing:
            await self._load()

    async def add(self, name: str, entry: Entry, *, replace: bool = False) -> None:
        """Add a server or, with `replace`, change its launch and keep what is disabled. Raises KvchatError."""

        def change(entries: dict[str, Any]) -> None:
            if not replace and name in entries:
                raise self._exists(name)
            before = entries[name] if isinstance(entries.get(name), dict) else {}
            kept = {key: before[key] for key in ("disabled", "disabledTools") if key in before}
            entries[name] = kept | dict(entry)

        if problem := name_error(name) or parse_server(name, dict(entry)).problem:
            raise KvchatError(_("The MCP server “{name}” is not valid", name=name), problem)
        await self._change(change)

    async def add_all(self, entries: Mapping[str, Entry]) -> list[str]:
        """Add imported servers, except those whose name exists. Return the added names."""
        added: list[str] = []

        def change(existing: dict[str, Any]) -> None:
            added[:] = [name for name in entries if name not in existing]
            existing.update({name: dict(entries[name]) for name in added})

        await self._change(change)
        return added

    async def entry(self, name: str) -> dict[str, Any]:
        """Return a server's entry in mcp.json, for editing. Raises KvchatError."""
        self.source(name)
        entries = (await asyncio.to_thread(self._file.read)).get("mcpServers", {})
        entry = entries.get(name)
        return dict(entry) if isinstance(entry, dict) else {}

    async def remove(self, name: str) -> None:
        """Stop and remove a server, its secrets, its approval and its bundle. Raises KvchatError."""
        source = self.source(name)
        await source.close()
        await self._change(lambda entries: entries.pop(name, None))

        def forget() -> None:
            self._secrets.forget(source.config)
            self._secrets.store(name, OAUTH).forget()
            self._approvals.forget(name)
            remove_bundle(self._paths.mcp_bundles, name)

        await asyncio.to_thread(forget)

    async def set_enabled(self, name: str, enabled: bool) -> None:
        await self._change_entry(name, partial(_set_or_pop, key="disabled", value=True, keep=not enabled))

    async def set_tool_enabled(self, name: str, tool: str, enabled: bool) -> None:
        def change(entry: dict[str, Any]) -> None:
            tools = set(parse_server(name, entry).disabled_tools) | {tool}
            if enabled:
                tools.discard(tool)
            _set_or_pop(entry, "disabledTools", sorted(tools), keep=bool(tools))

        await self._change_entry(name, change)

    async def approve(self, server: Server) -> None:
        """Approve `config.launch` of this snapshot, as shown to the user. Raises KvchatError."""
        await asyncio.to_thread(self._approvals.approve_launch, server.config)
        self._publish()

    async def approve_tools(self, server: Server) -> None:
        """Approve the tool definitions of this snapshot, as shown to the user. Raises KvchatError."""
        await asyncio.to_thread(self._approvals.approve_tools, server.name, [item.tool for item in server.tools])
        self._publish()

    async def start(self, name: str) -> None:
        """Start a server and list its tools. Raises ToolFailed; `Server.reason` keeps the reason."""
        await self.source(name).tools()

    async def stop(self, name: str) -> None:
        await self.source(name).close()

    async def restart(self, name: str) -> None:
        await self.stop(name)
        await self.start(name)

    async def sign_in(self, name: str, open_browser: Callable[[str], object]) -> None:
        """Let the user sign in to an HTTP server. `open_browser` is called in another thread. Raises ToolFailed."""
        await self.source(name).sign_in(open_browser)
        await self.start(name)

    async def sign_out(self, name: str) -> None:
        await self.source(name).close()
        await asyncio.to_thread(self._secrets.store(name, OAUTH).forget)

    async def hide_secrets(self, name: str) -> list[str]:
        """Move values that look like secrets from mcp.json to the keyring. Return their names. Raises KvchatError."""
        moved: list[str] = []
        before, is_same = self.source(name).config, False

        def change(entry: dict[str, Any]) -> None:
            nonlocal is_same
            is_same = parse_server(name, entry).digest == before.digest  # not edited meanwhile
            for values in filter(lambda values: isinstance(values, dict), (entry.get("env"), entry.get("headers"))):
                assert values is not None
                for key, value in values.items():
                    if isinstance(value, str) and value and "${" not in value and looks_secret(key):
                        self._secrets.save(name, key, value)
                        values[key] = reference(key)
                        moved.append(key)

        was_approved = self._approvals.has_launch(before)
        await self._change_entry(name, change)
        if was_approved and is_same:
            await self.approve(self.source(name).server)
        return moved

    async def save_secret(self, name: str, key: str, value: str) -> str:
        """Save a secret of a server, and return its reference for the entry. Raises KvchatError."""
        await asyncio.to_thread(self._secrets.save, name, key, value)
        return reference(key)

    def with_stored_secrets(self, bundle: Bundle, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values, with references to the installed version's secrets in place of empty ones."""
        stored = secret_names(self._sources[bundle.name].config) if bundle.name in self._sources else ()
        secrets = (option.key for option in bundle.options if option.secret and option.key in stored)
        return dict(values) | {key: reference(key) for key in secrets if not values.get(key)}

    def bundle_config(self, bundle: Bundle, values: Mapping[str, Value]) -> ServerConfig:
        """Return the configuration that `install` would create with these values."""
        return parse_server(bundle.name, bundle_entry(bundle, values, self._paths.mcp_bundles))

    async def replaces_bundle(self, bundle: Bundle) -> bool:
        """Return True if another version is installed. Raises KvchatError if another server has its name."""
        if bundle.name not in self._sources:
            return False
        if not await asyncio.to_thread(bundle_folder(self._paths.mcp_bundles, bundle.name).exists):
            raise self._exists(bundle.name)
        return True

    async def install(self, bundle: Bundle, values: Mapping[str, Value]) -> str:
        """Install or update a bundle, and return the name of its server. Raises KvchatError."""
        if await self.replaces_bundle(bundle):
            await self._sources[bundle.name].close()  # Windows cannot replace open files
        values = self.with_stored_secrets(bundle, values)
        entry = await in_thread(lambda stop: install_bundle(bundle, values, self._paths.mcp_bundles, stop))
        for option in bundle.options:
            value = values.get(option.key, option.default)
            if option.secret and value not in (None, "", reference(option.key)):
                await self.save_secret(bundle.name, option.key, str(value))
        await self.add(bundle.name, entry, replace=True)
        return bundle.name

    async def close(self) -> None:
        await asyncio.gather(*(source.close() for source in self._sources.values()))
        await self._context.thread.close()

    @staticmethod
    def _exists(name: str) -> KvchatError:
        return KvchatError(_("The MCP server “{name}” already exists", name=name), advice=_("Remove it first."))

    async def _change_entry(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        self.source(name)

        def change_entry(entries: dict[str, Any]) -> None:
            if isinstance(entries.get(name), dict):
                change(entries[name])

        await self._change(change_entry)

    async def _change(self, change: Callable[[dict[str, Any]], object]) -> None:
        async with self._changing:
            await asyncio.to_thread(self._file.change, change)
            await self._load()

    async def _load(self) -> None:
        await asyncio.to_thread(self._approvals.load)
        try:
            configs, self.problem = await asyncio.to_thread(self._file.servers), None
        except ConfigBroken as error:
            self.problem = error
            self._publish()
            return
        before, self._sources = self._sources, {}
        for name, config in configs.items():
            source = before.get(name)
            if source is not None and source.config.digest == config.digest:
                source.config = config
            else:
                source = McpSource(config, self._context)
            self._sources[name] = source
        for name, source in before.items():
            if self._sources.get(name) is not source or source.config.disabled:
                await source.close()
        self._publish()

    def _publish(self) -> None:
        for listener in tuple(self._listeners):
            listener()


def _set_or_pop(entry: dict[str, Any], key: str, value: object, *, keep: bool) -> None:
    if keep:
        entry[key] = value
    else:
        entry.pop(key, None)
