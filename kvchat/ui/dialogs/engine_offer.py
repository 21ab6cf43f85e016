"""One-click offer of an engine for the graphics card, with download progress and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QWidget

from kvchat.engine.discovery.graphics import Backend, Graphics, driver_advice, suitable_backends
from kvchat.engine_host.setup import EngineDownload, EngineSetup, Stage
from kvchat.engine_host.trial import TrialStep
from kvchat.errors import KvchatError
from kvchat.library.remote.github import approximate_size
from kvchat.text.formatting import format_rough_duration, format_size
from kvchat.text.language import N_, _, join_list, join_parts, join_sentences
from kvchat.ui.base.building import button, column, label, progress_bar, row
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.dialogs.metered import ask_if_metered
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.ui.widgets.layouts import flow

Start = Callable[[Coroutine[Any, Any, None]], object]
PROMISE = N_(
    "kvchat downloads the engine from llama.cpp’s releases on GitHub, verifies its hash and uses it "
    "only if it passes a test. Your current engine stays installed."
)


class EngineOffer(QWidget):
    """Engine choice and Download button, or progress and Cancel; below, the result.

    All instances (Settings, first run) show the same download, which continues while they are hidden.
    """

    tried = Signal()  # an engine was added, chosen or not

    def __init__(self, look: Look, engines: EngineSetup, start: Start, *, explains: bool = False) -> None:
        """start: starts a task and reports its errors while this is hidden

        explains: standalone, hidden until `look` finds an unused graphics card
        """
        super().__init__()
        self._engines, self._start = engines, start
        self._unsubscribe: Callable[[], None] | None = None
        self.choice = ChoiceBox(look, _("Backend"))
        self.choice.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        kind = "" if explains else "primary"
        self.get = button(_("Download"), self._begin, kind)
        self.bar, self.amount = progress_bar(_("Downloading an engine")), label(kind="muted", wraps=True)
        self.cancel = button(_("Cancel"), engines.cancel_download, name=_("Cancel the engine download"))
        self.outcome = Card()
        self._choosing, self._running = QWidget(), QWidget()
        self._choosing.setLayout(flow(self.choice, self.get))
        below = row((self.amount, 1), self.cancel, spacing=10)
        column(self.bar, below, on=self._running, spacing=8, margins=(0, 4, 0, 0))
        self.title, self.words = label("", "strong", wraps=True), label(_(PROMISE), "small", wraps=True)
        column(self.title, self.words, self._choosing, self._running, self.outcome, on=self, spacing=8, margins=0)
        for widget in (self.outcome, self._running, *((self,) if explains else (self.title, self.words))):
            widget.hide()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._unsubscribe is None:
            self._unsubscribe = self._engines.subscribe(self._show_fetching)
        self._show_fetching()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _begin(self) -> None:
        backend = self.choice.currentData()
        what = join_list((_("an engine with the {kind} backend", kind=backend.value), approximate_size(backend)))
        ask_if_metered(self, self._start, what, lambda: self._start(self._get(backend)))

    async def _get(self, backend: Backend) -> None:
        try:
            trial = await self._engines.get(backend)
        except KvchatError as error:
            self.show_error(error)
            if not self.isVisible():
                raise
            return
        if trial is not None:
            self.show_steps(trial.steps)
            self.tried.emit()

    def look(self) -> None:
        async def look() -> None:
            graphics = await asyncio.to_thread(self._engines.unused_graphics)
            if graphics is not None:
                title = _("{cards}: use it to get replies several times faster", cards=cards(graphics))
                self.title.setText(title)
                self.words.setText(join_sentences(driver_advice(graphics), _(PROMISE)))
                self.show_choices(graphics)
            self.setVisible(graphics is not None or self._engines.fetching is not None)

        self._start(look())

    def show_choices(self, graphics: Graphics) -> None:
        backends = suitable_backends(graphics)
        chosen = self.choice.currentData()
        if [self.choice.itemData(at) for at in range(self.choice.count())] != list(backends):
            self.choice.clear()
            for backend in backends:
                self.choice.addItem(join_list((backend.value, approximate_size(backend))), backend)
            self.choice.setCurrentIndex(max(0, self.choice.findData(chosen)))

    def _show_fetching(self) -> None:
        now = self._engines.fetching
        self._choosing.setVisible(now is None)
        self._running.setVisible(now is not None)
        if now is None:
            return
        self.outcome.hide()
        known = now.build is not None and now.stage in (Stage.CHECKING, Stage.FETCHING)
        self.bar.setRange(0, 1000 if known else 0)  # 0: indeterminate
        if now.build is not None and known:
            self.bar.setValue(int(1000 * now.done / max(now.build.size, 1)))
        self.amount.setText(_words(now))

    def show_steps(self, steps: Sequence[TrialStep]) -> None:
        last = steps[-1].error if steps else None
        if last is not None:
            self.show_error(last)
            return
        told = "\n".join(f"✓ {step.name}: {step.detail}" for step in steps)
        self._say(_("The new engine works and has been selected"), told, "", "")

    def show_error(self, error: KvchatError) -> None:
        self._say(error.title, error.detail, error.advice, "bad")

    def _say(self, title: str, detail: str, advice: str, tone: str) -> None:
        for widget in (self.outcome, self.outcome.title):
            restyle(widget, "tone", tone)
        self.outcome.set_text(title, detail, advice)
        self.outcome.show()


def cards(graphics: Graphics) -> str:
    return _("{makers} GPU", makers=_(" and ").join(maker.value for maker in graphics.vendors))


def _words(now: EngineDownload) -> str:
    """Return the progress: "llama.cpp-b11457-vulkan: 12 MB of 32 MB · 5 MB/s · 4 s left", or the stage."""
    if now.build is None:
        return f"{_(now.stage.value).capitalize()}…"
    if now.stage is Stage.TRYING and now.steps:
        return join_sentences(
            f"{now.build.name}: {_(now.stage.value)}", f"{now.steps[-1].name}: {now.steps[-1].detail}"
        )
    if now.stage is not Stage.FETCHING:
        return f"{now.build.name}: {_(now.stage.value)}…"
    parts = [
        _("{name}: {done} of {size}", name=now.build.name, done=format_size(now.done), size=format_size(now.build.size))
    ]
    if now.rate > 0:
        left = format_rough_duration((now.build.size - now.done) / now.rate)
        parts += [_("{size}/s", size=format_size(now.rate)), _("{time} left", time=left)]
    return join_parts(parts)
