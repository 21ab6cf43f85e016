"""Between the sidebar and the organiser: chats are moved, archived and deleted, and had back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QInputDialog

from kvchat.runtime import Runtime
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.dialogs.notices import Notices
from kvchat.ui.sidebar.sidebar import Sidebar
from kvchat.words.wording import one_line, several

_MOST_LETTERS = 40  # of a title in a notice


class OrganiserController(QObject):
    """Grants what the sidebar's menu asks for."""

    def __init__(
        self,
        runtime: Runtime,
        sidebar: Sidebar,
        controller: ChatController,
        notices: Notices,
        runner: TaskRunner,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._chat, self._sidebar, self._controller = runtime.chat, sidebar, controller
        self._notices, self._runner = notices, runner
        sidebar.delete_requested.connect(lambda ids: runner.start(self._delete(ids)))
        sidebar.archive_requested.connect(lambda ids, on: runner.start(self._archive(ids, on)))
        sidebar.top_requested.connect(lambda ids, on: runner.start(self._chat.organiser.keep_on_top(ids, on)))
        sidebar.move_requested.connect(lambda ids, to: runner.start(self._chat.organiser.move(ids, to)))
        sidebar.new_folder_requested.connect(self._ask_folder)

    async def show_imported(self, ids: list[str]) -> None:
        """Chats that are new: all of them in sight of the list, chosen, the first one open."""
        self._sidebar.search.field.clear()
        self._sidebar.arrange(replace(self._sidebar.arrangement, folder=None, archive=False))
        await self._controller.list.reload()
        self._controller.open(ids[0])
        self._sidebar.choose(ids)

    async def _delete(self, ids: list[str]) -> None:
        offer_undo = self._undo_offer(ids, "Deleted", self._chat.organiser.undo_delete)
        self._controller.step_away(ids)
        await self._chat.organiser.delete(ids)
        offer_undo()

    async def _archive(self, ids: list[str], archived: bool) -> None:
        offer_undo = self._undo_offer(
            ids,
            "Archived" if archived else "Taken out of the archive:",
            lambda ids: self._chat.organiser.archive(ids, not archived),
        )
        if archived:
            self._controller.step_away(ids)
        await self._chat.organiser.archive(ids, archived)
        offer_undo()

    def _undo_offer(self, ids: list[str], done: str, undo: Callable[[list[str]], Awaitable[Any]]) -> Callable[[], None]:
        """What offers to undo it once it is done, made while the chats are still here."""
        here, title = self._controller.current, one_line(self._controller.list.titles.get(ids[0], ""))

        async def undo_all() -> None:
            await undo(ids)
            if here in ids and await self._chat.conversation(here) is not None:  # else it has gone for good meanwhile
                self._controller.open(here)

        name = title if len(title) <= _MOST_LETTERS else f"{title[: _MOST_LETTERS - 1].rstrip()}…"
        what = f"“{name}”" if len(ids) == 1 and name else several(len(ids), "chat")
        return lambda: self._notices.offer_undo(f"{done} {what}", lambda: self._runner.start(undo_all()))

    def _ask_folder(self, ids: list[str]) -> None:
        dialog = QInputDialog(self._sidebar)
        dialog.setWindowTitle("New folder")
        dialog.setLabelText("Name of the folder")
        dialog.textValueSelected.connect(
            lambda name: name.strip() and self._runner.start(self._chat.organiser.move(ids, name))
        )
        dialog.open()
