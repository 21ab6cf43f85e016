"""What is known of one program: why its prompts were read again, and the rules that mend it."""

from __future__ import annotations

from collections.abc import Collection

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QGridLayout, QWidget

from kvchat.gateway.medicine.causes import MENDED_BY
from kvchat.gateway.medicine.rules import RULES, Rule
from kvchat.gateway.requests import Sum, Total
from kvchat.ui.base.building import column, label, progress_bar
from kvchat.ui.base.theme import Look
from kvchat.ui.programs.wording import told_of
from kvchat.ui.widgets.controls import Switch
from kvchat.ui.widgets.entries import Entry
from kvchat.ui.widgets.layouts import ElidedLabel
from kvchat.words.language import N_, _, number, sentences
from kvchat.words.reasons import Reason, ReasonCode

_MOST_CAUSES = 6
_NOTHING = N_("Nothing of what it sent had to be read twice.")
_MEND = N_("What can be done about it")


class ProgramDetails(QWidget):
    """Causes with bars, then a switch for each rule."""

    rule_wanted = Signal(str, bool)  # its name, and whether it is to be on

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.causes = QGridLayout()
        self.causes.setHorizontalSpacing(14)
        self.causes.setVerticalSpacing(5)
        self.causes.setColumnStretch(0, 1)
        self._shown: object = None
        self.rules = {name: RuleSwitch(look, rule) for name, rule in RULES.items()}
        for name, switch in self.rules.items():
            switch.wanted.connect(lambda on, name=name: self.rule_wanted.emit(name, on))
        why, mend = label(_("Why it was read again"), "strong"), label(_(_MEND), "strong")
        column(why, self.causes, 6, mend, *self.rules.values(), on=self, spacing=6, margins=(0, 10, 0, 0))
        look.changed.connect(self._fit)
        self._fit()

    def show_program(self, name: str, total: Total, on: Collection[str]) -> None:
        for rule, switch in self.rules.items():
            lost = Sum()
            for one in (one for cause, one in total.misses.items() if MENDED_BY.get(ReasonCode(cause)) == rule):
                lost.add(one.tokens, one.ms, one.times)
            switch.show_rule(on=rule in on, spared=total.mended.get(rule), lost=lost)
        if self._shown != (name, total.misses):
            self._shown = name, {cause: Sum(one.times, one.tokens, one.ms) for cause, one in total.misses.items()}
            self._fill(total)

    def _fill(self, total: Total) -> None:
        while (item := self.causes.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        causes = sorted(total.misses.items(), key=lambda one: (-one[1].ms, -one[1].tokens))
        if not causes:
            self.causes.addWidget(label(_(_NOTHING), "muted", wraps=True), 0, 0, 1, 3)
        most = max((one.tokens for _, one in causes), default=1) or 1
        for line, (cause, one) in enumerate(causes[:_MOST_CAUSES]):
            reason = Reason(ReasonCode(cause)).words
            words, bar = ElidedLabel(), progress_bar(f"{reason}: {told_of(one)}")
            words.set_text(reason[:1].upper() + reason[1:])
            bar.setValue(1000 * one.tokens // most)
            self.causes.addWidget(words, line, 0)
            self.causes.addWidget(bar, line, 1)
            self.causes.addWidget(label(told_of(one)), line, 2, Qt.AlignmentFlag.AlignRight)

    def _fit(self) -> None:
        self.causes.setColumnMinimumWidth(1, self._look.px(110))


class RuleSwitch(Entry):
    """One rule: what it does, its switch, what it has spared or would have."""

    wanted = Signal(bool)

    def __init__(self, look: Look, rule: Rule) -> None:
        self._words = _(rule.words)
        self.switch = Switch(look, _(rule.title), self._words)
        super().__init__(_(rule.title), self._words, self.switch)
        self.switch.clicked.connect(self.wanted)

    @property
    def on(self) -> bool:
        return self.switch.isChecked()

    def show_rule(self, *, on: bool, spared: Sum | None, lost: Sum) -> None:
        """True if it is on, and what came of it; `lost`: what was read again for want of it."""
        self.switch.setChecked(on)
        words = [self._words]
        if spared:
            tokens, came_to = number(spared.tokens), told_of(spared)
            words.append(_("Has spared {tokens} tokens ({came_to}).", tokens=tokens, came_to=came_to))
        if lost.times and not on:
            tokens, came_to = number(lost.tokens), told_of(lost)
            words.append(
                _("For want of it {tokens} tokens were read again ({came_to}).", tokens=tokens, came_to=came_to)
            )
        self.say(sentences(*words))
