"""The dialog that attaches a resource of an MCP server, or puts a prompt's text into the draft.

Texts from servers are untrusted and shown as plain text. Nothing is sent.
"""

import asyncio
import mimetypes
from pathlib import PurePath

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QLineEdit, QWidget

from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.text.language import _, join_list, join_parts, join_sentences
from kvchat.text.safe_text import safe_prose
from kvchat.tools.mcp.server import Attachment, Prompt, Resource
from kvchat.tools.mcp.source import McpSource
from kvchat.ui.base.building import STRETCH, button, clear, column, label, line_edit, row, show_text
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.widgets.layouts import ShrinkingPage
from kvchat.ui.widgets.lists import Row, RowList, Tone

_LAYOUT_MS = 50  # until the list has its new height


class ServerAttachmentsDialog(Panel):
    text_chosen = Signal(str)  # of a prompt, for the draft
    contents_chosen = Signal(list)  # names and bytes of contents to attach

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget) -> None:
        title = _("Attach from an MCP server")
        super().__init__(runtime, look, runner, title, parent, size=(600, 520), min_size=(420, 340))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self._sources = runtime.mcp_servers.attachment_sources
        self._rows: list[Row] = []
        self._problems: list[str] = []
        self._form_of: object = None  # value of the row whose arguments are shown
        self._reading: asyncio.Task[None] | None = None
        self.filter = line_edit(_("Filter"), _("Filter by name, description or server"))
        self.filter.setClearButtonEnabled(True)
        self.filter.textChanged.connect(self._show_rows)
        self.list = RowList(look, _("Resources and prompts"))
        self.list.current_changed.connect(self._show_current)
        self.list.row_activated.connect(lambda _row: self._use())
        self.description = label(kind="muted", wraps=True)
        self.fields: dict[str, QLineEdit] = {}
        self._form = column(spacing=4, margins=0)
        below_list = ShrinkingPage()
        column(self.description, self._form, on=below_list.content, spacing=8, margins=0)
        self.status, self.refusal = label(kind="small", wraps=True), label(kind="refusal", wraps=True)
        self.use_button = button("", self._use, "primary")
        buttons = row(STRETCH, button(_("Cancel"), self.close), self.use_button, spacing=8)
        parts = self.notices, self.filter, (self.list, 1), below_list, self.status, self.refusal, buttons
        column(*parts, on=self, spacing=8, margins=(20, 16, 20, 16))
        self._listing = {source.id: self.run(self._list(source)) for source in self._sources}
        self.finished.connect(self._cancel)
        self.filter.setFocus()
        self._show_rows()

    @property
    def _current(self) -> tuple[McpSource, Prompt | Resource] | None:
        row = self.list.current
        return row.value if row is not None else None  # type: ignore[return-value]

    def _cancel(self) -> None:
        for task in (*self._listing.values(), self._reading):
            if task is not None:
                task.cancel()

    async def _list(self, source: McpSource) -> None:
        try:
            for kind, listing in ((_("Resource"), source.resources), (_("Prompt"), source.prompts)):
                try:
                    for item in await listing():
                        detail = join_parts((safe_prose(source.id), item.description))
                        tone = Tone.GOOD if isinstance(item, Prompt) else Tone.PLAIN
                        self._rows.append(Row((source, item), item.title, detail, kind, tone))
                except KvchatError as error:
                    self._problems += [text for text in [str(error)] if text not in self._problems]
        finally:
            self._listing.pop(source.id, None)
            self._show_rows()

    def _show_rows(self) -> None:
        self._rows.sort(key=lambda row: row.detail.partition(" · ")[0].casefold())
        words = self.filter.text().casefold().split()
        shown = [row for row in self._rows if all(word in f"{row.title} {row.detail}".casefold() for word in words)]
        self.list.show_rows(shown)
        if shown and self.list.current is None:
            self.list.select(shown[0].value)
        waiting = join_list(map(safe_prose, self._listing))
        status = _("Loading from {names}…", names=waiting) if waiting else ""
        if not waiting and not shown:
            status = _("Nothing matches the filter.") if self._rows else _("The servers offer nothing to attach.")
        show_text(self.status, status)
        self._refuse(join_sentences(*self._problems))

    def _show_current(self) -> None:
        """Show the description and arguments of the current row. Typed arguments are kept until the row changes."""
        current = self._current
        self.use_button.setEnabled(current is not None and self._reading is None)
        item = current[1] if current is not None else None
        self.use_button.setText(_("Insert") if isinstance(item, Prompt) else _("Attach"))
        self.use_button.setAccessibleName(self.use_button.text())
        if current is not None and current == self._form_of:
            return
        self._form_of = current
        show_text(self.description, item.description if item else "")
        clear(self._form)
        self.fields = {}
        for argument in item.arguments if item else ():
            name = safe_prose(argument.name)
            title = join_parts((name, _("required"))) if argument.required else name
            self.fields[argument.name] = field = line_edit(title, argument.description)
            field.returnPressed.connect(self._use)
            heading = label(title, "small")
            heading.setBuddy(field)
            self._form.addWidget(heading)
            self._form.addWidget(field)
        self._scroll_to_current()

    def _use(self) -> None:
        if (current := self._current) is None or self._reading is not None:
            return
        source, item = current
        values = {name: text for name, field in self.fields.items() if (text := field.text().strip())}
        missing = [argument.name for argument in item.arguments if argument.required and argument.name not in values]
        if missing:
            self.fields[missing[0]].setFocus()
            self._refuse(_("“{option}” is required.", option=safe_prose(missing[0])))
            return
        self._refuse("")
        show_text(self.status, _("Waiting for {name}…", name=safe_prose(source.id)))
        self._reading = self.run(self._read(source, item, values))
        self._show_current()

    async def _read(self, source: McpSource, item: Prompt | Resource, values: dict[str, str]) -> None:
        name = safe_prose(source.id)
        try:
            if isinstance(item, Prompt):
                text, *rest = await source.prompt(item.name, values)
                contents = [_content(name, item, attachment) for attachment in rest]
            else:
                text, rest = None, await source.resource(item.uri_with(values))
                contents = [_content(name, item if len(rest) == 1 else None, attachment) for attachment in rest]
        finally:
            self._reading = None
            show_text(self.status, "")
            self._show_current()
        if not contents and not (text and text.content.strip()):
            raise KvchatError(_("The MCP server “{name}” returned nothing", name=name))
        self.close()
        if text is not None:
            self.text_chosen.emit(safe_prose(text.content.decode("utf-8", "replace")))
        if contents:
            self.contents_chosen.emit(contents)

    def _refuse(self, reason: str) -> None:
        show_text(self.refusal, reason)
        self._scroll_to_current()

    def _scroll_to_current(self) -> None:
        QTimer.singleShot(_LAYOUT_MS, self, lambda: self.list.scrollTo(self.list.currentIndex()))


def _content(server: str, item: Prompt | Resource | None, attachment: Attachment) -> tuple[str, bytes]:
    """Return a name and the data. The name is that of `item` or else of the URI, with the suffix of its format."""
    title = item.title if item is not None and not (isinstance(item, Resource) and item.arguments) else attachment.name
    suffix = PurePath(attachment.name).suffix or mimetypes.guess_extension(attachment.media_type) or ""
    is_named = title.lower().endswith(suffix.lower())
    return f"{server}: {title}{'' if is_named else suffix}", attachment.content
