"""The window of the user manual: a list of headings, the text and a search field."""

import re
from importlib.resources import files

from PySide6.QtCore import QPoint, QSignalBlocker, QSize, Qt, QUrl
from PySide6.QtGui import QDesktopServices, QResizeEvent, QTextBlock, QTextCursor, QTextOption
from PySide6.QtWidgets import QFrame, QListWidget, QListWidgetItem, QTextBrowser, QWidget

from kvchat.runtime import Runtime
from kvchat.text.language import _
from kvchat.text.markdown import markdown_parser
from kvchat.ui.base.building import column, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look, page_font
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.rendering.markdown import prose_css, renderer_class
from kvchat.ui.widgets.layouts import COLUMN_WIDTH
from kvchat.ui.widgets.text_search import TextSearch

_SIDE_MARGIN, _TOP_MARGIN = 28, 12  # pixels: minimum margin beside the text, margin above the text
_ROW_PADDING, _LIST_PADDING = 10, 66  # pixels around a list heading, including the list's own


_TOPICS = (
    "using",
    "engines-and-models",
    "tools",
    "other-devices",
    "api-server",
    "command-line",
    "troubleshooting",
    "measurements",
)


def _read_topic(topic: str) -> str:
    text = (files(__package__) / f"{topic}.md").read_text("utf-8")
    return text if topic == _TOPICS[0] else re.sub(r"^#", "##", text, flags=re.MULTILINE)


# Read at startup, so the GUI thread reads no file later. Links between topics stay within the one page.
MANUAL_TEXT = re.sub(r"\]\([a-z-]+\.md#", "](#", "\n".join(map(_read_topic, _TOPICS)))


class ManualPage(QTextBrowser):
    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.setAccessibleName(_("Manual"))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.anchorClicked.connect(self._open_link)
        self._top_block = 0  # number of the text block at the top
        self.verticalScrollBar().valueChanged.connect(self._remember_position)
        self.document().documentLayout().documentSizeChanged.connect(lambda _: self._restore_position())
        self.show_text()

    def show_text(self) -> None:
        look, place = self._look, self._top_block
        parser = markdown_parser(renderer_class(look.theme, allow_internal_links=True))
        parser.options["breaks"] = False
        document = self.document()
        document.setDefaultFont(page_font(look.fonts.family, look.fonts.body))
        css = prose_css(look.theme, look.fonts.mono, look.fonts.body - 1.25)
        document.setDefaultStyleSheet(css + "table { margin-bottom: 14px }")
        self.setHtml(parser.render(MANUAL_TEXT))
        self._top_block = place
        self._restore_position()

    def headings(self) -> list[QTextBlock]:
        document = self.document()
        blocks = map(document.findBlockByNumber, range(document.blockCount()))
        return [block for block in blocks if block.blockFormat().headingLevel() in (2, 3)]

    def go_to_heading(self, number: int) -> None:
        """Scroll to heading `number`, or do nothing if it is -1."""
        if number >= 0:
            heading = self.headings()[number]
            self.setTextCursor(QTextCursor(heading))
            self.scroll_to(heading)

    def scroll_to(self, block: QTextBlock) -> None:
        self.verticalScrollBar().setValue(self._top(block))

    def current_heading(self) -> int:
        """Return the number of the heading at the top of the view, or -1 above the first heading."""
        position = self.verticalScrollBar().value()
        return sum(self._top(heading) <= position for heading in self.headings()) - 1

    def resizeEvent(self, event: QResizeEvent) -> None:
        side = max(_SIDE_MARGIN, (self.width() - self._look.px(COLUMN_WIDTH)) // 2)
        self.setViewportMargins(side, _TOP_MARGIN, side, 0)
        super().resizeEvent(event)

    def _remember_position(self) -> None:
        self._top_block = self.cursorForPosition(QPoint(0, _TOP_MARGIN)).blockNumber()

    def _restore_position(self) -> None:
        self.scroll_to(self.document().findBlockByNumber(self._top_block))

    def _top(self, block: QTextBlock) -> int:
        return int(self.document().documentLayout().blockBoundingRect(block).y()) - _TOP_MARGIN

    def _open_link(self, url: QUrl) -> None:
        if not url.toString().startswith("#"):
            QDesktopServices.openUrl(url)
            return
        for number, heading in enumerate(self.headings()):
            anchor = re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.text().lower()))  # as in "#chats-and-disk"
            if f"#{anchor}" == url.toString():
                self.go_to_heading(number)


class ManualWindow(Panel):
    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Manual"), parent, size=(940, 680), min_size=(520, 360))
        self.page, self.list = ManualPage(look), QListWidget()
        self.text_search = TextSearch(look, _("Search the manual"), self.page)
        self.list.setObjectName("settingsPages")
        self.list.setAccessibleName(_("Table of contents"))
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        for heading in self.page.headings():
            is_nested = heading.blockFormat().headingLevel() > 2
            QListWidgetItem(f"{'     ' if is_nested else ''}{heading.text()}", self.list)
        above = row((self.text_search, 1), self.text_search.count, spacing=10, margins=(28, 16, 28, 10))
        column(self.notices, above, (self.page, 1), on=(right := QWidget()), spacing=0, margins=0)
        row(self.list, (right, 1), on=self, spacing=0, margins=0)
        self.text_search.match_selected.connect(lambda: self.page.scroll_to(self.page.textCursor().block()))
        self.list.currentRowChanged.connect(self.page.go_to_heading)
        self.page.verticalScrollBar().valueChanged.connect(self._select_heading)
        for restyle in (self._fit_list, self.page.show_text, self.text_search.mark_all):
            look.changed.connect(restyle)
        self._fit_list()
        self.text_search.setFocus()

    def _select_heading(self) -> None:
        with QSignalBlocker(self.list):  # the selection must not scroll the page
            self.list.setCurrentRow(self.page.current_heading())

    def _fit_list(self) -> None:
        self.list.ensurePolished()
        metrics = self.list.fontMetrics()
        rows = [self.list.item(number) for number in range(self.list.count())]
        for item in rows:
            item.setSizeHint(QSize(0, metrics.height() + _ROW_PADDING))
        self.list.setFixedWidth(max(metrics.horizontalAdvance(item.text()) for item in rows) + _LIST_PADDING)
