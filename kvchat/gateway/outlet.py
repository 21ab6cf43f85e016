"""What goes out to a client, whether or not it takes it as fast as the engine gives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Receive, Send

TAKEN_S = 60.0  # a client that takes nothing for so long has left
MOST_WAITING = 64_000_000  # bytes that may wait for a client


class TooSlow(ConnectionError):
    """The client takes nothing."""


class Outlet:
    """An answer on its way: its head, then its bytes. Whoever makes it waits for nobody."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._waiting = 0
        self.begun = False  # its head is out: no other can be sent
        self.ended = False
        self.sent: Callable[[], None] = lambda: None  # told when the first byte has gone out

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The answer's head."""
        self.begun = True
        encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        self._arrived.put_nowait({"type": "http.response.start", "status": status, "headers": encoded})

    def write(self, data: bytes) -> None:
        """Some of its body. Raises TooSlow."""
        self._waiting += len(data)
        if self._waiting > MOST_WAITING:
            raise TooSlow
        self._arrived.put_nowait({"type": "http.response.body", "body": data, "more_body": True})

    def end(self) -> None:
        """That was all of it."""
        if not self.ended:
            self.ended = True
            if self.begun:
                self._arrived.put_nowait({"type": "http.response.body", "body": b""})
            self._arrived.put_nowait(None)

    def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """An answer in one piece."""
        self.begin(status, dict(headers) | {"content-length": str(len(body))})
        self.write(body)
        self.end()

    def refuse(self, status: int, error: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        """An answer that is none; after the head is out it can only break off."""
        if not self.begun:
            body = json.dumps(error, ensure_ascii=False).encode()
            self.whole(status, {"content-type": "application/json"} | dict(headers or {}), body)
        self.end()

    async def deliver(self, receive: Receive, send: Send) -> None:
        """Send all of it, as long as the client is there."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        first = True
        while (message := await self._arrived.get()) is not None:
            try:
                async with asyncio.timeout(TAKEN_S):
                    await send(message)
            except (OSError, TimeoutError):  # it has left
                return
            self._waiting -= len(message.get("body", b""))
            if first and message.get("body"):
                first = False
                self.sent()


async def _left(receive: Receive) -> None:
    """Once the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
