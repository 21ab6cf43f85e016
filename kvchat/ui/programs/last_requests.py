"""The last requests of a program: a list, and of the one that is chosen its receipt and where its prompt parted."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QPlainTextEdit, QVBoxLayout, QWidget

from kvchat.gateway.medicine.rules import RULES, Change
from kvchat.gateway.requests import Passage, Stage
from kvchat.session.proof import Source
from kvchat.ui.base.building import clear, column, label, plain_text, row
from kvchat.ui.base.theme import Look, code_font
from kvchat.ui.programs.wording import chip_of, receipt_of, request_line, request_title, source_of
from kvchat.ui.transcript.footer import ReceiptView
from kvchat.ui.widgets.lists import Row, RowList, Tone
from kvchat.ui.widgets.text_search import cursors_at, mark
from kvchat.words.comparing import shared_text
from kvchat.words.language import _

_MOST = 50  # requests; more of one program nobody looks at
_SHOWN, _LINES = 5, 5  # rows of the list, and of a text, without scrolling
_BEFORE = 60  # characters before the place where two texts part, at most


class LastRequests(QWidget):
    """The newest first."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._requests: dict[int, Passage] = {}
        self._shown: Passage | None = None
        self.list = RowList(look, _("Last requests"))
        self.list.current_changed.connect(self._show_current)
        self.receipt: ReceiptView | None = None
        self._below: QVBoxLayout = column(spacing=6)
        column(label(_("Last requests"), "strong"), self.list, self._below, on=self, spacing=6, margins=(0, 10, 0, 0))
        look.changed.connect(self._look_anew)

    def show_requests(self, requests: Sequence[Passage]) -> None:
        self._requests = {one.id: one for one in requests[:_MOST]}
        self.setVisible(bool(requests))
        self.list.show_rows([_row(one) for one in self._requests.values()])
        if self.list.current is None and requests:
            self.list.select(requests[0].id)
        self.list.show_at_most(_SHOWN)

    def _show_current(self) -> None:
        chosen = self.list.current
        passage = self._requests.get(int(str(chosen.value))) if chosen else None
        if passage is self._shown:
            return
        self._shown = passage
        was_open = self.receipt is not None and self.receipt.is_open
        self.receipt = None
        clear(self._below)
        if passage is None:
            return
        if (receipt := receipt_of(passage)) is not None:
            self.receipt = ReceiptView(receipt, self._look)
            self._below.addWidget(self.receipt)
            if was_open:
                self.receipt.toggle()
        if (parting := passage.broken) is not None:
            read = (passage.prompt or 0) - (passage.cached or 0)
            words = parting.sentence(read, passage.read_ms / 1000)
            self._below.addWidget(label(words[:1].upper() + words[1:] + ".", wraps=True, selectable=True))
            self._below.addWidget(self._texts(_("Before"), parting.before, _("Now"), parting.after))
        for change in passage.changes:
            self._below.addWidget(label(_changed(change), wraps=True))
            self._below.addWidget(
                self._texts(_("As it was sent"), change.before, _("As the model was told"), change.after)
            )

    def _texts(self, left: str, before: str, right: str, after: str) -> QWidget:
        """Put both texts beside each other, from the line before the one where they differ; differences are marked."""
        made, at = QWidget(), shared_text(before, after)
        alike_behind = shared_text(before[at:][::-1], after[at:][::-1])
        line = before.rfind("\n", 0, max(0, before.rfind("\n", 0, at))) + 1
        begin = max(line, at - _BEFORE)
        sides = []
        for name, text in ((left, before), (right, after)):
            shown = ("…" if begin else "") + text[begin:]
            gone = len(text) - len(shown)
            box = self._text(name, shown)
            mark(box, cursors_at(box, shown, [(at - gone, len(shown) - alike_behind)]), self._look.theme)
            sides.append(column(label(name, "small"), box, spacing=3))
        row((sides[0], 1), (sides[1], 1), on=made, spacing=10, margins=0)
        return made

    def _text(self, name: str, text: str) -> QPlainTextEdit:
        made = plain_text(name, code_font(self._look.type.mono, self._look.type.small), text or _("(nothing)"))
        made.setFixedHeight(made.fontMetrics().lineSpacing() * _LINES + self._look.px(22))
        return made

    def _look_anew(self) -> None:
        self._shown = None
        self._show_current()
        self.list.show_at_most(_SHOWN)


def _row(passage: Passage) -> Row:
    tone = Tone.GOOD
    if passage.stage is not Stage.DONE:
        tone = Tone.WARN
    elif source_of(passage) is Source.COLD:
        tone = Tone.PLAIN
    return Row(passage.id, request_title(passage), request_line(passage), chip_of(passage), tone)


def _changed(change: Change) -> str:
    return _("{title}: {where} was changed.", title=_(RULES[change.rule].title), where=_(change.where))
