"""The menu of a chat: for a right click and `···` in the list, and for `···` in the header."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QMenu

from kvchat.ui.commands.shortcuts import add_keep_actions, words_of
from kvchat.words.language import _, pgettext, several
from kvchat.words.wording import VERIFY_MEMORY

if TYPE_CHECKING:
    from kvchat.ui.sidebar.conversation_list import Row
    from kvchat.ui.sidebar.sidebar import Sidebar

_OF_ONE = ("name", "chat-settings", "export-memory")  # actions of the table that concern one chat


def fill_chat_menu(
    menu: QMenu, sidebar: Sidebar, chat: Row, ids: Sequence[str], folders: Sequence[str], rename: Callable[[], object]
) -> None:
    """Fill `menu` for the chats of these ids, among them `chat`, whose state the entries show.

    The signals of `sidebar` tell what is chosen. A chat without an id has not begun.
    """
    menu.clear()
    alone, ids = len(ids) == 1, list(ids)
    menu.addAction(_("Rename"), rename).setEnabled(alone)
    name, settings, export_memory = (
        (words_of(action), partial(sidebar.requested.emit, action, chat.id)) for action in _OF_ONE
    )
    menu.addAction(*name).setEnabled(alone)
    begins = menu.addAction(*settings)
    begins.setEnabled(alone)
    menu.addSeparator()
    top = menu.addAction(_("Keep on top"), lambda: sidebar.top_requested.emit(ids, not chat.on_top))
    top.setCheckable(True)
    top.setChecked(chat.on_top)
    folder_menu = menu.addMenu(_("Move to folder"))
    for folder in folders:
        folder_menu.addAction(folder.replace("&", "&&"), partial(sidebar.move_requested.emit, ids, folder))
    folder_menu.addAction(_("New folder…"), lambda: sidebar.new_folder_requested.emit(ids))
    folder_menu.addAction(_("No folder"), lambda: sidebar.move_requested.emit(ids, None))
    away = _("Take out of the archive") if chat.archived else pgettext("to do", "Archive")
    menu.addAction(away, lambda: sidebar.archive_requested.emit(ids, not chat.archived))
    menu.addSeparator()
    pin, never = add_keep_actions(
        menu,
        lambda on: sidebar.pin_requested.emit(chat.id, on),
        lambda on: sidebar.never_save_requested.emit(chat.id, on),
    )
    pin.setChecked(chat.pinned)
    never.setChecked(chat.never_save)
    if chat.imported and alone:
        menu.addAction(_(VERIFY_MEMORY), partial(sidebar.verify_requested.emit, chat.id))
    menu.addSeparator()
    menu.addAction(_("Export…"), lambda: sidebar.export_requested.emit(ids))
    menu.addAction(*export_memory).setEnabled(alone)
    words = _("Delete") if alone else several(len(ids), "Delete {count} chat", "Delete {count} chats")
    menu.addAction(words, lambda: sidebar.delete_requested.emit(ids))
    if not chat.id:
        for action in menu.actions():
            action.setEnabled(action is begins)
