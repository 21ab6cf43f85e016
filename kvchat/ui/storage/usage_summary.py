"""The top of the disk panel: the quota, what sharing saves, and four figures worth knowing."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QVBoxLayout, QWidget

from kvchat.kvstore.savepoint import StoreUsage
from kvchat.session.rates import BreakEven
from kvchat.ui.base.theme import Look
from kvchat.ui.storage.usage_picture import SavingsBar
from kvchat.ui.storage.usage_words import break_even_in_words, sharing
from kvchat.words.wording import size, size_of


class UsageSummary(QWidget):
    """Shows the sums of a StoreUsage."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.total = _label("title")
        self.share = QProgressBar()
        self.share.setTextVisible(False)
        self.share.setRange(0, 1000)
        self.share.setAccessibleName("Share of the limit in use")
        self.picture = SavingsBar(look)
        self.on_disk = _label("strong")
        self.spared = _label("muted")
        self.spared.setWordWrap(True)
        self.today, self.ever, self.warm, self.room = _label(), _label(), _label(), _label()
        self.free = _label("small")
        self.pays = _label("small")
        self.pays.hide()
        for label in (self.free, self.pays):
            label.setWordWrap(True)
        column = QVBoxLayout(self)
        column.setContentsMargins(8, 0, 8, 0)
        column.setSpacing(8)
        column.addWidget(self.total)
        column.addWidget(self.share)
        column.addSpacing(6)
        column.addLayout(self._build_legend())
        column.addWidget(self.picture)
        column.addSpacing(4)
        self._figures = QWidget()
        self._figures.setLayout(self._build_figures())
        column.addWidget(self._figures)
        column.addWidget(self.free)
        column.addWidget(self.pays)

    def show_usage(self, usage: StoreUsage, pays: BreakEven | None) -> None:
        """Show these sums, and from where on restoring pays."""
        self.pays.setText(break_even_in_words(pays))
        self.pays.setVisible(pays is not None)
        self.total.setText(f"{size_of(usage.physical_bytes, usage.quota_bytes)} in use")
        self.share.setValue(int(1000 * min(usage.physical_bytes / max(usage.quota_bytes, 1), 1.0)))
        if usage.problem:
            self.total.setText("Nothing is kept")
        for widget in (self.share, self._figures):
            widget.setVisible(not usage.problem)
        self.picture.show_usage(usage)
        self.on_disk.setText(f"{size(usage.physical_bytes)} on disk")
        self.spared.setText(sharing(usage))
        for widget in (self.picture, self.on_disk, self.spared):
            widget.setVisible(usage.physical_bytes > 0)
        for label, count in (
            (self.today, usage.bytes_written_today),
            (self.ever, usage.bytes_written),
            (self.warm, usage.warm_bytes),
            (self.room, usage.free_bytes),
        ):
            label.setText(size(count) if count else "none")
        words = f"Below {size(usage.free_floor_bytes)} free on the disk nothing more is kept."
        if usage.set_aside_bytes:
            words += f" {size(usage.set_aside_bytes)} in files that were found bad and set aside."
        self.free.setText("" if usage.problem else words)

    def _build_legend(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(14)
        row.addWidget(self.on_disk)
        row.addWidget(self.spared, 1)
        return row

    def _build_figures(self) -> QHBoxLayout:
        """The figures in columns of one width, each above what it means."""
        row = QHBoxLayout()
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(12)
        for figure, words, tip in (
            (self.today, "written today", "What SSDs wear by: bytes the store has written today"),
            (self.ever, "written ever", "What SSDs wear by: bytes the store has written since it was made"),
            (self.warm, "ready in memory", "Chats whose memory comes back without the disk"),
            (self.room, "free on this disk", ""),
        ):
            figure.setProperty("kind", "strong")
            caption = _label("small")
            caption.setText(words)
            caption.setBuddy(figure)
            for label in (figure, caption):
                label.setToolTip(tip)
            cell = QVBoxLayout()
            cell.setSpacing(0)
            cell.addWidget(figure)
            cell.addWidget(caption)
            row.addLayout(cell, 1)
        return row


def _label(kind: str = "") -> QLabel:
    label = QLabel()
    label.setProperty("kind", kind)
    return label
