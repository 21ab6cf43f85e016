"""Dialogs for MCP servers: approve, review changed tools, add, edit and paste; and a window with tools and log.

Texts from servers are untrusted and shown as plain text.
"""

import shlex
import sys
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QLabel, QLineEdit, QPlainTextEdit, QTabWidget, QWidget

from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.text.language import _, end_sentence
from kvchat.text.safe_text import safe_code, safe_prose
from kvchat.tools.mcp.foreign import read_pasted
from kvchat.tools.mcp.server import Server, ServerState, ServerTool
from kvchat.tools.tool import SourceTools
from kvchat.ui.base.building import STRETCH, button, column, label, line_edit, plain_text, row, show_text, text_editor
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look, code_font
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.widgets.tool_tree import ToolTree

_MAX_REVIEW_LINES, _EDITOR_LINES = 12, 4
_EXAMPLE = '{"mcpServers": {"files": {"command": "npx", "args": ["-y", "…"]}}}'


def _box(look: Look, name: str, text: str) -> QPlainTextEdit:
    lines = min(text.count("\n") + 1 + len(text) // 60, _MAX_REVIEW_LINES)
    return plain_text(name, code_font(look.fonts.mono, look.fonts.small), text, lines=lines)


def ask_to_approve(look: Look, parent: QWidget, server: Server, on_yes: Callable[[], object]) -> None:
    """Show the exact command line or URL of a server, and call `on_yes` if the user approves it."""
    name = safe_prose(server.name)
    title = _("Start the MCP server “{name}”?", name=name)
    text = _("kvchat will run this command with all your permissions.")
    if server.config.url:
        text = _("kvchat will connect to this URL and send it what the model passes to the server’s tools.")
        title = _("Connect to the MCP server “{name}”?", name=name)
    launch = _box(look, _("Command or URL"), safe_code(server.config.launch))
    confirm(parent, title, text, _("Approve"), on_yes, keep=_("Not now"), details=launch)


def ask_to_approve_changes(look: Look, parent: QWidget, server: Server, on_yes: Callable[[], object]) -> None:
    """Show the old and the new descriptions of tools whose definitions have changed."""
    title = _("The tools of “{name}” have changed", name=safe_prose(server.name))
    text = _("A changed description can mislead the model. Approve it only if it describes what you expect.")
    parts = [f"{safe_prose(item.tool.name)}\n{_describe_change(item)}" for item in server.tools if not item.approved]
    changes = _box(look, _("Changes"), "\n\n".join(parts))
    confirm(parent, title, text, _("Approve"), on_yes, keep=_("Not now"), details=changes)


def _indented(description: str) -> str:
    """Indent all lines but the first, so that a description cannot imitate other entries of the list."""
    return safe_prose(description).replace("\n", "\n    ")


def _describe_change(item: ServerTool) -> str:
    new = _indented(item.tool.description)
    if item.approved_description is None:
        return _("New tool: {description}", description=new)
    old = _indented(item.approved_description)
    if old == new:
        return _("Same description, different arguments: {description}", description=new)
    return "\n".join(
        (_("Old description: {description}", description=old), _("New description: {description}", description=new))
    )


def split_command(text: str) -> list[str]:
    """Split a command line. Raises ValueError."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    if sys.platform == "win32":
        lexer.escape = ""  # a backslash is part of a path
    return list(lexer)


class EditServerDialog(Panel):
    saved = Signal(str, dict)  # name, entry for mcp.json

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("MCP server"), parent, size=(560, 420), min_size=(420, 320))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self._entry: dict[str, Any] = {}
        self.name = line_edit(_("Name"), _("for example files"))
        self.launch = line_edit(_("Command or URL"), "npx -y @modelcontextprotocol/server-filesystem /home/me/notes")
        self.values = text_editor(_("Variables"), "API_KEY=…", _EDITOR_LINES, grows=True)
        self.refusal = label(kind="refusal", wraps=True)
        self.refusal.hide()
        help = _(
            "One NAME=VALUE per line: environment variables for the command, or headers for the URL. "
            "kvchat moves keys and tokens to the system keyring."
        )
        self.save_button = button(_("Save"), self._save, "primary")
        self.save_button.setDefault(True)
        fields = *_named(_("Name"), self.name), *_named(_("Command or URL"), self.launch)
        values = label(_("Variables"), "strong"), label(help, "small", wraps=True), (self.values, 1)
        below = row(STRETCH, button(_("Cancel"), self.close), self.save_button, spacing=8)
        column(self.notices, *fields, *values, self.refusal, below, on=self, spacing=6, margins=(24, 18, 24, 16))

    def fill(self, name: str, entry: dict[str, Any]) -> None:
        """Show an entry of mcp.json; `entry` is empty for a new server."""
        self._entry = entry
        self.name.setText(name)
        self.name.setReadOnly(bool(name))
        url, arguments = entry.get("url"), entry.get("args", [])
        command = [entry.get("command", ""), *(arguments if isinstance(arguments, list) else [])]
        self.launch.setText(str(url) if url else shlex.join(map(str, command)) if command[0] else "")
        values = entry.get("headers" if url else "env", {})
        lines = [f"{key}={value}" for key, value in values.items()] if isinstance(values, dict) else []
        self.values.setPlainText("\n".join(lines))
        (self.launch if name else self.name).setFocus()

    def _save(self) -> None:
        name, launch = self.name.text().strip(), self.launch.text().strip()
        try:
            command = split_command(launch)
        except ValueError:
            show_text(self.refusal, _("The command has an unclosed quotation mark."))
            return
        pairs = [line.strip().partition("=") for line in self.values.toPlainText().splitlines() if line.strip()]
        if not name or not command:
            show_text(self.refusal, _("Enter a name, and a command or URL."))
        elif bad := next((key or rest for key, equals, rest in pairs if not (key.strip() and equals)), ""):
            show_text(self.refusal, _("“{text}” is not in the form NAME=VALUE.", text=bad))
        else:
            show_text(self.refusal, "")
            values = {key.strip(): value.strip() for key, _equals, value in pairs}
            replaced = ("command", "args", "env", "url", "headers")
            entry = {key: value for key, value in self._entry.items() if key not in replaced}
            if launch.startswith(("http://", "https://")):
                entry |= {"url": launch} | ({"headers": values} if values else {})
            else:
                entry.pop("type", None)
                entry |= {"command": command[0], "args": command[1:]} | ({"env": values} if values else {})
            self.saved.emit(name, entry)


def _named(text: str, field: QLineEdit) -> tuple[QLabel, QLineEdit]:
    above = label(text, "strong")
    above.setBuddy(field)
    return above, field


class PasteDialog(Panel):
    pasted = Signal(dict)  # entries for mcp.json by name

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Paste MCP servers"), parent, size=(560, 380), min_size=(420, 280))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.text = text_editor(_("Configuration"), _EXAMPLE, _EDITOR_LINES, grows=True)
        self.refusal = label(kind="refusal", wraps=True)
        self.refusal.hide()
        help = _("Paste the JSON from the server’s documentation or another app. Nothing starts before you approve it.")
        self.add_button = button(_("Add"), self._add, "primary")
        below = row(STRETCH, button(_("Cancel"), self.close), self.add_button, spacing=8)
        parts = self.notices, label(help, wraps=True), (self.text, 1), self.refusal, below
        column(*parts, on=self, spacing=8, margins=(24, 18, 24, 16))
        self.text.setFocus()

    def _add(self) -> None:
        try:
            entries = read_pasted(self.text.toPlainText())
        except KvchatError as error:
            show_text(self.refusal, end_sentence(str(error)))
            return
        self.pasted.emit(entries)


class ServerWindow(Panel):
    """The tools of a server with a switch, description and token cost each, and the server's log."""

    def __init__(
        self, runtime: Runtime, look: Look, runner: TaskRunner, name: str, parent: QWidget | None = None
    ) -> None:
        title = _("MCP server {name}", name=safe_prose(name))
        super().__init__(runtime, look, runner, title, parent, size=(640, 520), min_size=(440, 320))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.name, self.manager = name, runtime.mcp_servers
        self._counted: SourceTools | None = None
        fixed = code_font(look.fonts.mono, look.fonts.small)
        self.tree, self.log = ToolTree(), plain_text(_("Log"), fixed)
        self.description = plain_text(_("Description"), fixed, lines=7)
        self.empty_label = label(_("The tools are listed when the server starts."), "muted", wraps=True)
        tools, self.tabs = QWidget(), QTabWidget()
        help = label(_("Tools that are turned off are not offered to new chats."), "small", wraps=True)
        parts = help, self.empty_label, (self.tree, 1), self.description
        column(*parts, on=tools, spacing=8, margins=(0, 8, 0, 0))
        self.tabs.addTab(tools, _("Tools"))
        self.tabs.addTab(self.log, _("Log"))
        self.close_button = button(_("Close"), self.close)
        below = row(STRETCH, self.close_button)
        column(self.notices, (self.tabs, 1), below, on=self, spacing=8, margins=(20, 14, 20, 14))
        self.tree.selection_edited.connect(self._select)
        self.tree.currentItemChanged.connect(lambda item: self._describe())
        self.tabs.currentChanged.connect(lambda _index: self._show())
        self.subscribe_while_open(self.manager.subscribe, self._show)
        if self.manager.source(name).server.state is ServerState.FAILED:
            self.tabs.setCurrentWidget(self.log)
        self._show()

    def _show(self) -> None:
        source = next((source for source in self.manager.servers if source.name == self.name), None)
        if source is None:  # removed
            self.close()
            return
        offer = SourceTools(self.name, tuple(item.tool for item in source.tools))
        enabled = {f"{self.name}/{item.tool.name}" for item in source.tools if item.enabled}
        self.empty_label.setVisible(not offer.tools)
        self.tree.setVisible(bool(offer.tools))
        self.description.setVisible(bool(offer.tools))
        self.tree.show_offers([offer], enabled)
        self._describe()
        lines = "\n".join(self.manager.source(self.name).log.lines) or _("The log is empty.")
        if self.log.toPlainText() != lines:
            self.log.setPlainText(lines)
            self.log.verticalScrollBar().setValue(self.log.verticalScrollBar().maximum())
        if offer != self._counted and offer.tools:
            self._counted = offer
            self.run(self._count(offer))

    async def _count(self, offer: SourceTools) -> None:
        count = await self._runtime.chat.tool_choice.count(offer.tools)
        self.tree.show_tokens(self.name, count.tokens, is_exact=count.is_exact)

    def _describe(self) -> None:
        tool = self.tree.tool_at(self.tree.currentItem())
        self.description.setPlainText(safe_prose(tool.description) if tool else "")

    def _select(self, selected: tuple[str, ...]) -> None:
        async def store() -> None:
            for item in self.manager.source(self.name).server.tools:
                name = item.tool.name
                enabled = f"{self.name}/*" in selected or f"{self.name}/{name}" in selected
                if enabled != item.enabled:
                    await self.manager.set_tool_enabled(self.name, name, enabled)

        self.run(store())
