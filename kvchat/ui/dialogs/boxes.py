"""Message boxes for what has to be said before there is all of the window."""

from __future__ import annotations

import asyncio

from PySide6.QtWidgets import QMessageBox

from kvchat.errors import KvchatError
from kvchat.words.language import _


async def say(error: KvchatError) -> None:
    await ask(error.title, error.told, "", "")


async def ask(title: str, words: str, detail: str, action: str) -> bool:
    """Ask in a message box before there is a window. Returns True for `action`; without one there is only OK."""
    closed = asyncio.Event()
    box = QMessageBox(QMessageBox.Icon.Critical if action else QMessageBox.Icon.Warning, "kvchat", title)
    box.setInformativeText("\n\n".join(part for part in (words, detail) if part))
    wanted = box.addButton(action, QMessageBox.ButtonRole.AcceptRole) if action else None
    if wanted is not None:
        box.setDefaultButton(wanted)
        box.addButton(_("Quit"), QMessageBox.ButtonRole.RejectRole)
    box.finished.connect(lambda _: closed.set())
    box.open()
    await closed.wait()
    return wanted is not None and box.clickedButton() is wanted
