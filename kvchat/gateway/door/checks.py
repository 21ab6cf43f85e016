"""Who may come in: by which name, from which web page, with whose key, and with how much."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from starlette.datastructures import Headers
from starlette.types import Receive

from kvchat.gateway.dialects.asked import Refused
from kvchat.gateway.door.keys import EVERYBODY, NAMELESS, Keys, program_by

MOST_BODY = 64_000_000  # bytes of a request; pictures come along in it
BODY_S = 60.0  # that it may take to come, once its head is here
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:/?#@\s]*)(?::\d{0,5})?")


@dataclass(frozen=True)
class Checks:
    """What the user allows."""

    host: str  # the address that is listened on
    keys: Keys
    origins: frozenset[str] = frozenset()  # web pages that may speak to the door; * for all

    @cached_property
    def _names(self) -> frozenset[str]:
        """What this computer is called: a page of any other name was led here by that name's owner (DNS rebinding)."""
        own = socket.gethostname().lower()
        return frozenset(("localhost", own, f"{own.partition('.')[0]}.local", self.host.lower()))

    def check_way(self, headers: Headers) -> None:
        """Whether it comes by a name of this computer's, and from no web page that is not allowed. Raises Refused."""
        if not self._is_ours(headers.get("host", "")):
            raise Refused(403, "This name is not this computer's.", "permission_error")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None and site == "cross-site":
            origin = "a web page"
        if origin is not None and not self.origins & {origin, "*"} and site not in ("none", "same-origin"):
            raise Refused(403, "Web pages may not use this. Its origin is not among those allowed.", "permission_error")

    def program(self, headers: Headers) -> str:
        """Which program it is, by its key or else by what it says of itself. Raises Refused without a good key.

        The name of a program that has a key of its own is nobody's who does not show that.
        """
        named = program_by(headers.get("user-agent", ""))
        if not self.keys:
            return named
        program = EVERYBODY if self.is_owner(headers) else self.keys.program_of(_shown(headers))
        if program is None:
            raise Refused(401, "The key is missing or not the right one.", "authentication_error")
        if program == EVERYBODY:
            return NAMELESS if named in self.keys else named
        return program

    def is_owner(self, headers: Headers) -> bool:
        """True if the key is the owner's, who may see what all programs ask."""
        return self.keys.is_owner(_shown(headers))

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header names this computer. An address is no name that could be made to lead elsewhere."""
        match = _HOST.fullmatch(host)
        name = match["name"] if match else ""
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.lower().rstrip(".") in self._names
        return True


def _shown(headers: Headers) -> str:
    """The key that came with a request."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def is_loopback(host: str) -> bool:
    """Whether nobody but this computer can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def body_of(headers: Headers, receive: Receive, hold: Callable[[int], None]) -> bytes:
    """The whole body; `hold` is told the bytes that have come, and may raise Refused.

    Raises Refused where it is too large or too slow, ConnectionError where the client left.
    """
    too_large = Refused(413, f"A request may have at most {MOST_BODY:,} bytes.", "request_too_large")
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MOST_BODY:
        raise too_large
    parts = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError
                part = message.get("body", b"")
                if len(parts) + len(part) > MOST_BODY:
                    raise too_large
                hold(len(part))
                parts += part
                if not message.get("more_body"):
                    return bytes(parts)
    except TimeoutError as error:
        raise Refused(408, f"The request did not come within {BODY_S:.0f} seconds.", "timeout_error") from error


def origins_in(words: str) -> frozenset[str]:
    """The origins in a setting, parted by commas or spaces."""
    return frozenset(one.rstrip("/") for one in words.replace(",", " ").split())
