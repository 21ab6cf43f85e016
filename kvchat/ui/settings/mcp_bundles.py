"""The dialog that installs an MCP bundle: it shows the origin and exact command, and asks for the options.

Texts of bundles are untrusted and shown as plain text. Nothing is unpacked or started before *Install and start*.
"""

import asyncio
from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QLineEdit, QPlainTextEdit, QWidget

from kvchat.runtime import Runtime
from kvchat.text.language import _, join_list, join_parts, join_sentences
from kvchat.text.safe_text import safe_code
from kvchat.tools.mcp.bundles import Bundle, BundleOption, Value, values_error
from kvchat.ui.base.building import STRETCH, button, column, label, line_edit, plain_text, row, show_text, text_editor
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look, code_font
from kvchat.ui.dialogs.confirm import file_dialog
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.widgets.controls import Switch
from kvchat.ui.widgets.layouts import ScrollPage, allow_line_breaks

_BOX_LINES, _LIST_LINES = 4, 3


class OptionField(QWidget):
    """An option of a bundle with its label, help and field."""

    changed = Signal()

    def __init__(self, look: Look, option: BundleOption, is_stored: bool) -> None:
        super().__init__()
        self.option = option
        title = join_parts((option.title, _("required"))) if option.required else option.title
        heading, help = label(title, "strong", wraps=True), label(option.description, "small", wraps=True)
        if not option.description:  # setVisible(True) would open a label without a parent as a window
            help.hide()
        self.field = self._make_field(look, option, _("Leave empty to keep the current value") if is_stored else "")
        self.field.setAccessibleName(title)
        self.field.setAccessibleDescription(option.description)
        heading.setBuddy(self.field)
        if isinstance(self.field, Switch):
            row((column(heading, help, spacing=3), 1), self.field, on=self, spacing=16, margins=0)
            return
        choose = []
        if option.type in ("directory", "file"):
            choose = [button(_("Choose…"), self._choose, name=_("Choose {name}", name=option.title))]
        line = row((self.field, 1), *((chooser, 0, Qt.AlignmentFlag.AlignTop) for chooser in choose), spacing=8)
        column(heading, help, line, on=self, spacing=3, margins=0)

    def _make_field(self, look: Look, option: BundleOption, hint: str) -> Switch | QPlainTextEdit | QLineEdit:
        default = option.default
        if option.type == "boolean":
            switch = Switch(look)
            switch.setChecked(default is True)
            switch.toggled.connect(self.changed)
            return switch
        if option.multiple:
            editor = text_editor(option.title, _("One per line"), _LIST_LINES)
            editor.setPlainText("\n".join(map(str, default if isinstance(default, list | tuple) else [default or ""])))
            editor.textChanged.connect(self.changed)
            return editor
        field = line_edit(option.title, hint)
        field.setText("" if default is None or isinstance(default, list | tuple) else str(default))
        if option.secret:
            field.setEchoMode(QLineEdit.EchoMode.Password)
        field.textChanged.connect(self.changed)
        return field

    @property
    def value(self) -> Value:
        if isinstance(self.field, Switch):
            return self.field.isChecked()
        if isinstance(self.field, QPlainTextEdit):
            return [line.strip() for line in self.field.toPlainText().splitlines() if line.strip()]
        return self.field.text().strip()

    def _choose(self) -> None:
        is_folder = self.option.type == "directory"
        mode = QFileDialog.FileMode.Directory if is_folder else QFileDialog.FileMode.ExistingFile
        dialog = file_dialog(self, self.option.title, mode)
        dialog.fileSelected.connect(self.add_path)
        dialog.open()

    def add_path(self, path: str) -> None:
        if isinstance(self.field, QPlainTextEdit):
            self.field.appendPlainText(path)
        elif isinstance(self.field, QLineEdit):
            self.field.setText(path)


class InstallBundleDialog(Panel):
    """Installs a bundle, approves the command that was shown, and calls `on_installed` with the server's name."""

    def __init__(
        self,
        runtime: Runtime,
        look: Look,
        runner: TaskRunner,
        parent: QWidget,
        bundle: Bundle,
        is_update: bool,
        on_installed: Callable[[str], object],
    ) -> None:
        super().__init__(
            runtime, look, runner, _("Install an MCP bundle"), parent, size=(580, 640), min_size=(420, 320)
        )
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self._manager, self._bundle, self._on_installed = runtime.mcp_servers, bundle, on_installed
        self._installing: asyncio.Task[None] | None = None
        author = _("by {author}", author=bundle.author) if bundle.author else ""
        version = _("Version {version}", version=bundle.version) if bundle.version else ""
        origin = join_parts((bundle.path.name, version, author))
        self.origin = label(allow_line_breaks(origin), "small", wraps=True)
        unverified = _("kvchat cannot verify who made this bundle. Install it only if you trust its source.")
        update = _("It replaces the installed version.") if is_update else ""
        tools = _("Tools: {names}.", names=join_list(bundle.tools)) if bundle.tools else ""
        self.about = label(allow_line_breaks(join_sentences(bundle.description, tools)), wraps=True)
        if not self.about.text():
            self.about.hide()
        stored = self._manager.with_stored_secrets(bundle, {})
        self.fields = [OptionField(look, option, option.key in stored) for option in bundle.options]
        command = _("kvchat will run this command with all your permissions.")
        self.launch = plain_text(_("Command"), code_font(look.fonts.mono, look.fonts.small), lines=_BOX_LINES)
        page = ScrollPage("")
        title = label(_("Install the MCP server “{name}”?", name=bundle.title), "title", wraps=True)
        warning = label(join_sentences(unverified, update), "muted", wraps=True)
        parts = title, self.origin, self.about, warning, *self.fields
        column(*parts, STRETCH, on=page.content, spacing=12, margins=(24, 18, 24, 12))
        self.refusal = label(kind="refusal", wraps=True)
        self.refusal.hide()
        self.install_button = button(_("Install and start"), self._install, "primary")
        below = row(STRETCH, button(_("Cancel"), self.close), self.install_button, spacing=8)
        bottom = label(command, "strong", wraps=True), self.launch, self.notices, self.refusal, below
        around = column(*bottom, spacing=8, margins=(24, 8, 24, 16))
        column((page, 1), around, on=self, spacing=0, margins=0)
        for field in self.fields:
            field.changed.connect(self._show_launch)
        self.finished.connect(self._cancel)
        self._show_launch()

    @property
    def values(self) -> dict[str, Value]:
        entered = {field.option.key: field.value for field in self.fields}
        return self._manager.with_stored_secrets(self._bundle, entered)

    def _show_launch(self) -> None:
        self.launch.setPlainText(safe_code(self._manager.bundle_config(self._bundle, self.values).launch))
        self.refusal.hide()

    def _install(self) -> None:
        problem = values_error(self._bundle, self.values)
        show_text(self.refusal, problem)
        if not problem and self._installing is None:
            self._installing = self.run(self._install_and_approve())

    def _cancel(self) -> None:
        if self._installing is not None:
            self._installing.cancel()

    async def _install_and_approve(self) -> None:
        values, manager = self.values, self._manager
        shown = manager.bundle_config(self._bundle, values)
        self.install_button.setEnabled(False)
        self.install_button.setText(_("Installing…"))
        try:
            name = await manager.install(self._bundle, values)
            if (server := manager.source(name).server).config.launch == shown.launch:
                await manager.approve(server)
                await manager.hide_secrets(name)
        finally:
            self._installing = None
            self.install_button.setEnabled(True)
            self.install_button.setText(_("Install and start"))
        self.close()
        self._on_installed(name)
