"""The API server page of the settings: switch, address, API keys, and the configuration to paste."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPlainTextEdit

from kvchat.gateway.keys import ANY_PROGRAM, program_name
from kvchat.runtime import Runtime
from kvchat.text.language import N_, _, pgettext
from kvchat.ui.base.building import button, clear, column, label, line_edit, plain_text, row
from kvchat.ui.base.theme import Look, code_font
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.programs.clients import CLIENTS, Client, ServerAccess
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.controls import CopyButton
from kvchat.ui.widgets.entries import ChoiceBox, Entry
from kvchat.ui.widgets.layouts import flow

_KEY_HELP = N_("Grants access to the API server. All apps can use the same API key.")
_APP_KEYS_HELP = N_("kvchat identifies each of these apps by its key. Revoking a key does not affect other apps.")
_CONFIGURATION_HELP = N_("Connects the app to kvchat. The copied text includes the API key.")
_HIDDEN_KEY = "•" * 12


class ApiServerPage(SettingsPage):
    name, key = N_("API server"), "programs"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        self.keys: Mapping[str, str] = {}  # by app
        self._load_count = 0  # number of key loads started so far
        self.add_settings(through="api_server")
        self.address = line_edit(_("Address"))
        self.address.setReadOnly(True)
        self.copy_address_button = CopyButton(_("the address"), self.address.text)
        self.address_entry = self.add_wide(
            _("Address"), "", row((self.address, 1), self.copy_address_button, spacing=8)
        )
        self.key_field = line_edit(_("API key"))
        self.key_field.setReadOnly(True)
        self.show_key_button = button(
            _("Show"), lambda: self._show_key(not self.is_key_shown), name=_("Show the API key")
        )
        self.copy_key_button = CopyButton(_("the API key"), lambda: self._common_key)
        self.replace_key_button = button(_("Replace…"), self._ask_to_replace, name=_("Replace the API key"))
        key_buttons = flow(self.show_key_button, self.copy_key_button, self.replace_key_button)
        self.key_entry = self.add_wide(_("API key"), _(_KEY_HELP), self.key_field, key_buttons)
        self._add_configuration()
        self.add_settings(through="api_any_model")
        self.app_name = line_edit(_("App name"), _("for example zed"))
        self.app_name.returnPressed.connect(self._make_app_key)
        self.app_keys = column(spacing=6)
        make = button(_("Create key"), self._make_app_key, name=_("Create an API key for this app"))
        new_key = row((self.app_name, 1), make, spacing=8)
        self.add_wide(_("API keys for individual apps"), _(_APP_KEYS_HELP), self.app_keys, new_key)
        self.add_settings()
        self._server_entries = self.entries[1:]  # shown while the API server is on
        self.programs_button = button(
            _("Show…"), lambda: self.window_requested.emit("programs"), name=_("Show connected apps")
        )
        help = _("Requests from each app, how much of each was remembered, and why the rest was reprocessed.")
        self.programs = self.add(Entry(_("Connected apps"), help, self.programs_button))

    def _add_configuration(self) -> None:
        fonts = self.look.fonts
        self.client_box = ChoiceBox(self.look, _("App"))
        for client in CLIENTS:
            self.client_box.addItem(client.name, client)
        self.config_location_label = label(kind="small", wraps=True)
        self.configuration = plain_text(_("Configuration to paste"), code_font(fonts.mono, fonts.small))
        self.configuration.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.copy_configuration_button = CopyButton(
            _("the configuration"), lambda: self._client.configuration(self.access)
        )
        self.documentation_button = button(
            _("Documentation"), lambda: QDesktopServices.openUrl(QUrl(self._client.link)), "link"
        )
        buttons = flow(self.client_box, self.copy_configuration_button, self.documentation_button)
        self.add_wide(
            _("Connect an app"), _(_CONFIGURATION_HELP), buttons, self.config_location_label, self.configuration
        )
        self.client_box.activated.connect(self._show_configuration)
        self.look.changed.connect(self._show_configuration)

    @property
    def is_key_shown(self) -> bool:
        return self.key_field.echoMode() is QLineEdit.EchoMode.Normal

    @property
    def _common_key(self) -> str:
        return self.keys.get(ANY_PROGRAM, "")

    @property
    def _client(self) -> Client:
        client: Client = self.client_box.currentData()
        return client

    @property
    def access(self) -> ServerAccess:
        url = self.runtime.api_server.url or f"http://127.0.0.1:{self.runtime.settings.api_port}"
        model, context = self.runtime.model.name or "default", self.runtime.engine.context_size
        return ServerAccess(url, self._common_key, model, context, sys.platform == "win32")

    def change(self, name: str, value: Any) -> None:
        """Apply a setting. Create an API key when the API server is first switched on."""
        api_server = self.runtime.api_server

        async def change() -> None:
            if name == "api_server" and value and not await api_server.keys():
                await api_server.make_key(ANY_PROGRAM)
            try:
                await self.runtime.apply_settings(replace(self.runtime.settings, **{name: value}))
            finally:
                self.refresh()

        self.run(change())

    def refresh(self) -> None:
        super().refresh()
        is_on = self.runtime.settings.api_server
        for entry in self._server_entries:
            entry.setVisible(is_on)
        self.show_url(self.runtime.api_server.url)
        self._show_keys()
        if is_on and self.isVisible():
            self.run(self.load_keys())

    def discard_edits(self) -> None:
        super().discard_edits()
        self._show_key(False)
        self.app_name.clear()

    def show_url(self, url: str | None) -> None:
        self.address.setText(url or "")
        self.copy_address_button.setEnabled(url is not None)
        if url is None:
            help = _("The API server could not start. Try another port.")
        elif "//127.0.0.1" in url or "//[::1]" in url or "//localhost" in url:
            help = _("Only this computer can connect.")
        else:
            help = _("Other computers on the network can also connect.")
        self.address_entry.set_help(help)

    async def load_keys(self) -> None:
        self._load_count += 1
        load = self._load_count
        keys = await self.runtime.api_server.keys()
        if load == self._load_count:  # else a later load has newer keys
            self.keys = keys
            self._show_keys()

    async def make_key(self, app: str = ANY_PROGRAM) -> None:
        await self.runtime.api_server.make_key(app)
        await self.load_keys()

    async def revoke_key(self, app: str) -> None:
        await self.runtime.api_server.revoke_key(app)
        await self.load_keys()

    def _show_keys(self) -> None:
        key = self._common_key
        self.key_field.setText(key)
        help = _(_KEY_HELP) if key else _("No API key is set. Every app on this computer has access.")
        self.key_entry.set_help(help)
        self.replace_key_button.setText(_("Replace…") if key else _("Create key"))
        for widget in (self.key_field, self.show_key_button, self.copy_key_button):
            widget.setVisible(bool(key))
        self._show_key(self.is_key_shown and bool(key))
        clear(self.app_keys)
        for name in sorted(self.keys.keys() - {ANY_PROGRAM}):
            self.app_keys.addLayout(self._key_row(name, self.keys[name]))

    def _key_row(self, name: str, key: str) -> QHBoxLayout:
        revoke_name = _("Revoke the API key of {name}", name=name)
        copy = CopyButton(_("the API key of {name}", name=name), lambda: key)
        revoke = button(pgettext("API key", "Revoke"), lambda: self.run(self.revoke_key(name)), name=revoke_name)
        return row((label(name, selectable=True), 1), copy, revoke, spacing=8)

    def _show_key(self, is_shown: bool) -> None:
        self.key_field.setEchoMode(QLineEdit.EchoMode.Normal if is_shown else QLineEdit.EchoMode.Password)
        self.key_field.setCursorPosition(0)
        self.show_key_button.setText(_("Hide") if is_shown else _("Show"))
        self._show_configuration()

    def _show_configuration(self) -> None:
        """Show the chosen app's configuration, with the API key hidden unless the key field shows it."""
        access, look, client = self.access, self.look, self._client
        lines = client.configuration(
            access if self.is_key_shown or not access.key else replace(access, key=_HIDDEN_KEY)
        )
        self.config_location_label.setText(_(client.config_location))
        self.configuration.setFont(code_font(look.fonts.mono, look.fonts.small))
        if self.configuration.toPlainText() != lines:
            self.configuration.setPlainText(lines)
        height = self.configuration.fontMetrics().lineSpacing() * (lines.count("\n") + 1)
        self.configuration.setFixedHeight(min(height + look.px(46), look.px(360)))

    def _ask_to_replace(self) -> None:
        if not self._common_key:
            self.run(self.make_key())
            return
        text = _("Apps with the old API key lose access until you give them the new one.")
        title, action = _("Create a new API key?"), _("Create new key")
        confirm(self.panel, title, text, action, lambda: self.run(self.make_key()))

    def _make_app_key(self) -> None:
        if name := program_name(self.app_name.text()):
            self.app_name.clear()
            self.run(self.make_key(name))
