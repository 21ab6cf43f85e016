"""Choosing a model: the box in a form, the menu in the header, and rows for lists of models."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QMenu

from kvchat.errors import KvchatError
from kvchat.library.memory.demand import MemoryFacts
from kvchat.library.memory.verdict import Judgement, Verdict, judge_size
from kvchat.library.model_files import quantisation_in
from kvchat.library.model_library import FoundModel
from kvchat.library.remote.hub import HubFile, HubModel
from kvchat.library.remote.starter import Suggestion
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_size, format_tokens
from kvchat.text.language import _, end_sentence, format_number, join_parts
from kvchat.ui.base.building import left_to_right
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.ui.widgets.layouts import plain_tip
from kvchat.ui.widgets.lists import Row, Tone

_MAX_MENU_MODELS = 14  # models in the menu; the models window lists all


class ModelBox(ChoiceBox):
    def __init__(self, runtime: Runtime, look: Look) -> None:
        super().__init__(look)
        self._runtime = runtime
        self.setAccessibleName(_("Model"))
        self.setSizeAdjustPolicy(self.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)  # names are long
        self.currentTextChanged.connect(lambda name: self.setToolTip(plain_tip(name)))

    @property
    def path(self) -> str | None:
        chosen: str | None = self.currentData()
        return chosen

    def show_model(self, model: str | None) -> None:
        """Show only this model until the list of models is loaded. With an external server, show the server's model."""
        self.clear()
        attached = bool(self._runtime.settings.engine_url)
        self.setEnabled(not attached)
        if attached or model is None:
            self.addItem(self._runtime.model.name or _("No model"), None)
        else:
            self.choose(model)

    def choose(self, model: str) -> None:
        if self.findData(model) < 0:
            self.addItem(self._runtime.model.name_of(model), model)
        self.setCurrentIndex(self.findData(model))

    async def load_models(self) -> None:
        if not self.isEnabled():
            return
        chips: dict[str, str] = {}
        for model in sorted(await _find_local(self._runtime), key=model_sort_key):
            path, row = str(model.path), found_row(model, None)
            if model.judgement is not None and self.findData(path) < 0:
                self.addItem(model.name, path)
                self.setItemData(self.count() - 1, plain_tip(f"{row.detail}\n{row.tip}"), Qt.ItemDataRole.ToolTipRole)
                chips[path] = "" if row.tone is Tone.GOOD else f" ({row.chip})"
        items = [(self.itemText(place), self.itemData(place) or "") for place in range(self.count())]
        for place, name in enumerate(distinct_names([(name, Path(path)) for name, path in items])):
            self.setItemText(place, name + chips.get(items[place][1], ""))


class ModelMenu(QObject):
    """Menu of the models on this or the paired computer.

    It shows the last search's results while a new search runs.
    """

    chosen = Signal(object)  # Path, or the name of a paired computer's model
    more_requested = Signal()

    def __init__(
        self, runtime: Runtime, menu: QMenu, runner: TaskRunner, current_model: Callable[[], str | None]
    ) -> None:
        """`current_model` returns the path of the open chat's model."""
        super().__init__(menu)
        self._current_model = current_model
        self._runtime, self._menu, self._runner = runtime, menu, runner
        self._models: list[FoundModel] = []
        self._is_searching = False
        menu.aboutToShow.connect(self._open)
        self._fill()

    def _open(self) -> None:
        async def search() -> None:
            try:
                models = await _find_local(self._runtime)
            finally:
                self._is_searching = False
            if models != self._models:
                self._models = models
                self._fill()

        self._fill()
        if not self._is_searching and not self._runtime.settings.engine_url:
            self._is_searching = True
            self._runner.start(search())

    def _fill(self) -> None:
        menu, used = self._menu, self._current_model()
        menu.clear()
        if server_models := self._runtime.engine.server_models:
            for name in server_models:
                action = menu.addAction(name.replace("&", "&&"), partial(self.chosen.emit, name))
                action.setCheckable(True)
                action.setChecked(name == server_models[0])
            return

        def order(model: FoundModel) -> tuple[object, ...]:
            return str(model.path) != used, _chip(model.judgement)[1] is Tone.BAD, model_sort_key(model)

        usable = sorted((model for model in self._models if model.judgement is not None), key=order)
        names = distinct_names([(model.name, model.path) for model in usable[:_MAX_MENU_MODELS]])
        for model, name in zip(usable, names, strict=False):
            row = found_row(model, Path(used) if used else None)
            text = f"{name.replace('&', '&&')}\t{row.chip}"
            action = menu.addAction(text, partial(self.chosen.emit, model.path))
            action.setCheckable(True)
            action.setChecked(str(model.path) == used)
        if not usable:
            text = _("This server has one model") if self._runtime.settings.engine_url else _("Looking for models…")
            menu.addAction(text if not self._models else _("No usable model found")).setEnabled(False)
        menu.addSeparator()
        menu.addAction(_("More models…"), self.more_requested.emit)


async def _find_local(runtime: Runtime) -> list[FoundModel]:
    models: list[FoundModel] = []
    judge = await runtime.engine.model_judge()
    await runtime.models.find(judge, models.append, runtime.settings.model_path)
    return models


_TONES = {Verdict.FITS: Tone.GOOD, Verdict.TIGHT: Tone.WARN, Verdict.NO: Tone.BAD}


def found_row(model: FoundModel, used: Path | None) -> Row:
    facts, path = model.facts, left_to_right(str(model.path))
    if facts is None or model.judgement is None:
        problem = model.problem or KvchatError(_("This model cannot be used"))
        why = "\n".join(part for part in (problem.detail, problem.advice, path) if part)
        return Row(model.path, model.name, end_sentence(problem.title), _("cannot be used"), Tone.BAD, why)
    context = _("{tokens} context", tokens=format_tokens(facts.trained_context))
    quantisation = "" if quantisation_in(model.name) else facts.quantisation
    parts = [quantisation, format_size(model.size), context, _(model.source.value)]
    parts += [_("image or audio input")] if model.projector else []
    chip, tone = (_("in use"), Tone.GOOD) if model.path == used else _chip(model.judgement)
    return Row(model.path, model.name, join_parts(parts), chip, tone, f"{model.judgement.reason}\n{path}")


def distinct_names(models: Sequence[tuple[str, Path]]) -> list[str]:
    """Return the models' names. Add the folder to equal names or, if the folders are equal too, the file name."""
    alike = Counter(name for name, _ in models)
    in_folder = Counter((name, path.parent.name) for name, path in models)
    places = (path.parent.name if in_folder[name, path.parent.name] == 1 else path.name for name, path in models)
    names = (name for name, _ in models)
    return [name if alike[name] == 1 else join_parts((name, place)) for name, place in zip(names, places, strict=True)]


def model_sort_key(model: FoundModel) -> tuple[bool, str, int]:
    """Return a key that puts usable models first and then sorts by name and size."""
    return model.judgement is None, model.name.lower(), model.size


def suggestion_row(suggestion: Suggestion, memory: MemoryFacts) -> Row:
    judgement = judge_size(suggestion.size, memory)
    why, kind = _(suggestion.reason), suggestion.quantisation
    text = _("{why} {quantisation}, about {size}.", why=why, quantisation=kind, size=format_size(suggestion.size))
    return Row(suggestion, suggestion.repository, text, *_chip(judgement), judgement.reason)


def result_row(model: HubModel) -> Row:
    downloads = _("{downloads} downloads per month", downloads=format_number(model.downloads))
    updated = _("updated {updated}", updated=f"{model.updated:%Y-%m-%d}") if model.updated else ""
    text = join_parts((downloads, _("{likes} likes", likes=format_number(model.likes)), updated))
    return Row(model, model.repository, text, _("needs access token") if model.gated else "")


def file_row(file: HubFile, memory: MemoryFacts, *, is_downloaded: bool) -> Row:
    judgement = judge_size(file.size, memory)
    text, parts = format_size(file.size), len(file.parts)
    if parts > 1:
        text = _("{size} in {count} files", size=text, count=parts)
    text = join_parts((text, _("image or audio input") if file.projector else ""))
    chip, tone = (_("on this computer"), Tone.GOOD) if is_downloaded else _chip(judgement)
    return Row(file, file.name, text, chip, tone, judgement.reason)


def _chip(judgement: Judgement | None) -> tuple[str, Tone]:
    verdict = judgement.verdict if judgement else Verdict.NO
    return _(verdict.value), _TONES[verdict]
