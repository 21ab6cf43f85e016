"""The two menu entries that say what is to be kept of a conversation, the same wherever they stand."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

PIN, NEVER_SAVE = "Pin what is saved", "Never save this one"


def add_keep_actions(
    menu: QMenu, on_pin: Callable[[bool], object], on_never_save: Callable[[bool], object]
) -> tuple[QAction, QAction]:
    """Append both; each calls back with whether it holds from now on."""
    pin, never = menu.addAction(PIN), menu.addAction(NEVER_SAVE)
    pin.setToolTip("Pruning and the quota leave it alone")
    never.setToolTip("After a restart it is read again from the beginning")
    for action, wish in ((pin, on_pin), (never, on_never_save)):
        action.setCheckable(True)
        action.triggered.connect(lambda on, wish=wish: wish(on))
    menu.setToolTipsVisible(True)
    return pin, never
