"""Pruning, seen before it is done: a slider, what it would remove, and the button that does just that."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtWidgets import QFrame, QSlider, QWidget

from kvchat.kvstore.savepoint import PrunePlan
from kvchat.ui.base.building import button, column, label, row, styled
from kvchat.ui.storage.usage_words import plan_in_words
from kvchat.words.language import N_, _
from kvchat.words.wording import size

_STEPS = 1000
_DEBOUNCE_MS = 120  # a slider being dragged asks for a plan this long after it came to rest
_INVITATION = N_("Move the slider to see what would go, and what reading it again would cost.")


class PruneCard(QFrame):
    """Asks for plans and shows them; carries nothing out itself."""

    plan_wanted = Signal()  # one for `target`
    plan_dropped = Signal()  # no plan is in view any more
    prune_wanted = Signal(object)  # the PrunePlan that is in view

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        styled(self, "card")
        self.plan: PrunePlan | None = None
        self.version = 0  # a plan asked for at an earlier one no longer fits
        self._total = 0
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setMaximum(_STEPS)
        self.slider.setValue(_STEPS)
        self.slider.setPageStep(_STEPS // 20)
        self.slider.setSingleStep(_STEPS // 100)
        self.slider.setAccessibleName(_("Shrink to"))
        self.amount = label()
        self.amount.setMinimumWidth(64)
        self.amount.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.preview = label(_(_INVITATION), "muted", wraps=True)
        self.preview.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.button = button(_("Shrink"), lambda: self.prune_wanted.emit(self.plan))
        self.button.setEnabled(False)
        self._rest = QTimer(self, singleShot=True, interval=_DEBOUNCE_MS)
        self._rest.timeout.connect(self.plan_wanted)
        self.slider.valueChanged.connect(self._moved)
        self._build()

    @property
    def target(self) -> int:
        return self._total * self.slider.value() // _STEPS

    @property
    def moved(self) -> bool:
        return self.slider.value() < _STEPS

    def set_total(self, total: int) -> None:
        """total: bytes at the slider's right end. A plan in view is made again for it."""
        target, was_moved = self.target, self.moved
        self._total = total
        with QSignalBlocker(self.slider):
            step = target * _STEPS // total if was_moved and total else _STEPS
            self.slider.setValue(min(step, _STEPS))
        self._moved()

    def to_rest(self) -> None:
        self.slider.setValue(_STEPS)

    @property
    def waits(self) -> bool:
        return self.moved and self.plan is None

    def show_plan(self, plan: PrunePlan, version: int) -> None:
        """Show a plan, unless it was asked for at an earlier version."""
        if version != self.version:
            return
        self.plan = plan
        self.preview.setText(plan_in_words(plan, self.target))
        self.button.setEnabled(bool(plan.save_point_ids))
        self.button.setText(
            _("Free {bytes_freed}", bytes_freed=size(plan.bytes_freed)) if plan.save_point_ids else _("Shrink")
        )
        self.button.setAccessibleName(_("Shrink. {text}", text=self.preview.text()))

    def drop_plan(self) -> None:
        """Forbid the plan in view: what is kept has changed."""
        self.plan = None
        self.version += 1
        self.button.setEnabled(False)
        self.plan_dropped.emit()

    def _moved(self) -> None:
        self.drop_plan()
        self.amount.setText(size(self.target))
        self.slider.setAccessibleDescription(size(self.target))
        if self.moved:
            self._rest.start()
        else:
            self._rest.stop()
            self.preview.setText(_(_INVITATION))
            self.button.setText(_("Shrink"))

    def _build(self) -> None:
        words = label(_("Shrink to"), "strong")
        words.setBuddy(self.slider)
        # Room for three lines from the start: the list below must not jump while the slider moves.
        self.preview.setMinimumHeight(3 * self.preview.fontMetrics().lineSpacing())
        above = row(words, (self.slider, 1), self.amount, spacing=12)
        below = row((self.preview, 1), (self.button, 0, Qt.AlignmentFlag.AlignBottom), spacing=16)
        column(above, below, on=self, spacing=8, margins=(12, 10, 12, 12))
