"""Read-only text views that are as tall as their text, and the dialog that asks before a link is opened."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlsplit

from PySide6.QtCore import QByteArray, Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QFontMetricsF, QTextBlock, QTextFragment, QTextOption, QWheelEvent
from PySide6.QtWidgets import QApplication, QFrame, QPushButton, QTextBrowser, QTextEdit, QWidget

from kvchat.text.language import _
from kvchat.text.markdown import is_web_link
from kvchat.text.safe_text import safe_code
from kvchat.ui.base.building import label
from kvchat.ui.base.theme import Look, code_font, page_font
from kvchat.ui.dialogs.confirm import Question
from kvchat.ui.rendering.formulas import FormulaLayer, formula_renderer
from kvchat.ui.rendering.markdown import Markdown, Prose, WideBlock, prose_css
from kvchat.ui.widgets.text_search import select_range, utf16_slice

_COLUMN_LETTERS = 16  # a table with less room per column scrolls sideways
_BOTTOM = 4  # pixels below the last line, for Arabic descenders
FORMULA_PLACEHOLDER = re.compile(r"<!--math:(\d+)-->")  # formula placeholder in a block's HTML
_OPENING_TAGS = re.compile(r"^(?:<[a-z][^>]*>\s*)*")  # a block's opening tags
_BLOCK_ANCHOR = "block"  # name prefix of the anchors at block starts
_MAX_ADDRESS = 300  # visible characters


class PageStyle:
    """Fonts, colors and measures of messages. A new one is created when the theme or the fonts change."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.theme = look.theme
        self.markdown = Markdown(look.theme)
        self.css = prose_css(look.theme, look.fonts.mono, look.fonts.body - 1.25)
        self.font = page_font(look.fonts.family, look.fonts.body)
        self.code_font = code_font(look.fonts.mono, look.fonts.body - 0.75)
        metrics = QFontMetricsF(self.font)
        self.line_height = metrics.height() * 1.48  # pixels, as in prose_css
        self.letter_width = metrics.averageCharWidth()
        self.column_width = round(self.letter_width * _COLUMN_LETTERS)

    def with_muted_text(self) -> PageStyle:
        other = copy.copy(self)
        other.font = page_font(self.look.fonts.family, self.look.fonts.base)
        other.css = f"{self.css} p {{ color: {self.theme.muted} }}"
        return other


class TextPage(QTextBrowser):
    """View of one QTextDocument that loads no resources and emits `anchorClicked` instead of following links."""

    link_reached = Signal()  # Tab reached a link

    def __init__(self, style: PageStyle, accessible_name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        remove_chrome(self, accessible_name)
        self.setOpenLinks(False)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        bar = self.verticalScrollBar()
        bar.valueChanged.connect(lambda _: bar.setValue(0))  # it would scroll into the space below the last line
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        document = self.document()
        document.setDefaultFont(style.font)
        document.setDefaultStyleSheet(style.css)
        document.setIndentWidth(24)
        self.blocks: tuple[Prose | WideBlock, ...] = ()
        self._style = style
        self.formulas = FormulaLayer(self, style.font, style.theme.text)

    def loadResource(self, kind: int, name: QUrl | str) -> object:
        """Load nothing, because the text is untrusted. If this returned None, Qt would read local files."""
        return QByteArray()

    def focusNextPrevChild(self, next: bool) -> bool:
        """Move the focus through the links before leaving the page. The links of a hidden page are skipped."""
        if not self.isVisible():
            return not (parent := self.parentWidget()) or parent.focusNextPrevChild(next)
        moved = super().focusNextPrevChild(next)
        if moved and self.hasFocus():
            self.link_reached.emit()
        return moved

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def heightForWidth(self, width: int) -> int:
        """Return the text's height at this width. The margin below the text is the same for any kind of last block."""
        document = self.document()
        document.setTextWidth(width)
        last = document.lastBlock()
        # Qt includes a paragraph's margin and extra line height below the letters, but not a heading's.
        bottom = document.size().height() - last.blockFormat().bottomMargin()
        if lines := last.layout().lineCount():
            line = last.layout().lineAt(lines - 1)
            letters_end = document.documentLayout().blockBoundingRect(last).y() + line.y() + line.height()
            bottom = max(bottom, letters_end)
        return math.ceil(bottom) + _BOTTOM

    def show_blocks(self, blocks: Sequence[Prose | WideBlock]) -> None:
        if self.blocks != tuple(blocks):
            self.blocks = tuple(blocks)
            self._render()

    def show_formulas(self) -> bool:
        has_new = any(map(formula_renderer().request, self.formulas.pending))
        if has_new:
            self._render()
        return has_new

    def _render(self) -> None:
        self.formulas.clear()
        cursor = self.textCursor()
        anchor, head, old = cursor.anchor(), cursor.position(), self.toPlainText() if cursor.hasSelection() else ""
        self.setHtml(join_blocks(self.blocks, map(self._block_html, range(len(self.blocks)))))
        end = max(anchor, head)
        if old and utf16_slice(old, 0, end) == utf16_slice(self.toPlainText(), 0, end):
            select_range(self, anchor, head)

    def block_starts(self) -> list[int]:
        starts = [0] * len(self.blocks)
        block = self.document().begin()
        while block.isValid():
            for fragment in fragments(block):
                for name in fragment.charFormat().anchorNames():
                    if name.startswith(_BLOCK_ANCHOR):
                        starts[int(name.removeprefix(_BLOCK_ANCHOR))] = fragment.position()
            block = block.next()
        return starts

    def _block_html(self, number: int) -> str:
        """Return a block's HTML with an anchor at its start and its formulas in place."""
        block = self.blocks[number]
        html = _OPENING_TAGS.sub(lambda tags: f'{tags[0]}<a name="{_BLOCK_ANCHOR}{number}"></a>', block.html, count=1)
        return FORMULA_PLACEHOLDER.sub(
            lambda match: self.formulas.formula_html(block.formulas[int(match[1])], html[:3]), html
        )


class WidePage(TextPage):
    """View of a table or displayed formula. It scrolls sideways if there is not enough width."""

    def __init__(self, style: PageStyle, accessible_name: str, parent: QWidget | None = None) -> None:
        super().__init__(style, accessible_name, parent)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.setLineWrapMode(QTextEdit.LineWrapMode.FixedPixelWidth)
        self.setWordWrapMode(QTextOption.WrapMode.WordWrap)
        self._natural_width: int | None = None  # pixels without line breaks; None until measured

    def _render(self) -> None:
        self._natural_width = None
        super()._render()

    def wheelEvent(self, event: QWheelEvent) -> None:
        scroll_sideways(self, event)

    def heightForWidth(self, width: int) -> int:
        needed, document = width, self.document()
        document.setTextWidth(width)
        if document.idealWidth() >= width:
            if self._natural_width is None:
                document.setTextWidth(-1)
                self._natural_width = math.ceil(document.idealWidth())
            columns = sum(block.columns for block in self.blocks if isinstance(block, WideBlock))
            max_width = columns * self._style.column_width if columns else self._natural_width
            needed = max(width, min(self._natural_width, max_width))
        if needed != self.lineWrapColumnOrWidth():
            self.setLineWrapColumnOrWidth(needed)
        height = super().heightForWidth(needed)
        overflows = document.size().width() > width
        return height + (self.horizontalScrollBar().sizeHint().height() + 4 if overflows else 0)


def fragments(block: QTextBlock) -> Iterator[QTextFragment]:
    iterator = block.begin()
    while not iterator.atEnd():
        yield iterator.fragment()
        iterator += 1


def remove_chrome(text: QTextEdit, accessible_name: str) -> None:
    """Remove the frame, margin, vertical scroll bar and undo history, and set the accessible name."""
    text.setAccessibleName(accessible_name)
    text.setFrameShape(QFrame.Shape.NoFrame)
    text.viewport().setAutoFillBackground(False)  # Qt's style sheets leak 1 KB for each background painted
    text.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    text.setUndoRedoEnabled(False)
    text.document().setDocumentMargin(0)


def scroll_sideways(page: QTextEdit, event: QWheelEvent) -> None:
    """Scroll `page` sideways if the wheel moves sideways or Shift is held. Otherwise ignore the event."""
    delta, bar = event.angleDelta(), page.horizontalScrollBar()
    has_shift = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
    if bar.maximum() > 0 and (has_shift or abs(delta.x()) > abs(delta.y())):
        bar.setValue(bar.value() - (delta.x() or delta.y()))
        event.accept()
    else:
        event.ignore()


def join_blocks(blocks: Sequence[Prose | WideBlock], htmls: Iterable[str]) -> str:
    """Join the HTML of blocks. Consecutive list items go into one list."""
    parts: list[str] = []
    before = ""
    for block, html in zip(blocks, htmls, strict=True):
        tag = block.list_tag if isinstance(block, Prose) else ""
        numbers = [int(number) for number in re.findall(r"<ol\D+(\d+)", before + tag)]
        continues = numbers[1] == numbers[0] + 1 if len(numbers) == 2 else before == tag
        if not continues:
            parts += [before and f"</{before[1:3]}>", tag]
        parts.append(html)
        before = tag
    return "".join([*parts, before and f"</{before[1:3]}>"])


def display_host(url: str) -> str:
    """Return a web link's host as the network uses it (in punycode, without a user name), or an email address."""
    parsed = QUrl(url)
    if urlsplit(url).scheme.lower() == "mailto":
        return safe_code(parsed.path(QUrl.ComponentFormattingOption.FullyEncoded))
    host = parsed.host(QUrl.ComponentFormattingOption.FullyEncoded)
    return host if parsed.port() < 0 else f"{host}:{parsed.port()}"


class LinkDialog(Question):
    def __init__(self, parent: QWidget, url: str) -> None:
        self.url = url
        address = QUrl(url).toString(QUrl.ComponentFormattingOption.FullyEncoded)
        shown_address = address if len(address) <= _MAX_ADDRESS else f"{address[:_MAX_ADDRESS]}…"
        is_email = url.startswith("mailto:")
        question = _("Send an email to this address?") if is_email else _("Open this link in your browser?")
        texts = (question, "muted"), (display_host(url), "title"), (shown_address, "small")
        # Labels wrap only at words: zero-width spaces let a long address wrap anywhere.
        breaking = (("\u200b".join(text) if len(text) > 60 and " " not in text else text, kind) for text, kind in texts)
        lines = [label(text, kind, wraps=True) for text, kind in breaking]
        self.open_button, self.copy_button, self.cancel_button = map(QPushButton, (_("Open"), _("Copy"), _("Cancel")))
        self.copy_button.setToolTip(_("Copy the address"))
        super().__init__(parent, _("Open this link?"), lines, self.open_button, self.copy_button, self.cancel_button)
        self.open_button.clicked.connect(lambda: QDesktopServices.openUrl(QUrl(url)))
        self.open_button.clicked.connect(self.accept)
        self.copy_button.clicked.connect(lambda: QApplication.clipboard().setText(url))
        for answer in (self.copy_button, self.cancel_button):
            answer.clicked.connect(self.reject)


def ask_to_open(parent: QWidget, url: str) -> LinkDialog | None:
    """Ask the user whether to open a link. Do nothing unless it is a web or mailto link."""
    if not is_web_link(url):
        return None
    dialog = LinkDialog(parent, url)
    dialog.open()
    return dialog
