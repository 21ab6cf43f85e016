"""Models to download: suggestions, a search, and the files of a repository."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices, QShowEvent
from PySide6.QtWidgets import QLineEdit, QWidget

from kvchat.errors import KvchatError
from kvchat.library.memory.demand import MemoryFacts
from kvchat.library.remote.hub import (
    EXTERNAL_LOCATION,
    AccessNeeded,
    HubFile,
    HubModel,
    HubRepository,
    parse_repository,
)
from kvchat.library.remote.starter import Suggestion, suggestions_for, tier_for
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _, pgettext
from kvchat.ui.base.building import STRETCH, button, column, label, line_edit, row, show_text
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import ask_if_metered, fit_to_text
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.models.model_choice import file_row, result_row, suggestion_row
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.lists import Row, RowList
from kvchat.ui.widgets.text_search import ClearableField

_PRIVACY = N_("kvchat contacts huggingface.co only when you search or download.")


class HubModelsPage(QWidget):
    """Page of models to download. It goes online only when the user searches, opens a repository or downloads."""

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__()
        self._runtime, self._panel = runtime, panel
        self._memory: MemoryFacts | None = None
        self._loading: asyncio.Task[None] | None = None
        self._results: list[Row] = []  # rows that Back shows again
        self._results_heading = self._last_heading = ""  # the latter is restored after a failure
        self._repository: HubRepository | None = None
        hint = _("Model name or address on huggingface.co")
        self.field = ClearableField(look, _("Search Hugging Face"), hint)
        self.field.setToolTip(hint)
        self.search_button = button(pgettext("to do", "Search"), self._search)
        self.field.returnPressed.connect(self._search)
        self.back_button = button(_("‹ Back"), self._go_back, "link", name=_("Back to the list"))
        self.heading = label(kind="strong", wraps=True)
        self.list = RowList(look, _("Models on Hugging Face"))
        self.list.row_activated.connect(self._open_row)
        self.list.current_changed.connect(self._show_current)
        self.access_card = Card()  # for a gated repository
        self.access_page = ""
        self.access_card.add_button(_("Open model page"), "", lambda: QDesktopServices.openUrl(QUrl(self.access_page)))
        self.token_button = self.access_card.add_button(_("Access token…"), "primary")
        self.access_card.hide()
        self.reason, privacy = label(kind="small", wraps=True), label(_(_PRIVACY), "small", wraps=True)
        self.show_files_button = button(_("Show files"), lambda: self._open_row(self.list.current), "primary")
        search_row, above = (
            row((self.field, 1), self.search_button, spacing=8),
            row(self.back_button, (self.heading, 1), spacing=10),
        )
        below = row((privacy, 1), self.show_files_button, spacing=8)
        column(search_row, above, self.access_card, (self.list, 1), self.reason, below, on=self, spacing=8, margins=0)
        self._show_rows("", [])

    def load_if_empty(self) -> None:
        if not self.list.rows:
            self._panel.run(self._show_suggestions())

    def open_repository(self, repository: str, quantisation: str = "") -> None:
        self._load(self._list_files(repository, quantisation))

    def _search(self) -> None:
        text = self.field.text().strip()
        if (repository := parse_repository(text)) is not None:
            self.open_repository(repository)
        else:
            self._load(self._show_results(text) if text else self._show_suggestions())

    def _load(self, load: Coroutine[Any, Any, None]) -> None:
        """Load the page's rows with `load`. A request that is still in progress is canceled."""
        if self._loading is not None:
            self._loading.cancel()
        self.access_card.hide()
        self._loading = self._panel.run(load, self._show_error)

    def _show_error(self, error: KvchatError) -> None:
        self.heading.setText(self._last_heading)
        if isinstance(error, AccessNeeded):
            self.access_page = error.page
            self.access_card.set_text(error.title, error.detail, error.advice)
            self.access_card.show()
        else:
            self._panel.show_error(error)

    async def _show_suggestions(self) -> None:
        memory = await self._free_memory()
        heading = _("Suggestions for a computer without a large GPU")
        if tier := tier_for(memory):
            heading = _("Suggestions for a GPU of {tier} GB", tier=tier)
        self._show_rows(heading, [suggestion_row(suggestion, memory) for suggestion in suggestions_for(memory)])

    async def _show_results(self, text: str) -> None:
        self.heading.setText(_("Searching…"))
        models = await self._runtime.models.hub.search(text)
        heading = _("Results for “{text}”", text=text)
        if not models:
            heading = _("No compatible model found for “{text}”", text=text)
        self._show_rows(heading, [result_row(model) for model in models])

    async def _list_files(self, name: str, quantisation: str) -> None:
        self.heading.setText(_("Loading the file list…"))
        repository, memory = await self._runtime.models.hub.repository(name), await self._free_memory()
        if self._repository is None:
            self._results, self._results_heading = list(self.list.rows), self._last_heading
        heading, files = repository.repository, repository.files
        if not files:
            heading = _("{repository} has no model that kvchat can use", repository=heading)
        is_downloaded = self._runtime.models.is_downloaded
        rows = [file_row(file, memory, is_downloaded=is_downloaded(repository, file)) for file in files]
        self._show_rows(heading, rows, can_go_back=bool(self._results))
        self._repository = repository
        self.list.select(next((file for file in files if file.quantisation == (quantisation or "Q4_K_M")), None))
        self._show_current()

    async def _free_memory(self) -> MemoryFacts:
        if self._memory is None:
            self._memory = (await self._runtime.engine.capacity()).memory
        return self._memory

    def _show_rows(self, heading: str, rows: Sequence[Row], *, can_go_back: bool = False) -> None:
        self._repository = None
        self._last_heading = heading
        self.heading.setText(heading)
        self.back_button.setVisible(can_go_back)
        self.list.show_rows(rows)
        self._show_current()

    def _go_back(self) -> None:
        self.access_card.hide()
        self._show_rows(self._results_heading, self._results)
        self._results = []

    def _show_current(self) -> None:
        row = self.list.current
        self.show_files_button.setText(_("Show files") if self._repository is None else _("Download"))
        self.show_files_button.setAccessibleName(self.show_files_button.text())
        self.show_files_button.setEnabled(row is not None)
        show_text(self.reason, row.tip if row else "")

    def _open_row(self, row: Row | None) -> None:
        """Download the row's file or, if the row is a repository, list its files."""
        match row.value if row else None:
            case HubFile() as file if (repository := self._repository) is not None:

                def begin() -> None:
                    self._runtime.models.download(repository, file)

                ask_if_metered(self, self._panel.run, file.name, format_size(file.size), begin)
            case Suggestion() as suggestion:
                self.open_repository(suggestion.repository, suggestion.quantisation)
            case HubModel() as model:
                self.open_repository(model.repository)


_TOKEN_HELP = N_(
    "Some models are available only after you accept their terms. Create an access token with read "
    "permission at huggingface.co/settings/tokens and paste it here. kvchat sends it only to Hugging "
    "Face."
)
_WIDTH_IN_LETTERS = 72  # width in average characters


class AccessTokenDialog(Panel):
    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget) -> None:
        super().__init__(runtime, look, runner, _("Hugging Face access token"), parent)
        self._store = store = runtime.models.token
        self.field, self.location_label = line_edit(_("Access token"), "hf_…"), label(kind="muted", wraps=True)
        self.field.setEchoMode(QLineEdit.EchoMode.Password)
        self.remove_button = button(_("Remove"), lambda: self._change(store.forget), "danger")
        self.save_button = button(_("Save"), lambda: self._change(store.save, self.field.text()), "primary")
        self.field.returnPressed.connect(self.save_button.click)
        below = row(self.remove_button, STRETCH, button(_("Close"), self.close), self.save_button)
        parts = self.notices, label(_(_TOKEN_HELP), "muted", wraps=True), self.field, self.location_label, below
        column(*parts, on=self, spacing=10, margins=(24, 20, 24, 18))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        fit_to_text(self, _WIDTH_IN_LETTERS)
        self.field.setFocus()
        self.run(self._load())

    def _change(self, change: Callable[..., object], *arguments: object) -> None:
        async def run() -> None:
            await asyncio.to_thread(change, *arguments)
            self.field.clear()
            await self._load()

        self.run(run())

    async def _load(self) -> None:
        token = await asyncio.to_thread(self._store.load)
        self.remove_button.setVisible(token is not None and token.location != EXTERNAL_LOCATION)
        text, place = _("No access token is saved."), _(token.location) if token is not None else ""
        if place:
            text = _("An access token is saved in {place}.", place=place)
        if token is not None and token.location == EXTERNAL_LOCATION:
            text = _("An access token was found in {place}. It is used unless you enter another one.", place=place)
        self.location_label.setText(text)
        fit_to_text(self, _WIDTH_IN_LETTERS)
