"""The picture of a model's memory: what it takes of one place's free memory, and what is left alone."""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QHBoxLayout, QLabel, QVBoxLayout, QWidget

from kvchat.library.memory.bar import COMPUTER, MemoryBar
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.round_bar import HEIGHT, RoundBar, mix
from kvchat.words.wording import CHATS_READY, size

_LEAST = 3.0  # pixels; a part that is there is seen
_NAMES = ("the model", "room for the chat", "working space", CHATS_READY)  # weights, KV cache, buffers, staging
_TONES = (1.0, 0.6, 0.3)  # of the accent


class MemoryPicture(QWidget):
    """One memory: its name, the bar, and the bar in figures."""

    def __init__(self, look: Look, bar: MemoryBar) -> None:
        super().__init__()
        name = "This computer’s memory" if bar.place == COMPUTER else bar.place
        caption, free, legend = QLabel(name), QLabel(f"{size(bar.free)} free before the load"), QLabel()
        for label in (caption, free):
            label.setTextFormat(Qt.TextFormat.PlainText)
        for label in (caption, free, legend):
            label.setProperty("kind", "small")
        legend.setText(" &nbsp; ".join(_legend(look, bar)))
        legend.setWordWrap(True)
        above = QHBoxLayout()
        above.addWidget(caption)
        above.addStretch(1)
        above.addWidget(free)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addLayout(above)
        column.addWidget(_Bar(look, bar))
        column.addWidget(legend)
        taken = ", ".join(f"{part} {size(count)}" for part, count in zip(_NAMES, _parts(bar), strict=True) if count)
        self.setAccessibleName(f"{name}: {taken}; left alone {size(bar.margin)} of {size(bar.free)} free")


class _Bar(RoundBar):
    """As long as the free memory; from the left what the model takes, at the right end the margin."""

    def __init__(self, look: Look, bar: MemoryBar) -> None:
        super().__init__()
        self._look, self._bar = look, bar

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        """Parts after each other; the margin is hatched, and the model's part of it too where it does not fit."""
        theme, bar = self._look.theme, self._bar
        painter.fillRect(box, QColor(theme.line))
        scale = box.width() / max(bar.free, bar.needed, 1)
        left = 0.0
        for count, colour in zip(_parts(bar), _colours(self._look), strict=True):
            width = max(count * scale, _LEAST) if count else 0.0
            painter.fillRect(QRectF(left, 0, width, box.height()), colour)
            left += width
        margin = bar.margin * scale
        painter.setClipRect(QRectF(box.right() - margin, 0, margin, box.height()), Qt.ClipOperation.IntersectClip)
        painter.setPen(QColor(theme.muted if bar.fits else theme.warn))
        for x in range(int(box.right() - margin) - HEIGHT, int(box.right()) + 1, 5):
            painter.drawLine(x, HEIGHT, x + HEIGHT, 0)


def _parts(bar: MemoryBar) -> tuple[int, int, int, int]:
    return bar.weights, bar.kv, bar.compute + bar.other, bar.staging


def _colours(look: Look) -> tuple[QColor, ...]:
    """The model's parts in the accent; what gives way to it in a colour of no weight."""
    theme = look.theme
    return (*(mix(theme.accent, theme.page, tone) for tone in _TONES), mix(theme.muted, theme.page, 0.5))


def _legend(look: Look, bar: MemoryBar) -> list[str]:
    """Each part as rich text: a square in its colour, its name and size."""
    parts = zip(_parts(bar), _colours(look), _NAMES, strict=True)
    words = [_entry(colour.name(), f"{name} {size(count)}") for count, colour, name in parts if count]
    return [*words, _entry(look.theme.muted, f"left alone {size(bar.margin)}", "▨")]


def _entry(colour: str, words: str, sign: str = "■") -> str:
    return f'<span style="color:{colour}">{sign}</span> {words.replace(" ", "&nbsp;")}'
