"""Ask before anything large goes over a metered connection."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import Any

from PySide6.QtNetwork import QNetworkInformation
from PySide6.QtWidgets import QWidget

from kvchat.system.session_bus import NoAnswer, Service, SessionBus
from kvchat.text.language import _
from kvchat.ui.dialogs.confirm import confirm

_MANAGER = "org.freedesktop.NetworkManager"
_PROPERTIES = Service(_MANAGER, "/org/freedesktop/NetworkManager", "org.freedesktop.DBus.Properties")
_YES, _PROBABLY = 1, 3  # https://networkmanager.dev/docs/api/latest/nm-dbus-types.html#NMMetered


def ask_if_metered(
    parent: QWidget, run: Callable[[Coroutine[Any, Any, None]], object], what: str, fetch: Callable[[], object]
) -> None:
    """Call `fetch`; on a metered connection, ask first. what: the download, with its size"""

    async def look() -> None:
        if not await is_metered():
            fetch()
            return
        words = _("To be downloaded: {what}. Your desktop reports that this connection is metered.")
        title, action = _("Download over a metered connection?"), _("Download")
        confirm(parent, title, words.format(what=what), action, fetch, keep=_("Not now"))

    run(look())


async def is_metered() -> bool:
    """Return True if the connection is metered, False if unknown."""
    if sys.platform != "linux":
        if QNetworkInformation.instance() is None:
            QNetworkInformation.loadBackendByFeatures(QNetworkInformation.Feature.Metered)
        here = QNetworkInformation.instance()
        return here is not None and here.isMetered()
    bus = SessionBus("SYSTEM")
    try:
        ((_kind, metered),) = await bus.call(_PROPERTIES, "Get", "ss", _MANAGER, "Metered")
    except NoAnswer:
        return False
    finally:
        await bus.close()
    return metered in (_YES, _PROBABLY)
