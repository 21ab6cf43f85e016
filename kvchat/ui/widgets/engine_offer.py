"""An engine for the graphics card, by one click: what there is, how far it is, what went wrong. Does none of it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QWidget

from kvchat.engine.finding.graphics import Backend
from kvchat.engine_host.fetching import Fetching, Stage
from kvchat.engine_host.trial import TrialStep
from kvchat.errors import KvchatError
from kvchat.library.remote.engine_builds import about
from kvchat.ui.base.building import button, column, label, progress_bar, row
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.widgets.card import Card
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.ui.widgets.layouts import FlowLayout
from kvchat.words.wording import rough_duration, size

PROMISE = (
    "It comes from llama.cpp’s releases on GitHub, its hash is checked, and it is used only if it passes a trial. The "
    "engine you have stays."
)


class EngineOffer(QWidget):
    """For Settings and the first run: a choice with a button, or a bar with Cancel; below, what came of it."""

    requested = Signal(object)  # Backend
    cancel_requested = Signal()

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.choice = ChoiceBox(look, "What the engine computes with")
        self.choice.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.get = button("Get it", lambda: self.requested.emit(self.choice.currentData()), "primary")
        self.bar, self.amount = progress_bar("Getting an engine"), label(kind="muted", wraps=True)
        self.cancel = button("Cancel", self.cancel_requested, name="Cancel getting an engine")
        self.outcome = Card()
        self._choosing, self._running = QWidget(), QWidget()
        choosing = FlowLayout(self._choosing)
        choosing.addWidget(self.choice)
        choosing.addWidget(self.get)
        column(
            self.bar, row((self.amount, 1), self.cancel, spacing=10), on=self._running, spacing=8, margins=(0, 4, 0, 0)
        )
        column(self._choosing, self._running, self.outcome, on=self, spacing=10, margins=0)
        self.outcome.hide()
        self._running.hide()

    def show_choices(self, backends: Sequence[Backend]) -> None:
        """What an engine can compute with here, the best first."""
        chosen = self.choice.currentData()
        if [self.choice.itemData(at) for at in range(self.choice.count())] != list(backends):
            self.choice.clear()
            for backend in backends:
                self.choice.addItem(", ".join(filter(None, (backend.value, about(backend)))), backend)
            self.choice.setCurrentIndex(max(0, self.choice.findData(chosen)))

    def show_fetching(self, now: Fetching | None) -> None:
        """How far it is; None: nothing goes on."""
        self._choosing.setVisible(now is None)
        self._running.setVisible(now is not None)
        if now is None:
            return
        self.outcome.hide()
        known = now.build is not None and now.stage in (Stage.CHECKING, Stage.FETCHING)
        self.bar.setRange(0, 1000 if known else 0)  # 0: it moves to and fro
        if now.build is not None and known:
            self.bar.setValue(int(1000 * now.done / max(now.build.size, 1)))
        self.amount.setText(_words(now))

    def show_steps(self, steps: Sequence[TrialStep]) -> None:
        """What the trial has found: it is in use, or what it failed at."""
        last = steps[-1].error if steps else None
        if last is not None:
            self.show_error(last)
            return
        told = "\n".join(f"✓ {step.name}: {step.detail}" for step in steps)
        self._say("The new engine works and is chosen", told, "", "")

    def show_error(self, error: KvchatError) -> None:
        """It did not work; what there was before goes on."""
        self._say(error.title, error.detail, error.advice, "bad")

    def _say(self, title: str, detail: str, advice: str, tone: str) -> None:
        for widget in (self.outcome, self.outcome.title):
            restyle(widget, "tone", tone)
        self.outcome.say(title, detail, advice)
        self.outcome.show()


def _words(now: Fetching) -> str:
    """How far it is: "llama.cpp-b11457-vulkan: 12 MB of 32 MB · 5 MB/s · 4 s left", or what else is done."""
    if now.build is None:
        return f"{now.stage.value.capitalize()}…"
    if now.stage is Stage.TRYING and now.steps:
        return f"{now.build.name}: {now.stage.value}. {now.steps[-1].name}: {now.steps[-1].detail}"
    if now.stage is not Stage.FETCHING:
        return f"{now.build.name}: {now.stage.value}…"
    parts = [f"{now.build.name}: {size(now.done)} of {size(now.build.size)}"]
    if now.rate > 0:
        left = rough_duration((now.build.size - now.done) / now.rate)
        parts += [f"{size(now.rate)}/s", f"{left} left"]
    return " · ".join(parts)
