"""A key on Wayland: the desktop's portal asks the user which, and tells when it is pressed.

https://flatpak.github.io/xdg-desktop-portal/docs/doc-org.freedesktop.portal.GlobalShortcuts.html
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from kvchat.system.session_bus import NoAnswer, Service, SessionBus
from kvchat.ui.desktop.portal import NAME, portal, request
from kvchat.words.language import N_, _

_SHORTCUTS = "GlobalShortcuts"
_REGISTRY = portal(_SHORTCUTS)._replace(interface="org.freedesktop.host.portal.Registry")
_WORDS = N_("Ask something in a small window")


async def bind(bus: SessionBus, key: str, pressed: Callable[[str], object]) -> Callable[[], object]:
    """Call `pressed`, with the token for the window, whenever it is; returns what gives the key back. Raises NoAnswer.

    The desktop asks the user the first time, and may take another key than `key`.
    """
    with contextlib.suppress(NoAnswer):  # of newer portals: who is asking, where nobody started kvchat by its menu
        await bus.call(_REGISTRY, "Register", "sa{sv}", "kvchat", {})
    made = await request(bus, _SHORTCUTS, "CreateSession", "a{sv}", (), {"session_handle_token": ("s", "kvchat")})
    session = made.get("session_handle", ("s", ""))[1]

    def hear(of: str, _id: str, _at: int, more: dict[str, tuple[str, Any]]) -> None:
        if of == session:
            pressed(str(more.get("activation_token", ("s", ""))[1]))

    stop = await bus.listen(portal(_SHORTCUTS), "Activated", hear)

    def release() -> None:
        stop()
        bus.tell(Service(NAME, session, "org.freedesktop.portal.Session"), "Close")

    trigger = key.upper().replace("+K", "+k")
    wanted = [("quick", {"description": ("s", _(_WORDS)), "preferred_trigger": ("s", trigger)})]
    try:
        await request(bus, _SHORTCUTS, "BindShortcuts", "oa(sa{sv})sa{sv}", (session, wanted, ""), {})
    except BaseException:
        release()
        raise
    return release
