"""The tools page of the settings: built-in tools, MCP servers and permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices, QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QFileDialog, QFrame, QWidget

from kvchat.chat.turn.tool_calls import Grant
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_age
from kvchat.text.language import N_, _, join_list, join_parts, join_sentences, pgettext, plural
from kvchat.text.safe_text import safe_code, safe_prose
from kvchat.tools.mcp.bundles import read_bundle
from kvchat.tools.mcp.foreign import ForeignServers, find_foreign_servers
from kvchat.tools.mcp.server import Server, ServerState
from kvchat.ui.base.building import button, clear, column, label, row, show_text, styled
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.chat.composer import local_files
from kvchat.ui.dialogs.confirm import confirm, file_dialog
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.mcp_bundles import InstallBundleDialog
from kvchat.ui.settings.mcp_servers import (
    EditServerDialog,
    PasteDialog,
    ServerWindow,
    ask_to_approve,
    ask_to_approve_changes,
)
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.controls import Switch
from kvchat.ui.widgets.layouts import ElidedLabel, flow
from kvchat.ui.widgets.tool_tree import source_label

_SERVERS_HELP = N_(
    "Local programs and web services that provide tools. A local server runs with all your permissions. "
    "Add only servers that you trust."
)
_GRANTS_HELP = N_("These tools run without asking you. A chat’s “Permission” setting can allow more tools.")
_STARTED = (ServerState.STARTING, ServerState.RUNNING, ServerState.FAILED)


class ServerRow(QFrame):
    """A server with its state and buttons."""

    def __init__(self, page: ToolsPage, server: Server) -> None:
        super().__init__()
        styled(self, "card")
        name = safe_prose(server.name)
        self._page, self._manager, self.server = page, page.manager, server
        self.state, self.launch = label(kind="small"), ElidedLabel("small")
        self.reason = label(kind="small", wraps=True, selectable=True)
        self.switch = Switch(page.look, name)

        self.approve_button = button(
            _("Approve…"), lambda: page.approve(self.server), "primary", name=_("Approve {name}", name=name)
        )
        self.review_button = button(
            _("Review tools…"), self._review, "primary", name=_("Review the tools of {name}", name=name)
        )
        self.sign_in_button = button(_("Sign in…"), self._sign_in, "primary", name=_("Sign in to {name}", name=name))
        self.details_button = button(
            _("Tools and log…"), self._show_details, name=_("Tools and log of {name}", name=name)
        )
        self.start_button = button(_("Start"), lambda: page.run(self._manager.restart(server.name)))
        self.edit_button = button(_("Edit…"), lambda: page.edit(server.name), name=_("Edit {name}", name=name))
        self.remove_button = button(_("Remove…"), self._ask_to_remove, "danger", name=_("Remove {name}", name=name))
        self.switch.clicked.connect(self._toggle)
        title = ElidedLabel("strong")
        title.set_text(name)
        above = row(title, (self.state, 1), self.switch, spacing=10)
        buttons = flow(
            self.approve_button,
            self.review_button,
            self.sign_in_button,
            self.details_button,
            self.start_button,
            self.edit_button,
            self.remove_button,
        )
        column(above, self.launch, self.reason, buttons, on=self, spacing=6, margins=(14, 10, 14, 12))
        self.show_server(server)

    def show_server(self, server: Server) -> None:
        self.server = server
        state, pending = server.state, len(server.pending_tools)
        count = plural(len(server.tools), "{count} tool", "{count} tools") if server.tools else ""
        needs_sign_in = server.needs_sign_in and state is ServerState.FAILED
        state_text = _("sign-in required") if needs_sign_in else _(state.value)
        self.state.setText(join_parts((state_text, count)))
        bad = state in (ServerState.FAILED, ServerState.INVALID) and not needs_sign_in
        restyle(
            self.state,
            "tone",
            "bad" if bad else "warn" if needs_sign_in else "good" if state is ServerState.RUNNING else "",
        )
        self.launch.set_text(safe_code(server.config.launch))
        self.launch.setVisible(state is not ServerState.INVALID)
        changed = plural(
            pending,
            "The definition of {count} tool has changed. The model cannot use it until you approve it.",
            "The definitions of {count} tools have changed. The model cannot use them until you approve them.",
        )
        reason = safe_prose(join_sentences(server.reason, changed if pending else "", *server.problems))
        show_text(self.reason, reason)
        restyle(self.reason, "tone", "bad" if bad else "warn")
        self.switch.setChecked(state is not ServerState.OFF)
        self.switch.setAccessibleDescription(join_list((state_text, count, reason)))
        usable = state not in (ServerState.OFF, ServerState.INVALID, ServerState.NOT_APPROVED)
        self.switch.setEnabled(state is not ServerState.INVALID)
        self.approve_button.setVisible(state is ServerState.NOT_APPROVED)
        self.review_button.setVisible(bool(pending) and usable)
        self.sign_in_button.setVisible(server.needs_sign_in and usable)
        self.start_button.setVisible(usable)
        self.start_button.setEnabled(state is not ServerState.STARTING)
        self.start_button.setText(_("Restart") if state in _STARTED else _("Start"))
        self.start_button.setAccessibleName(f"{self.start_button.text()} {safe_prose(server.name)}")

    def _toggle(self) -> None:
        self._page.run(self._manager.set_enabled(self.server.name, self.server.state is ServerState.OFF))

    def _review(self) -> None:
        server, run = self.server, self._page.run
        ask_to_approve_changes(self._page.look, self._page, server, lambda: run(self._manager.approve_tools(server)))

    def _sign_in(self) -> None:
        loop = asyncio.get_running_loop()

        def open_browser(url: str) -> None:  # called in another thread
            if url.startswith(("http://", "https://")):
                loop.call_soon_threadsafe(QDesktopServices.openUrl, QUrl(url))

        self._page.run(self._manager.sign_in(self.server.name, open_browser))

    def _show_details(self) -> None:
        page = self._page
        window = ServerWindow(page.runtime, page.look, page.panel.runner, self.server.name, page.panel)
        window.bring_forward()

    def _ask_to_remove(self) -> None:
        page, name = self._page, self.server.name
        title = _("Remove the MCP server “{name}”?", name=safe_prose(name))
        text = _("kvchat also deletes its secrets. Chats that use its tools keep their messages.")
        confirm(page.panel, title, text, _("Remove"), lambda: page.run(self._manager.remove(name)))


class ToolsPage(SettingsPage):
    name, key = N_("Tools"), "tools"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        self.manager = runtime.mcp_servers
        self.rows: dict[str, ServerRow] = {}
        self._folders, self._shown_folders = column(spacing=6), tuple[str, ...]()
        add_folder = button(_("Add folder…"), self._choose_folder, name=_("Add a folder for the file tools"))
        help = _("Built-in tools can list and read files in these folders only.")
        self.add_wide(_("Folders"), help, self._folders, flow(add_folder))
        self.add_settings()
        self._servers = column(spacing=8)
        self.empty_label = label(_("No MCP servers yet."), "muted")
        self.problem_label = label(kind="refusal", wraps=True, selectable=True)
        self.add_button = button(_("Add…"), lambda: self.edit(""), name=_("Add an MCP server"))
        self.paste_button = button(_("Paste JSON…"), self.paste, name=_("Paste the configuration of MCP servers"))
        self.install_button = button(_("Install from file…"), self._choose_bundle, name=_("Install an MCP bundle"))
        self.setAcceptDrops(True)
        self.file_button = button(_("Open mcp.json"), self._open_file, "link")
        self._imports = flow(self.add_button, self.install_button, self.paste_button)
        buttons = QWidget()
        buttons.setLayout(self._imports)
        parts = self.problem_label, self._servers, self.empty_label, buttons, flow(self.file_button)
        self.servers_entry = self.add_wide(_("MCP servers"), _(_SERVERS_HELP), *parts)
        self._import_buttons: dict[str, QWidget] = {}
        self._grants = column(spacing=6)
        self.grants_entry = self.add_wide(_("Tools allowed without asking"), _(_GRANTS_HELP), self._grants)
        panel.subscribe_while_open(self.manager.subscribe, self.show_servers)
        self.show_servers()

    def showEvent(self, event: Any) -> None:
        super().showEvent(event)
        self.run(self._load())

    async def validation_error(self, name: str, text: str) -> str:
        is_address = text.startswith(("http://", "https://"))
        return "" if is_address else _("Enter an address that begins with http:// or https://.")

    def refresh(self) -> None:
        super().refresh()
        if self.runtime.settings.tool_folders == self._shown_folders:
            return  # keep the focus
        self._shown_folders = self.runtime.settings.tool_folders
        clear(self._folders)
        for folder in self._shown_folders:
            text = ElidedLabel()
            text.set_text(folder)
            remove = button(
                _("Remove"), partial(self._remove_folder, folder), "link", name=_("Remove {name}", name=folder)
            )
            self._folders.addLayout(row((text, 1), remove, spacing=8))

    async def _load(self) -> None:
        await self.manager.load()
        await self.load_grants()
        for found in await asyncio.to_thread(find_foreign_servers):
            self._offer_import(found)

    def show_servers(self) -> None:
        servers = {server.name: server for server in self.manager.servers}
        for name in self.rows.keys() - servers.keys():
            gone = self.rows.pop(name)
            gone.hide()
            gone.deleteLater()
        for name, server in servers.items():
            if name in self.rows:
                self.rows[name].show_server(server)
            else:
                self.rows[name] = ServerRow(self, server)
                self._servers.addWidget(self.rows[name])
        problem = self.manager.problem
        show_text(self.problem_label, str(problem) if problem else "")
        self.empty_label.setVisible(not servers and problem is None)

    def approve(self, server: Server) -> None:
        """Show the exact command line or URL, and start the server if the user approves it."""

        async def approve() -> None:
            await self.manager.approve(server)
            await self.manager.start(server.name)

        ask_to_approve(self.look, self, server, lambda: self.run(approve()))

    def edit(self, name: str) -> EditServerDialog:
        """Open the form for a server, or for a new one if `name` is empty, and then ask for approval."""

        async def show() -> None:
            dialog.fill(name, await self.manager.entry(name) if name else {})

        async def save(new_name: str, entry: Mapping[str, Any]) -> None:
            await self.manager.add(new_name, entry, replace=bool(name))
            dialog.close()
            await self.manager.hide_secrets(new_name)
            server = self.manager.source(new_name).server
            if server.state is ServerState.NOT_APPROVED:
                self.approve(server)

        dialog = EditServerDialog(self.runtime, self.look, self.panel.runner, self.panel)
        dialog.saved.connect(lambda new_name, entry: dialog.run(save(new_name, entry)))
        dialog.bring_forward()
        dialog.run(show())
        return dialog

    def paste(self) -> PasteDialog:
        async def add(entries: Mapping[str, Mapping[str, Any]]) -> None:
            dialog.close()
            await self._import(entries)

        dialog = PasteDialog(self.runtime, self.look, self.panel.runner, self.panel)
        dialog.pasted.connect(lambda entries: dialog.run(add(entries)))
        dialog.bring_forward()
        return dialog

    def install(self, path: Path) -> None:
        """Show what a bundle contains and will run, and install it if the user agrees."""

        def start(name: str) -> None:
            if (server := self.manager.source(name).server).state is ServerState.NOT_APPROVED:
                self.approve(server)
            elif server.state is not ServerState.OFF:
                self.run(self.manager.start(name))

        async def show() -> None:
            bundle = await asyncio.to_thread(read_bundle, path)
            is_update = await self.manager.replaces_bundle(bundle)
            panel = self.panel
            InstallBundleDialog(self.runtime, self.look, panel.runner, panel, bundle, is_update, start).bring_forward()

        self.run(show())

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if any(path.suffix.lower() == ".mcpb" for path in local_files(event.mimeData())):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        event.acceptProposedAction()
        for path in local_files(event.mimeData()):
            self.install(path)

    def _choose_bundle(self) -> None:
        filters = _("MCP bundles (*.mcpb);;All files (*)")
        dialog = file_dialog(self, _("Install an MCP bundle"), QFileDialog.FileMode.ExistingFile, filters)
        dialog.fileSelected.connect(lambda picked: self.install(Path(picked)))
        dialog.open()

    def _offer_import(self, found: ForeignServers) -> None:
        new = [name for name in found.entries if name not in self.rows]
        key = str(found.path)
        if (old := self._import_buttons.pop(key, None)) is not None:
            self._imports.removeWidget(old)
            old.hide()
            old.deleteLater()
        if new:
            count = plural(len(new), "{count} server", "{count} servers")
            text = _("Import from {app} ({count})", app=found.app, count=count)
            self._import_buttons[key] = added = button(text, lambda: self.run(self._import(found.entries)))
            self._imports.addWidget(added)

    async def _import(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        added = await self.manager.add_all(entries)
        for name in added:
            await self.manager.hide_secrets(name)
        title = plural(len(added), "{count} MCP server was added", "{count} MCP servers were added")
        skipped = sorted(entries.keys() - set(added))
        known = _("Already configured: {names}.", names=join_list(map(safe_prose, skipped))) if skipped else ""
        approve = _("Approve each one before its first start.") if added else ""
        self.panel.notices.notify(title, join_sentences(known, approve))
        for found in await asyncio.to_thread(find_foreign_servers):
            self._offer_import(found)

    def _open_file(self) -> None:
        async def open_file() -> None:
            if not await asyncio.to_thread(self.manager.file.exists):
                await self.manager.add_all({})
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(self.manager.file)))

        self.run(open_file())

    def _choose_folder(self) -> None:
        dialog = file_dialog(self, _("Add a folder for the file tools"), QFileDialog.FileMode.Directory)
        dialog.fileSelected.connect(self.add_folder)
        dialog.open()

    def add_folder(self, folder: str) -> None:
        folders = self.runtime.settings.tool_folders
        self.change("tool_folders", (*folders, *({folder} - set(folders))))

    def _remove_folder(self, folder: str, _checked: bool = False) -> None:
        self.change("tool_folders", tuple(other for other in self.runtime.settings.tool_folders if other != folder))

    async def load_grants(self) -> None:
        chat = self.runtime.chat
        grants = await chat.turns.tool_calls.grants()
        titles = {conversation.id: conversation.title for conversation in await chat.conversations()}
        self._show_grants(grants, titles)

    def _show_grants(self, grants: Sequence[Grant], titles: Mapping[str, str]) -> None:
        clear(self._grants)
        self.grants_entry.set_help(_(_GRANTS_HELP) if grants else _("No tool may run without asking you."))
        for grant in grants:
            tool = join_parts((safe_prose(grant.name), source_label(grant.source)))
            where = _("in all chats")
            if grant.conversation_id:
                where = _("in “{title}”", title=titles.get(grant.conversation_id, _("a deleted chat")))
            when = format_age(datetime.fromtimestamp(grant.granted_at, UTC).astimezone(), datetime.now().astimezone())
            revoke_name = _("Revoke the permission for {tool} ({where})", tool=tool, where=where)
            revoke = button(pgettext("permission", "Revoke"), partial(self._revoke, [grant]), name=revoke_name)
            text = column(label(tool, wraps=True), label(join_parts((where, when)), "small", wraps=True), spacing=1)
            self._grants.addLayout(row((text, 1), revoke, spacing=8))
        if len(grants) > 1:
            self._grants.addLayout(flow(button(_("Revoke all"), partial(self._revoke, list(grants)), "link")))

    def _revoke(self, grants: Sequence[Grant], _checked: bool = False) -> None:
        async def revoke() -> None:
            await self.runtime.chat.turns.tool_calls.revoke(grants)
            await self.load_grants()

        self.run(revoke())
