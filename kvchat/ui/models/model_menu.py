"""The models on this computer in the header's menu: one click changes to another."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QMenu

from kvchat.library.memory.verdict import Verdict
from kvchat.library.model_library import JudgedModel
from kvchat.runtime import Runtime
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.models.model_rows import found_row, in_order

_MOST = 14  # models; the window has them all


class ModelMenu(QObject):
    """Shows what was found last at once, and looks again each time it opens."""

    chosen = Signal(object)  # Path
    more_requested = Signal()

    def __init__(self, runtime: Runtime, menu: QMenu, runner: TaskRunner) -> None:
        super().__init__(menu)
        self._runtime, self._menu, self._runner = runtime, menu, runner
        self._found: list[JudgedModel] = []
        self._looking = False
        menu.aboutToShow.connect(self._open)
        self._fill()

    def _open(self) -> None:
        self._fill()
        if not self._looking and not self._runtime.settings.engine_url:
            self._looking = True
            self._runner.start(self._look())

    async def _look(self) -> None:
        found: list[JudgedModel] = []
        try:
            judge = await self._runtime.engine.model_judge()
            await self._runtime.models.find(judge, found.append, self._runtime.settings.model_path)
        finally:
            self._looking = False
        if found != self._found:
            self._found = found
            self._fill()

    def _fill(self) -> None:
        menu, used = self._menu, self._runtime.settings.model_path
        menu.clear()
        usable = [one for one in self._found if one.judgement is not None]
        usable.sort(key=lambda one: (str(one.model.path) != used, _fits_not(one), in_order(one)))
        for one in usable[:_MOST]:
            row = found_row(one, Path(used) if used else None)
            words = f"{one.model.name.replace('&', '&&')}\t{row.chip}"
            action = menu.addAction(words, partial(self.chosen.emit, one.model.path))
            action.setCheckable(True)
            action.setChecked(str(one.model.path) == used)
        if not usable:
            words = "This server has one model" if self._runtime.settings.engine_url else "Looking for models…"
            menu.addAction(words if not self._found else "No model here can be used").setEnabled(False)
        menu.addSeparator()
        menu.addAction("More models…", self.more_requested.emit)


def _fits_not(one: JudgedModel) -> bool:
    return one.judgement is None or one.judgement.verdict is Verdict.NO
