"""Texts that give way: what does not fit ends in an ellipsis and stands whole in the tooltip."""

from __future__ import annotations

import html
import re

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QPushButton, QSizePolicy

from kvchat.ui.base.building import beginning, styled
from kvchat.words.wording import one_line

_SEPARATORS = re.compile(r"[/\\._-]")
_LONG_RUN = re.compile(r"[^\s\u200b]{24}")


def plain_tip(text: str) -> str:
    """A tooltip that shows `text` as it is: Qt would take what looks like HTML for HTML."""
    return f"<qt>{html.escape(text).replace(chr(10), '<br>')}</qt>" if text else ""


def breakable(text: str) -> str:
    """`text`, a path or a file's name, with places (zero-width spaces) where a label may wrap it."""
    return _LONG_RUN.sub("\\g<0>\u200b", _SEPARATORS.sub("\\g<0>\u200b", text))


class ElidedLabel(QLabel):
    """A one-line label that never asks for more room than there is."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        styled(self, kind).setTextFormat(Qt.TextFormat.PlainText)
        self.whole = ""  # the text as it was given
        self.setAlignment(beginning() | Qt.AlignmentFlag.AlignVCenter)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)

    def set_text(self, text: str) -> None:
        """Show `text`, on one line."""
        self.whole = one_line(text)
        self.setAccessibleName(self.whole)
        self._elide()
        self.updateGeometry()

    def minimumSizeHint(self) -> QSize:
        return QSize(24, super().minimumSizeHint().height())

    def sizeHint(self) -> QSize:
        return QSize(self.fontMetrics().horizontalAdvance(self.whole) + 4, super().sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        shown = self.fontMetrics().elidedText(self.whole, Qt.TextElideMode.ElideRight, max(self.width(), 24))
        self.setText(shown)
        self.setToolTip(plain_tip(self.whole) if shown != self.whole else "")


class ElidedButton(QPushButton):
    """A one-line button whose text gives way, but never its tail."""

    def __init__(self, kind: str, beside: int = 14) -> None:
        """`beside`: pixels that the look leaves free at both ends of the text together."""
        super().__init__()
        styled(self, kind)
        self._beside = beside
        self._whole = self._tail = self._tip = ""
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)

    def set_text(self, text: str, tail: str, tip: str = "") -> None:
        """Show `text` and, after it, the short `tail`. The tooltip is `tip`, else the text where it does not fit."""
        self._whole, self._tail, self._tip = text, tail, tip
        self._elide()
        self.updateGeometry()

    def minimumSizeHint(self) -> QSize:
        return QSize(60, super().sizeHint().height())

    def sizeHint(self) -> QSize:
        wide = self.fontMetrics().horizontalAdvance(f"{self._whole} {self._tail}")
        return QSize(wide + 18, super().sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        metrics = self.fontMetrics()
        room = max(self.width() - self._beside - metrics.horizontalAdvance(f" {self._tail}"), 24)
        shown = metrics.elidedText(self._whole, Qt.TextElideMode.ElideRight, room)
        self.setText(f"{shown} {self._tail}")
        self.setToolTip(plain_tip(self._tip or (self._whole if shown != self._whole else "")))
