"""A key on Wayland: the desktop's portal asks the user which, and tells when it is pressed.

https://flatpak.github.io/xdg-desktop-portal/docs/doc-org.freedesktop.portal.GlobalShortcuts.html
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from kvchat.system.session_bus import NoAnswer, Service, SessionBus
from kvchat.words.language import N_, _

_NAME, _PATH = "org.freedesktop.portal.Desktop", "/org/freedesktop/portal/desktop"
_SHORTCUTS = Service(_NAME, _PATH, "org.freedesktop.portal.GlobalShortcuts")
_REGISTRY = Service(_NAME, _PATH, "org.freedesktop.host.portal.Registry")
_WORDS = N_("Ask something in a small window")


async def bind(bus: SessionBus, key: str, pressed: Callable[[str], object]) -> Callable[[], object]:
    """Call `pressed`, with the token for the window, whenever it is; returns what gives the key back. Raises NoAnswer.

    The desktop asks the user the first time, and may take another key than `key`.
    """
    with contextlib.suppress(NoAnswer):  # of newer portals: who is asking, where nobody started kvchat by its menu
        await bus.call(_REGISTRY, "Register", "sa{sv}", "kvchat", {})
    made = await _asked(bus, "CreateSession", "a{sv}", (), {"session_handle_token": ("s", "kvchat")})
    session = made.get("session_handle", ("s", ""))[1]

    def hear(of: str, _id: str, _at: int, more: dict[str, tuple[str, Any]]) -> None:
        if of == session:
            pressed(str(more.get("activation_token", ("s", ""))[1]))

    stop = await bus.listen(_SHORTCUTS, "Activated", hear)

    def release() -> None:
        stop()
        bus.tell(Service(_NAME, session, "org.freedesktop.portal.Session"), "Close")

    trigger = key.upper().replace("+K", "+k")
    wanted = [("quick", {"description": ("s", _(_WORDS)), "preferred_trigger": ("s", trigger)})]
    try:
        await _asked(bus, "BindShortcuts", "oa(sa{sv})sa{sv}", (session, wanted, ""), {})
    except BaseException:
        release()
        raise
    return release


async def _asked(
    bus: SessionBus, method: str, signature: str, body: tuple[Any, ...], options: dict[str, tuple[str, Any]]
) -> dict[str, tuple[str, Any]]:
    """What the portal answers, which may wait for the user. Raises NoAnswer, also for a user's no."""
    token = f"kvchat_{method}"
    sender = (await bus.unique_name()).lstrip(":").replace(".", "_")
    request = Service(_NAME, f"{_PATH}/request/{sender}/{token}", "org.freedesktop.portal.Request")
    answer: asyncio.Future[tuple[int, dict[str, tuple[str, Any]]]] = asyncio.get_running_loop().create_future()

    def hear(code: int, results: dict[str, tuple[str, Any]]) -> None:
        if not answer.done():
            answer.set_result((code, results))

    stop = await bus.listen(request, "Response", hear)
    try:
        await bus.call(_SHORTCUTS, method, signature, *body, options | {"handle_token": ("s", token)})
        code, results = await answer
    finally:
        stop()
    if code:
        raise NoAnswer("the user does not want it")
    return results
