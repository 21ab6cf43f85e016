"""A choice among the models on this computer."""

from __future__ import annotations

from PySide6.QtCore import Qt

from kvchat.library.model_library import JudgedModel
from kvchat.runtime import Runtime
from kvchat.ui.base.theme import Look
from kvchat.ui.models.model_rows import found_row, in_order
from kvchat.ui.widgets.elided import plain_tip
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.ui.widgets.row_list import Tone


class ModelBox(ChoiceBox):
    """Has the model it began with, and those that were found since."""

    def __init__(self, runtime: Runtime, look: Look) -> None:
        super().__init__(look)
        self._runtime = runtime
        self.setAccessibleName("Model")
        self.setSizeAdjustPolicy(self.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)  # names are long

    @property
    def path(self) -> str | None:
        """The path of the model that is chosen; None where there is none, or it is a server's."""
        chosen: str | None = self.currentData()
        return chosen

    def begin(self, model: str | None) -> None:
        """Show this one alone. Of a server that the user runs there is no other."""
        self.clear()
        attached = bool(self._runtime.settings.engine_url)
        self.setEnabled(not attached)
        if attached or model is None:
            self.addItem(self._runtime.model.name or "No model", None)
        else:
            self.choose(model)

    def choose(self, model: str) -> None:
        """Choose this one, found or not."""
        if self.findData(model) < 0:
            self.addItem(self._runtime.model.name_of(model), model)
        self.setCurrentIndex(self.findData(model))

    async def look(self) -> None:
        """Offer what else is on this computer and can be used."""
        if not self.isEnabled():
            return
        found: list[JudgedModel] = []
        judge = await self._runtime.engine.model_judge()
        await self._runtime.models.find(judge, found.append, self._runtime.settings.model_path)
        for one in sorted(found, key=in_order):
            path, row = str(one.model.path), found_row(one, None)
            if one.judgement is not None and self.findData(path) < 0:
                self.addItem(one.model.name if row.tone is Tone.GOOD else f"{one.model.name} ({row.chip})", path)
                self.setItemData(self.count() - 1, plain_tip(f"{row.words}\n{row.tip}"), Qt.ItemDataRole.ToolTipRole)
