"""A read-only text as tall as what it says: the transcript scrolls, its texts do not."""

from __future__ import annotations

import math
from typing import Any

from PySide6.QtCore import QByteArray, QSize, Qt, QUrl
from PySide6.QtGui import (
    QDesktopServices,
    QFont,
    QTextBlockFormat,
    QTextCursor,
    QTextDocument,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextBrowser, QWidget

from kvchat.ui.markdown import is_web_link

_LINE_HEIGHT = 135.0  # per cent


class TextPage(QTextBrowser):
    """One QTextDocument. Loads nothing, follows nothing by itself; a click on a web link opens the user's browser."""

    def __init__(self, font: QFont, accessible_name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName(accessible_name)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.document().setDefaultFont(font)
        self.document().setDocumentMargin(0)
        self.document().setIndentWidth(24)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self.anchorClicked.connect(_open_web_link)

    def loadResource(self, kind: int, name: QUrl | str) -> Any:
        """Nothing is ever loaded for a model's text: no remote picture, no local file.

        Empty bytes and not None: at None, QTextDocument goes on to read local files by itself.
        """
        return QByteArray()

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Leave scrolling to the transcript."""
        event.ignore()

    def minimumSizeHint(self) -> QSize:
        """Let the column be as narrow as it likes."""
        return QSize(40, 0)

    def set_plain(self, text: str) -> None:
        """Show plain text, with the same air between its lines as a reply has."""
        self.setPlainText(text)
        cursor = self.textCursor()
        cursor.select(QTextCursor.SelectionType.Document)
        lines = QTextBlockFormat()
        lines.setLineHeight(_LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        cursor.mergeBlockFormat(lines)

    def set_html(self, html: str, css: str) -> None:
        """Show HTML under a document style sheet, keeping the document's settings."""
        self.document().setDefaultStyleSheet(css)
        self.setHtml(html)
        self._drop_last_margin()

    def _drop_last_margin(self) -> None:
        """The space between two texts is the layout's business."""
        block = self.document().lastBlock()
        form = block.blockFormat()
        if form.bottomMargin() > 0 and not block.textList():
            form.setBottomMargin(0)
            cursor = self.textCursor()
            cursor.setPosition(block.position())
            cursor.setBlockFormat(form)

    def _fit(self) -> None:
        height = math.ceil(self.document().size().height())
        if height != self.height():
            self.setFixedHeight(height)


def page_font(family: str, points: float) -> QFont:
    """A font for documents."""
    font = QFont(family)
    font.setPointSizeF(points)
    return font


def code_font(family: str, points: float) -> QFont:
    """A font for code: what was written is what is shown, so no ligatures."""
    font = page_font(family, points)
    font.setFixedPitch(True)
    font.setFeature(QFont.Tag("calt"), 0)
    font.setFeature(QFont.Tag("liga"), 0)
    return font


def plain_width(document: QTextDocument) -> int:
    """How wide the document's longest line is, unwrapped, in pixels."""
    return math.ceil(document.idealWidth())


def _open_web_link(url: QUrl) -> None:
    if is_web_link(url.toString()):
        QDesktopServices.openUrl(url)
