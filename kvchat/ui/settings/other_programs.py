"""Settings, Other programs: API server on or off, address, key, and the configuration to paste."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QLineEdit, QPlainTextEdit, QWidget

from kvchat.gateway.keys import EVERYBODY, program_name
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from kvchat.text.language import N_, _
from kvchat.ui.base.building import button, column, label, line_edit, plain_text, row
from kvchat.ui.base.theme import Look, code_font
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.programs.clients import CLIENTS, Access, Client
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.controls import CopyButton
from kvchat.ui.widgets.entries import ChoiceBox, Entry
from kvchat.ui.widgets.layouts import flow

_KEY = N_("Grants access to the API server. All apps can use the same API key.")
_OWN = N_("An app with its own API key is identified by it, and its access can be revoked separately.")
_SET_UP = N_("Connects the app to kvchat. The copied text includes the API key.")
_HIDDEN = "•" * 12


class OtherProgramsPage(SettingsPage):
    name, key = N_("API server"), "programs"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        self.keys: Mapping[str, str] = {}  # by program
        self.add_settings(through="api_server")
        self.address = self.add(AddressEntry())
        self.key_entry = self.add(KeyEntry(self))
        self.lines = self.add(LinesEntry(self))
        self.add_settings(through="api_any_model")
        self.own = self.add(OwnKeysEntry(self))
        self.add_settings()
        self._inside = self.entries[1:]  # shown while access is on
        self.show_programs = button(_("Show…"), lambda: self.leads_to.emit("programs"), name=_("Show connected apps"))
        words = _("Requests by app, with the share remembered and the reasons for reprocessing.")
        self.programs = self.add(Entry(_("Connected apps"), words, self.show_programs))

    def change(self, name: str, value: Any) -> None:
        """Apply a setting; create a key when the API server is first switched on."""
        api_server = self.runtime.api_server

        async def change() -> None:
            if name == "api_server" and value and not await api_server.keys():
                await api_server.make_key(EVERYBODY)
            try:
                await self.runtime.apply_settings(replace(self.runtime.settings, **{name: value}))
            finally:
                self.refresh()

        self.run(change())

    def refresh(self) -> None:
        super().refresh()
        on = self.runtime.settings.api_server
        for entry in self._inside:
            entry.setVisible(on)
        self.address.show_url(self.runtime.api_server.url)
        self._show_keys()
        if on and self.isVisible():
            self.run(self.load_keys())

    def showEvent(self, event: Any) -> None:
        super().showEvent(event)
        self.refresh()

    @property
    def access(self) -> Access:
        port = self.runtime.settings.api_port
        url = self.runtime.api_server.url or f"http://127.0.0.1:{port}"
        model = self.runtime.model.name or "default"
        key, context = self.keys.get(EVERYBODY, ""), self.runtime.engine.context_size
        return Access(url, key, model, context, sys.platform == "win32")

    async def load_keys(self) -> None:
        self.keys = await self.runtime.api_server.keys()
        self._show_keys()

    async def make_key(self, program: str = EVERYBODY) -> None:
        await self.runtime.api_server.make_key(program)
        await self.load_keys()

    async def revoke_key(self, program: str) -> None:
        await self.runtime.api_server.revoke_key(program)
        await self.load_keys()

    def _show_keys(self) -> None:
        self.key_entry.show_key(self.keys.get(EVERYBODY, ""))
        self.own.show_keys({name: key for name, key in self.keys.items() if name != EVERYBODY})
        self.lines.show_lines()


class AddressEntry(Entry):
    def __init__(self) -> None:
        self.field = line_edit(_("Address"))
        self.field.setReadOnly(True)
        self.copy, holder = CopyButton(_("the address"), self.field.text), QWidget()
        row((self.field, 1), self.copy, on=holder, spacing=8, margins=0)
        super().__init__(_("Address"), "", holder, wide=True)

    def show_url(self, url: str | None) -> None:
        self.field.setText(url or "")
        self.copy.setEnabled(url is not None)
        if url is None:
            self.set_help(_("The API server could not start. Try another port."))
        elif "//127.0.0.1" in url or "//[::1]" in url or "//localhost" in url:
            self.set_help(_("Only this computer can connect."))
        else:
            self.set_help(_("Other computers on the network can also connect."))


class KeyEntry(Entry):
    def __init__(self, page: OtherProgramsPage) -> None:
        self._page, self._key = page, ""
        self.field = line_edit(_("API key"))
        self.field.setReadOnly(True)
        self.reveal = button(_("Show"), self._toggle, name=_("Show the API key"))
        self.copy = CopyButton(_("the API key"), lambda: self._key)
        self.renew = button(_("Replace…"), self._ask, name=_("Replace the API key"))
        holder = QWidget()
        column(self.field, flow(self.reveal, self.copy, self.renew), on=holder, spacing=8, margins=0)
        super().__init__(_("API key"), _(_KEY), holder, wide=True)

    @property
    def is_open(self) -> bool:
        return self.field.echoMode() is QLineEdit.EchoMode.Normal

    def show_key(self, key: str) -> None:
        self._key = key
        self.field.setText(key)
        self._reveal(self.is_open and bool(key))
        self.set_help(_(_KEY) if key else _("No API key is set. Every app on this computer has access."))
        self.renew.setText(_("Replace…") if key else _("Create key"))
        for widget in (self.field, self.reveal, self.copy):
            widget.setVisible(bool(key))

    def restore(self, settings: Settings) -> None:
        self._reveal(False)

    def _toggle(self) -> None:
        self._reveal(not self.is_open)
        self._page.lines.show_lines()

    def _reveal(self, is_open: bool) -> None:
        self.field.setEchoMode(QLineEdit.EchoMode.Normal if is_open else QLineEdit.EchoMode.Password)
        self.field.setCursorPosition(0)
        self.reveal.setText(_("Hide") if is_open else _("Show"))

    def _ask(self) -> None:
        if not self._key:
            self._make()
            return
        words = _("Apps with the old API key lose access until you give them the new one.")
        confirm(self._page.panel, _("Create a new API key?"), words, _("Create new key"), self._make)

    def _make(self) -> None:
        self._page.run(self._page.make_key())


class LinesEntry(Entry):
    def __init__(self, page: OtherProgramsPage) -> None:
        self._page = page
        self.box = ChoiceBox(page.look, _("App"))
        for client in CLIENTS:
            self.box.addItem(client.name, client)
        self.where = label(kind="small", wraps=True)
        self.text = plain_text(_("Configuration to paste"), code_font(page.look.fonts.mono, page.look.fonts.small))
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.copy = CopyButton(_("the configuration"), lambda: self.client.lines(page.access))
        self.link = button(_("Documentation"), self._open, "link")
        holder = QWidget()
        column(flow(self.box, self.copy, self.link), self.where, self.text, on=holder, spacing=8, margins=0)
        super().__init__(_("Connect an app"), _(_SET_UP), holder, wide=True)
        self.box.activated.connect(self.show_lines)
        page.look.changed.connect(self.show_lines)

    @property
    def client(self) -> Client:
        chosen: Client = self.box.currentData()
        return chosen

    def show_lines(self) -> None:
        """Show the chosen program's configuration, with the key only if it is revealed."""
        access, look = self._page.access, self._page.look
        shown = access if self._page.key_entry.is_open or not access.key else replace(access, key=_HIDDEN)
        self.where.setText(_(self.client.where))
        lines = self.client.lines(shown)
        self.text.setFont(code_font(look.fonts.mono, look.fonts.small))
        if self.text.toPlainText() != lines:
            self.text.setPlainText(lines)
        height = self.text.fontMetrics().lineSpacing() * (lines.count("\n") + 1)
        self.text.setFixedHeight(min(height + look.px(46), look.px(360)))

    def _open(self) -> None:
        QDesktopServices.openUrl(QUrl(self.client.link))


class OwnKeysEntry(Entry):
    def __init__(self, page: OtherProgramsPage) -> None:
        self._page = page
        self.rows: dict[str, QWidget] = {}  # by program
        self.field = line_edit(_("App name"), _("for example zed"))
        self.make = button(_("Create key"), self._make, name=_("Create an API key for this app"))
        holder = QWidget()
        self._list = column(spacing=6)
        column(self._list, row((self.field, 1), self.make, spacing=8), on=holder, spacing=8, margins=0)
        super().__init__(_("API keys for individual apps"), _(_OWN), holder, wide=True)
        self.field.returnPressed.connect(self._make)

    def show_keys(self, keys: Mapping[str, str]) -> None:
        for old in self.rows.values():
            old.hide()
            old.deleteLater()
        self.rows = {name: self._key_row(name, key) for name, key in sorted(keys.items())}
        for made in self.rows.values():
            self._list.addWidget(made)

    def restore(self, settings: Settings) -> None:
        self.field.clear()

    def _key_row(self, name: str, key: str) -> QWidget:
        made = QWidget()
        copy = CopyButton(_("the API key of {name}", name=name), lambda: key)
        words = _("Revoke the API key of {name}", name=name)
        revoke = button(_("Revoke"), lambda: self._page.run(self._page.revoke_key(name)), name=words)
        row((label(name, selectable=True), 1), copy, revoke, on=made, spacing=8, margins=0)
        return made

    def _make(self) -> None:
        if name := program_name(self.field.text()):
            self.field.clear()
            self._page.run(self._page.make_key(name))
