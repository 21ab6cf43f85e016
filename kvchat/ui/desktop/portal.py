"""Requests to the desktop's portal, which asks the user for what no window may take by itself.

https://flatpak.github.io/xdg-desktop-portal/docs/doc-org.freedesktop.portal.Request.html
"""

from __future__ import annotations

import asyncio
from typing import Any

from kvchat.system.session_bus import NoAnswer, Service, SessionBus

NAME, _PATH = "org.freedesktop.portal.Desktop", "/org/freedesktop/portal/desktop"
_CANCELLED = 1

Results = dict[str, tuple[str, Any]]  # name: D-Bus signature and value


class Declined(NoAnswer):
    """The user declined."""


def portal(interface: str) -> Service:
    return Service(NAME, _PATH, f"org.freedesktop.portal.{interface}")


async def request(
    bus: SessionBus, interface: str, method: str, signature: str, body: tuple[Any, ...], options: Results
) -> Results:
    """Return the portal's response, which may wait for the user. Raises NoAnswer and Declined."""
    token = f"kvchat_{method}"
    sender = (await bus.unique_name()).lstrip(":").replace(".", "_")
    response = Service(NAME, f"{_PATH}/request/{sender}/{token}", "org.freedesktop.portal.Request")
    answer: asyncio.Future[tuple[int, Results]] = asyncio.get_running_loop().create_future()

    def hear(code: int, results: Results) -> None:
        if not answer.done():
            answer.set_result((code, results))

    stop = await bus.listen(response, "Response", hear)
    try:
        await bus.call(portal(interface), method, signature, *body, options | {"handle_token": ("s", token)})
        code, results = await answer
    finally:
        stop()
    if code:
        raise Declined if code == _CANCELLED else NoAnswer(f"{method}: {code}")
    return results
