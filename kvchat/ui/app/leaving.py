"""Before kvchat ends: what would be cut short is said, and asked about."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from kvchat.library.remote.downloads import RUNS
from kvchat.runtime import Runtime
from kvchat.ui.controllers.sidebar import SidebarController
from kvchat.ui.controllers.transfer import TransferController
from kvchat.ui.dialogs.confirm import ConfirmDialog, confirm
from kvchat.ui.models.first_start import FirstStart
from kvchat.words.wording import several


class Leaving(QObject):
    """Asks only where something goes on that quitting ends."""

    agreed = Signal()

    def __init__(
        self,
        runtime: Runtime,
        conversations: SidebarController,
        keeping: TransferController,
        first_start: FirstStart,
        window: QWidget,
    ) -> None:
        super().__init__(window)
        self._runtime, self._list = runtime, conversations
        self._keeping, self._first_start, self._window = keeping, first_start, window
        self.question: ConfirmDialog | None = None

    def ask(self) -> None:
        """Quit, once the user agrees to what that ends."""
        ends = self._what_ends()
        if not ends:
            self.agreed.emit()
        elif self.question is None:
            self._window.show()
            self.question = confirm(self._window, "Quit now?", " ".join(ends), "Quit", self.agreed.emit, keep="Stay")
            self.question.finished.connect(self._forget)

    def _what_ends(self) -> list[str]:
        """A sentence for each thing that goes on."""
        ends = []
        if (busy := self._runtime.chat.busy) is not None:
            ends.append(f"A reply is being written in “{self._list.title(busy)}”; what has come of it is kept.")
        if count := sum(1 for one in self._runtime.models.downloads.all() if one.state in RUNS):
            what = several(count, "model is", "models are")
            ends.append(f"{what} being downloaded: what has arrived is kept, and can go on later.")
        if self._first_start.is_fetching:
            ends.append("The starter model is being downloaded.")
        ends += [f"{words.rstrip('…')}: that ends, and nothing of it is kept." for words in self._keeping.going_on]
        return ends

    def _forget(self) -> None:
        self.question = None
