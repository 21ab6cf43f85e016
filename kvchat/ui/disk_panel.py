"""What the saved KV cache costs on disk, conversation by conversation, and what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QDialog,
    QDoubleSpinBox,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from kvchat.kvstore.savepoint import ConversationUsage, StoreUsage
from kvchat.runtime import Runtime
from kvchat.settings import GB
from kvchat.ui.confirm import confirm
from kvchat.ui.elided import ElidedLabel
from kvchat.ui.icons import icon
from kvchat.ui.scroll_ground import ScrollGround
from kvchat.ui.tasks import Wishes
from kvchat.ui.theme import Look
from kvchat.ui.wording import since, size_of
from kvchat.wording import size


class _UsageRow(QFrame):
    """One conversation's share."""

    def __init__(self, look: Look, title: str, usage: ConversationUsage, largest: int) -> None:
        super().__init__()
        self.title = ElidedLabel()
        self.title.set_text(title)
        used = QLabel(f"used {since(usage.last_used_at, datetime.now(usage.last_used_at.tzinfo))}")
        used.setProperty("kind", "small")
        self.amount = QLabel(size(usage.bytes))
        bar = QProgressBar()
        bar.setTextVisible(False)
        bar.setRange(0, 1000)
        bar.setValue(int(1000 * usage.bytes / max(largest, 1)))
        bar.setAccessibleName(f"{title}: {size(usage.bytes)}")
        self.delete = QToolButton()
        self.delete.setIcon(icon("trash", look.theme.muted))
        self.delete.setToolTip("Delete what is saved of this conversation; its messages stay")
        self.delete.setAccessibleName(f"Delete what is saved of {title}")
        grid = QGridLayout(self)
        grid.setContentsMargins(2, 8, 2, 8)
        grid.setHorizontalSpacing(14)
        grid.setVerticalSpacing(5)
        grid.setColumnStretch(0, 1)
        grid.addWidget(self.title, 0, 0)
        grid.addWidget(used, 0, 1, Qt.AlignmentFlag.AlignRight)
        grid.addWidget(self.amount, 0, 2, Qt.AlignmentFlag.AlignRight)
        grid.addWidget(bar, 1, 0, 1, 3)
        grid.addWidget(self.delete, 0, 3, 2, 1)
        grid.setColumnMinimumWidth(2, 64)


class DiskPanel(QDialog):
    """The disk-usage panel. Shows `Runtime.store_usage` and forwards deletions and the quota."""

    changed = Signal()  # something was deleted, or the quota changed

    def __init__(self, runtime: Runtime, look: Look, wishes: Wishes, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._runtime, self._look, self._wishes = runtime, look, wishes
        self.setWindowTitle("Disk usage")
        self.setAccessibleName("Disk usage")
        self.resize(560, 520)
        self.setMinimumSize(420, 360)
        self.rows: dict[str, _UsageRow] = {}
        self._titles: Mapping[str, str] = {}
        self.total = QLabel()
        self.total.setProperty("kind", "title")
        self.share = QProgressBar()
        self.share.setTextVisible(False)
        self.share.setRange(0, 1000)
        self.share.setAccessibleName("Share of the quota in use")
        self.free = QLabel()
        self.free.setProperty("kind", "muted")
        self.free.setWordWrap(True)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 18)
        column.setSpacing(10)
        column.addWidget(self.total)
        column.addWidget(self.share)
        column.addWidget(self.free)
        column.addWidget(self._build_list(), 1)
        column.addLayout(self._build_quota())
        column.addLayout(self._build_buttons())
        for button in self.findChildren(QPushButton):
            button.setAutoDefault(False)  # Enter in the quota's field sets the quota and nothing else

    def refresh(self) -> None:
        """Ask again and show the answer."""
        self._wishes.start(self._load())

    def show_usage(self, usage: StoreUsage, titles: Mapping[str, str]) -> None:
        """Show what is kept, largest first."""
        self._titles = titles
        self.total.setText(f"{size_of(usage.total_bytes, usage.quota_bytes)} in use")
        self.share.setValue(int(1000 * min(usage.total_bytes / max(usage.quota_bytes, 1), 1.0)))
        words = f"{size(usage.free_bytes)} free on this disk. Below {size(usage.free_floor_bytes)} nothing is saved."
        if usage.set_aside_bytes:
            words += f" {size(usage.set_aside_bytes)} in files that were found bad and set aside."
        self.free.setText(words)
        self.quota.blockSignals(True)
        self.quota.setValue(usage.quota_bytes / GB)
        self.quota.blockSignals(False)
        self._fill(usage)
        self.delete_all.setEnabled(bool(usage.conversations) or usage.set_aside_bytes > 0)

    async def _load(self) -> None:
        usage = await self._runtime.store_usage()
        titles = {c.id: c.title for c in await self._runtime.chat.conversations()}
        self.show_usage(usage, titles)

    def _fill(self, usage: StoreUsage) -> None:
        for row in self.rows.values():
            row.setParent(None)
            row.deleteLater()
        ordered = sorted(usage.conversations, key=lambda entry: entry.bytes, reverse=True)
        largest = ordered[0].bytes if ordered else 0
        self.rows = {}
        for i, entry in enumerate(ordered):
            id = entry.conversation_id
            title = self._titles.get(id, "A conversation that is gone")
            row = _UsageRow(self._look, title, entry, largest)
            row.delete.clicked.connect(lambda _=False, id=id: self._wishes.start(self._delete(id)))
            self._list.insertWidget(i, row)
            self.rows[id] = row
        self._empty.setVisible(not ordered)

    def _build_list(self) -> QWidget:
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        ground = ScrollGround("page")
        self._list = QVBoxLayout(ground)
        self._list.setContentsMargins(0, 0, 8, 0)
        self._list.setSpacing(0)
        self._empty = QLabel("Nothing is saved yet. After each reply the KV cache is kept here.")
        self._empty.setProperty("kind", "muted")
        self._empty.setWordWrap(True)
        self._list.addWidget(self._empty)
        self._list.addStretch(1)
        area.setWidget(ground)
        return area

    def _build_quota(self) -> QHBoxLayout:
        self.quota = QDoubleSpinBox()
        self.quota.setRange(0.1, 100_000)
        self.quota.setDecimals(1)
        self.quota.setSuffix(" GB")
        self.quota.setFixedWidth(96)
        self.quota.setAccessibleName("Quota in GB")
        self.apply = QPushButton("Set")
        self.apply.setAccessibleName("Set the quota")
        self.apply.clicked.connect(lambda: self._wishes.start(self._set_quota()))
        self.quota.lineEdit().returnPressed.connect(self.apply.click)
        words = QLabel("Quota")
        words.setBuddy(self.quota)
        hint = QLabel("When it is full, what was used longest ago goes first.")
        hint.setProperty("kind", "small")
        hint.setWordWrap(True)
        row = QHBoxLayout()
        row.setSpacing(10)
        row.addWidget(words)
        row.addWidget(self.quota)
        row.addWidget(self.apply)
        row.addWidget(hint, 1)
        return row

    def _build_buttons(self) -> QHBoxLayout:
        self.delete_all = QPushButton("Delete all…")
        self.delete_all.setProperty("kind", "danger")
        self.delete_all.setAccessibleName("Delete everything that is saved")
        self.delete_all.clicked.connect(self._ask_delete_all)
        close = QPushButton("Close")
        close.setAccessibleName("Close the disk panel")
        close.setProperty("kind", "primary")
        close.clicked.connect(self.close)
        row = QHBoxLayout()
        row.addWidget(self.delete_all)
        row.addStretch(1)
        row.addWidget(close)
        return row

    def _ask_delete_all(self) -> None:
        confirm(
            self,
            "Delete everything that is saved?",
            "All messages stay. Each conversation must be read again once before it answers quickly.",
            "Delete all",
            lambda: self._wishes.start(self._delete(None)),
        )

    async def _delete(self, conversation_id: str | None) -> None:
        await self._runtime.delete_save_points(conversation_id)
        self.changed.emit()
        await self._load()

    async def _set_quota(self) -> None:
        quota = round(self.quota.value() * GB)
        await self._runtime.apply_settings(replace(self._runtime.settings, quota_bytes=quota))
        self.changed.emit()
        await self._load()
