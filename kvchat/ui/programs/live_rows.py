"""What is going on now: each request under way, and what else is in the engine, ready to be gone on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtWidgets import QProgressBar, QVBoxLayout, QWidget

from kvchat.door_service import InEngine
from kvchat.gateway.requests import Passage, Stage
from kvchat.ui.base.building import column, label, progress_bar, row
from kvchat.ui.base.theme import Look
from kvchat.ui.programs.wording import holder_of, stage_of
from kvchat.ui.widgets.layouts import ElidedLabel
from kvchat.words.language import _, several
from kvchat.words.wording import tokens_short

_MOST = 12  # rows; the rest is counted
_NAME_WIDTH, _BAR_WIDTH = 140, 90  # pixels at 100 % text


class LiveRows(QWidget):
    """A line each. Lines are kept and filled anew: it changes many times a second."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.rows: list[LiveRow] = []
        self.more = label(kind="small")
        self._lines: QVBoxLayout = column(spacing=4)
        column(
            label(_("In the engine now"), "strong"), self._lines, self.more, on=self, spacing=6, margins=(0, 0, 0, 10)
        )

    def show_now(self, under_way: Sequence[Passage], in_engine: Sequence[InEngine], titles: Mapping[str, str]) -> None:
        """Requests first; what nobody asks for just now after them."""
        busy = {one.slot for one in under_way if one.stage is not Stage.QUEUED}
        told = [(one.program, stage_of(one), _done(one)) for one in under_way]
        for one in in_engine:
            if one.place not in busy and one.tokens:
                words = _("ready, {tokens} tokens", tokens=tokens_short(one.tokens))
                told.append((holder_of(one.owner, titles), words, None))
        while len(self.rows) < min(len(told), _MOST):
            self.rows.append(LiveRow(self._look))
            self._lines.addWidget(self.rows[-1])
        for number, line in enumerate(self.rows):
            line.setVisible(number < len(told))
            if number < len(told):
                line.say(*told[number])
        self.more.setText(several(len(told) - _MOST, "and {count} other", "and {count} others"))
        self.more.setVisible(len(told) > _MOST)
        self.setVisible(bool(told))


class LiveRow(QWidget):
    """Who, what, and how far."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.name, self.words = ElidedLabel(), ElidedLabel("muted")
        self.bar: QProgressBar = progress_bar(_("How much is read"))
        row(self.name, (self.words, 1), self.bar, on=self, spacing=12, margins=0)
        look.changed.connect(self._fit)
        self._fit()

    def say(self, name: str, words: str, done: float | None) -> None:
        """Show this; `done` is a share, None where nothing is read."""
        self.name.set_text(name)
        self.words.set_text(words)
        self.bar.setVisible(done is not None)
        self.bar.setValue(round(1000 * (done or 0.0)))

    def _fit(self) -> None:
        self.name.setFixedWidth(self._look.px(_NAME_WIDTH))
        self.bar.setFixedWidth(self._look.px(_BAR_WIDTH))


def _done(passage: Passage) -> float | None:
    if passage.stage is not Stage.READING or not passage.prompt:
        return None
    return min(1.0, ((passage.found or 0) + passage.read) / passage.prompt)
