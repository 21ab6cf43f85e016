"""What the desktop says of the network: whether what is fetched may cost."""

from __future__ import annotations

import sys

from PySide6.QtNetwork import QNetworkInformation

from kvchat.system.session_bus import NoAnswer, Service, SessionBus

_MANAGER = "org.freedesktop.NetworkManager"
_PROPERTIES = Service(_MANAGER, "/org/freedesktop/NetworkManager", "org.freedesktop.DBus.Properties")
_YES, _PROBABLY = 1, 3  # https://networkmanager.dev/docs/api/latest/nm-dbus-types.html#NMMetered


async def is_metered() -> bool:
    """Return True if the connection is metered; False if nobody knows."""
    if sys.platform != "linux":
        return _as_windows_says()
    bus = SessionBus("SYSTEM")
    try:
        ((_, metered),) = await bus.call(_PROPERTIES, "Get", "ss", _MANAGER, "Metered")
    except NoAnswer:
        return False
    finally:
        await bus.close()
    return metered in (_YES, _PROBABLY)


def _as_windows_says() -> bool:
    if QNetworkInformation.instance() is None:
        QNetworkInformation.loadBackendByFeatures(QNetworkInformation.Feature.Metered)
    here = QNetworkInformation.instance()
    return here is not None and here.isMetered()
