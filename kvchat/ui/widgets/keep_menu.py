"""The two menu entries that say what is to be kept of a conversation, the same wherever they stand."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from kvchat.words.wording import ALWAYS_KEEP, NEVER_KEEP


def add_keep_actions(
    menu: QMenu, on_pin: Callable[[bool], object], on_never_save: Callable[[bool], object]
) -> tuple[QAction, QAction]:
    """Append both; each calls back with whether it holds from now on."""
    pin, never = menu.addAction(ALWAYS_KEEP), menu.addAction(NEVER_KEEP)
    pin.setToolTip("It is never deleted to make room")
    never.setToolTip("After a restart the chat is read again from the beginning")
    for action, run in ((pin, on_pin), (never, on_never_save)):
        action.setCheckable(True)
        action.triggered.connect(lambda on, run=run: run(on))
    menu.setToolTipsVisible(True)
    return pin, never
