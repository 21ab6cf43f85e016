"""The top of the storage window: the limit, what sharing saves, and four figures worth knowing."""

from __future__ import annotations

from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QHBoxLayout, QWidget

from kvchat.kvstore.savepoint import StoreUsage
from kvchat.session.restore_cost import BreakEven
from kvchat.ui.base.building import STRETCH, column, label, progress_bar, row
from kvchat.ui.base.theme import Look
from kvchat.ui.storage.usage_words import break_even_in_words, sharing, spared_bytes
from kvchat.ui.widgets.controls import RoundBar, mix
from kvchat.words.language import _, sentences
from kvchat.words.wording import size, size_of


class SavingsBar(RoundBar):
    """A bar as long as whole slot files would be; the strong part is what the disk really holds."""

    share = 1.0  # of the bar that is on disk

    def show_usage(self, usage: StoreUsage) -> None:
        whole = usage.physical_bytes + spared_bytes(usage)
        self.share = usage.physical_bytes / whole if whole else 0.0
        self.setAccessibleName(
            _("{physical_bytes} on disk. {sharing}", physical_bytes=size(usage.physical_bytes), sharing=sharing(usage))
        )
        self.update()

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        theme = self._look.theme
        painter.fillRect(box, mix(theme.accent, theme.page, 0.18) if self.share else QColor(theme.line))
        if self.share:
            width = max(box.width() * self.share, 4.0)
            painter.fillRect(QRectF(0, 0, width, box.height()), QColor(theme.accent))


class UsageSummary(QWidget):
    """Shows the sums of a StoreUsage."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.total = label(kind="title")
        self.share = progress_bar(_("Share of the limit in use"))
        self.picture = SavingsBar(look)
        self.on_disk, self.spared = label(kind="strong"), label(kind="muted", wraps=True)
        self.today, self.ever, self.warm, self.room = (label(kind="strong") for _ in range(4))
        self.free, self.pays = label(kind="small", wraps=True), label(kind="small", wraps=True)
        self.pays.hide()
        self._figures = QWidget()
        self._figures.setLayout(self._build_figures())
        legend = row(self.on_disk, (self.spared, 1), spacing=14)
        parts = (self.total, self.share, 6, legend, self.picture, 4, self._figures, self.free, self.pays)
        column(*parts, on=self, spacing=8, margins=(8, 0, 8, 0))

    def show_usage(self, usage: StoreUsage, pays: BreakEven | None) -> None:
        self.pays.setText(break_even_in_words(pays))
        self.pays.setVisible(pays is not None)
        self.total.setText(_("{size} in use", size=size_of(usage.physical_bytes, usage.quota_bytes)))
        self.share.setValue(int(1000 * min(usage.physical_bytes / max(usage.quota_bytes, 1), 1.0)))
        if usage.problem:
            self.total.setText(_("Nothing is kept"))
        for widget in (self.share, self._figures):
            widget.setVisible(not usage.problem)
        self.picture.show_usage(usage)
        self.on_disk.setText(_("{physical_bytes} on disk", physical_bytes=size(usage.physical_bytes)))
        self.spared.setText(sharing(usage))
        for widget in (self.picture, self.on_disk, self.spared):
            widget.setVisible(usage.physical_bytes > 0)
        for figure, count in (
            (self.today, usage.bytes_written_today),
            (self.ever, usage.bytes_written),
            (self.warm, usage.warm_bytes),
            (self.room, usage.free_bytes),
        ):
            figure.setText(size(count) if count else _("nothing"))
        words = _(
            "Below {free_floor_bytes} free on the disk nothing more is kept.",
            free_floor_bytes=size(usage.free_floor_bytes),
        )
        if others := usage.other_bytes - usage.set_aside_bytes:
            words = sentences(
                words, _("{size} of what is in use are the index and temporary files.", size=size(others))
            )
        if usage.set_aside_bytes:
            aside = size(usage.set_aside_bytes)
            words = sentences(words, _("{size} in files that were found bad and set aside.", size=aside))
        self.free.setText("" if usage.problem else words)

    def _build_figures(self) -> QHBoxLayout:
        cells = []
        for figure, words, tip in (
            (self.today, _("written today"), _("What SSDs wear by: bytes the store has written today")),
            (self.ever, _("written ever"), _("What SSDs wear by: bytes the store has written since it was made")),
            (self.warm, _("ready in memory"), _("Chats whose memory comes back without the disk")),
            (self.room, _("free on this disk"), ""),
        ):
            caption = label(words, "small", wraps=True)
            caption.setBuddy(figure)
            for words_of_it in (figure, caption):
                words_of_it.setToolTip(tip)
            cells.append((column(figure, caption, STRETCH, spacing=0), 1))
        return row(*cells, spacing=12, margins=0)
