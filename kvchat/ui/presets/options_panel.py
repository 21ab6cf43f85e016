"""What chat settings and the preset dialog have in common: the form in the middle, Save and Cancel below it."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtWidgets import QLayout, QWidget

from kvchat.chat.options import BadOptions
from kvchat.runtime import Runtime
from kvchat.ui.base.building import STRETCH, button, column, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.presets.options_form import FormValues, OptionsForm
from kvchat.ui.widgets.layouts import ScrollPage
from kvchat.words.language import _, ended, sentences


class OptionsPanel(Panel):
    """Subclasses call `_build` with what stands above the form, and take what it holds with `_take`."""

    def __init__(
        self,
        runtime: Runtime,
        look: Look,
        runner: TaskRunner,
        title: str,
        parent: QWidget | None,
        size: tuple[int, int],
        least: tuple[int, int],
    ) -> None:
        super().__init__(look, runner, title, parent, size=size, least=least)
        self._runtime, self.form = runtime, OptionsForm(look)
        self.save, self._leave = button(_("Save"), self._save, "primary"), button(_("Cancel"), self.close)
        self.save.setDefault(True)  # Enter in a field saves

    async def _offer(self, model: str | None, is_meant: Callable[[], bool], *, begun: bool = False) -> bool:
        """Show what can be chosen with a model, if it is still the one that `is_meant` by then; whether it was."""
        offered = await self._runtime.model.template_options(model)
        defaults = await self._runtime.model.default_sampling(model)
        if is_meant():
            self.form.offer(offered, defaults, begun=begun)
        return is_meant()

    def come(self) -> None:
        """To the front; nothing can be saved before the form is filled."""
        self.save.setEnabled(False)
        self.bring_forward()

    def _take(self, values: FormValues) -> None:
        """Save was pressed, and what stands in the form makes sense."""
        raise NotImplementedError

    def _save(self) -> None:
        if (values := self._read()) is not None:
            self._take(values)

    def _read(self) -> FormValues | None:
        """What stands in the form; None if it makes no sense, which is said there."""
        try:
            values = self.form.read()
        except BadOptions as error:
            self.form.refuse(ended(sentences(error.title, error.detail)))
            return None
        self.form.refuse("")
        return values

    def _build(self, *above: QWidget | QLayout) -> None:
        """Put everything in its place; Tab goes from above to below."""
        scroll = ScrollPage("settingsPage")
        column(self.form, on=scroll.ground, margins=(24, 4, 24, 12))
        top = column(*above, spacing=8, margins=(24, 18, 24, 8))
        below = row(STRETCH, self._leave, self.save, spacing=8, margins=(24, 10, 24, 16))
        column(top, (scroll, 1), below, on=self, spacing=0, margins=0)
