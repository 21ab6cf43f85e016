"""Nothing large goes over a connection that counts it unless the user says so."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from PySide6.QtWidgets import QWidget

from kvchat.ui.desktop.network import is_metered
from kvchat.ui.dialogs.confirm import confirm
from kvchat.words.language import _


def ask_if_metered(
    parent: QWidget, run: Callable[[Coroutine[Any, Any, None]], object], what: str, fetch: Callable[[], object]
) -> None:
    """Call `fetch`; on a metered connection once the user agrees. `what`: what would be fetched, and its size."""

    async def look() -> None:
        if not await is_metered():
            fetch()
            return
        words = _("{what} would be fetched. Your desktop says that this connection counts what goes through it.")
        title, action = _("Download over a metered connection?"), _("Download")
        confirm(parent, title, words.format(what=what), action, fetch, keep=_("Not now"))

    run(look())
