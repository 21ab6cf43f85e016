"""The window of recently deleted chats and messages, which can be restored for some time."""

from datetime import datetime

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QWidget

from kvchat.chat.deletion import DeletedEntry
from kvchat.chat.events import ConversationsChanged, Event, SettingsChanged
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_datetime
from kvchat.text.language import N_, _, plural
from kvchat.ui.base.building import button, column, label, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.widgets.layouts import flow
from kvchat.ui.widgets.lists import Row, RowList

_DELETED_FROM = N_("from the chat list, search, chat memory and automatic backups")


class DeletedWindow(Panel):
    storage_requested = Signal()

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Recently deleted"), parent, size=(600, 480), min_size=(400, 300))
        self.retention_label = label(kind="muted", wraps=True)
        self.empty_label = label(_("No recently deleted items."), "muted")
        self.empty_label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.list = RowList(look, _("Recently deleted"))
        self.list.row_activated.connect(lambda _: self._restore())
        self.list.current_changed.connect(self._show_buttons)
        self.retention_button = button(_("Retention settings…"), self.storage_requested, "link")
        self.delete_all_button = button(_("Delete all…"), lambda: self._ask_to_delete(self._entries), "danger")
        self.delete_button = button(_("Delete permanently…"), lambda: self._ask_to_delete(self._chosen), "danger")
        self.restore_button = button(_("Restore"), self._restore, "primary")
        actions = flow(self.delete_all_button, self.delete_button, self.restore_button, at_end=True)
        below = row(self.retention_button, (actions, 1))
        parts = self.notices, self.retention_label, (self.empty_label, 1), (self.list, 1), below
        column(*parts, on=self, spacing=12, margins=16)
        self._entries: list[DeletedEntry] = []

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.run(self._load())

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, ConversationsChanged | SettingsChanged):
            self.run(self._load())

    async def _load(self) -> None:
        self._entries = entries = await self._runtime.chat.recently_deleted.entries()
        days = self._runtime.settings.keep_deleted_days
        retention = _("for {days}", days=plural(days, "{count} day", "{count} days")) if days else _("for 30 seconds")
        about = _("Deleted items stay here {period}. Then kvchat permanently deletes them {places}.")
        self.retention_label.setText(about.format(period=retention, places=_(_DELETED_FROM)))
        self.list.show_rows(list(map(deleted_row, entries)))
        self.list.setVisible(bool(entries))
        self.empty_label.setVisible(not entries)
        if entries and self.list.current is None:
            self.list.select(entries[0])
        self._show_buttons()

    @property
    def _chosen(self) -> list[DeletedEntry]:
        current = self.list.current
        return [entry for entry in self._entries if current and entry == current.value]

    def _restore(self) -> None:
        for entry in self._chosen:
            self.run(self._runtime.chat.recently_deleted.restore(entry))

    def _show_buttons(self) -> None:
        for action in (self.restore_button, self.delete_button):
            action.setEnabled(bool(self._chosen))
        self.delete_all_button.setEnabled(bool(self._entries))

    def _ask_to_delete(self, entries: list[DeletedEntry]) -> None:
        what = plural(len(entries), "{count} item", "{count} items")
        if len(entries) == 1 and entries[0].is_chat:
            what = _("“{name}”", name=entries[0].title)
        title, delete = _("Permanently delete {what}?", what=what), self._runtime.chat.recently_deleted.delete_now
        text = _(
            "You cannot undo this. kvchat deletes everything {places}. Files you exported or "
            "backed up yourself are not affected.",
            places=_(_DELETED_FROM),
        )
        confirm(self, title, text, _("Delete permanently"), lambda: self.run(delete(entries)))


def deleted_row(entry: DeletedEntry) -> Row:
    count = plural(entry.messages, "{count} message", "{count} messages")
    what = _("Chat with {count}", count=count)
    if not entry.is_chat:
        what = _("{count} of “{title}”", count=count, title=entry.title)
    days = (entry.expires_at.astimezone().date() - datetime.now().date()).days
    gone = _("permanently deleted today")
    if days >= 1:
        gone = plural(days, "permanently deleted in {count} day", "permanently deleted in {count} days")
    deleted_at = format_datetime(entry.deleted_at)
    text = _("{item} · deleted {deleted_at} · {expiry}", item=what, deleted_at=deleted_at, expiry=gone)
    return Row(entry, entry.title if entry.is_chat else entry.text, text)
