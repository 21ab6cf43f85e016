"""Pairing of two computers by a six-digit code (SPAKE2, bound to the TLS certificate that the device received), or of
a browser by a link with a secret token.

An attacker who relays the connection presents another certificate to the device. The proofs then differ, so neither
side accepts the other. The recorded messages do not help to find the code by trying all codes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvchat.errors import KvchatError
from kvchat.text.language import _

MAX_WRONG_CODES, LOCK_S = 10, 60.0  # then nobody can pair for this long
CODE_LIFETIME_S = 600.0
PAIR_PATH = "/pair"  # of the page that pairs a browser
_MAX_SESSIONS = 8  # attempts in progress
_IDS = {"idA": b"device", "idB": b"kvchat"}


class WrongCode(KvchatError):
    def __init__(self) -> None:
        super().__init__(
            _("The code is wrong or has expired"),
            "",
            _("Show a new code on the other computer, and enter it within ten minutes."),
        )


class PairingLocked(KvchatError):
    def __init__(self) -> None:
        super().__init__(
            _("Too many wrong codes"),
            _("Pairing is locked for a minute."),
            _("Try again in a minute, with a new code."),
        )


def prove(key: bytes, side: str, certificate: str, name: str) -> str:
    """Return the proof that `side` knows the shared key, sees this certificate (fingerprint) and sent this name."""
    return hmac.new(key, "\n".join((side, certificate, name)).encode(), hashlib.sha256).hexdigest()


@dataclass
class CodeHolder:
    """The side that shows the code. `clock` returns seconds."""

    certificate: str  # fingerprint of its certificate
    clock: Callable[[], float] = time.monotonic
    code: str = ""  # empty if nobody may pair
    token: str = ""  # of the link for a browser; 128 bits
    _expires_at: float = 0.0
    _wrong_codes: int = 0
    _locked_until: float = float("-inf")
    _sessions: dict[str, bytes] = field(default_factory=dict)  # shared keys by session

    @property
    def seconds_left(self) -> float:
        """Seconds until the code expires; 0 without a code."""
        return max(0.0, self._expires_at - self.clock()) if self.code else 0.0

    def show_code(self) -> str:
        """Return a new code, which replaces the old one. Raises PairingLocked."""
        self._check_lock()
        self.code, self._expires_at = f"{secrets.randbelow(1_000_000):06d}", self.clock() + CODE_LIFETIME_S
        self.token = secrets.token_urlsafe(16)
        self._sessions.clear()
        return self.code

    @property
    def link_path(self) -> str:
        return f"{PAIR_PATH}#{self.token}"

    def hide_code(self) -> None:
        self.code = self.token = ""
        self._sessions.clear()

    def answer(self, message: bytes) -> tuple[str, bytes]:
        """Return a session and the answer to a device's first message. Counts as a wrong code until `accept`.

        Raises PairingLocked and WrongCode.
        """
        from spake2 import SPAKE2_B  # takes 30 ms

        self._count_attempt()
        side = SPAKE2_B(self.code.encode(), **_IDS)
        answer = side.start()
        try:
            key = side.finish(message)
        except Exception as error:  # the library has no common class for invalid messages
            raise WrongCode from error
        while len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(16)
        self._sessions[session] = key
        return session, answer

    def accept(self, session: str, name: str, proof: str) -> str:
        """Check a device's proof and return our own. The code cannot be used again. Raises WrongCode."""
        key = self._sessions.pop(session, None)
        expected = prove(key or b"", "device", self.certificate, name)
        has_expired = self.clock() >= self._expires_at
        if key is None or has_expired or not hmac.compare_digest(expected.encode(), proof.encode("utf-8", "replace")):
            raise WrongCode
        self.hide_code()
        self._wrong_codes = 0
        return prove(key, "kvchat", self.certificate, name)

    def accept_token(self, token: str) -> None:
        """Check a browser's token. Neither it nor the code can be used again. Raises PairingLocked and WrongCode."""
        self._count_attempt()
        if not hmac.compare_digest(self.token.encode(), token.encode("utf-8", "replace")):
            raise WrongCode
        self.hide_code()
        self._wrong_codes = 0

    def _count_attempt(self) -> None:
        """Count a wrong code, until it has proved to be right. Raises PairingLocked and WrongCode."""
        self._check_lock()
        if self.clock() >= self._expires_at:
            self.hide_code()
        if not self.code:
            raise WrongCode
        self._wrong_codes += 1
        if self._wrong_codes > MAX_WRONG_CODES:
            self.hide_code()
            self._wrong_codes, self._locked_until = 0, self.clock() + LOCK_S
            raise PairingLocked

    def _check_lock(self) -> None:
        if self.clock() < self._locked_until:
            raise PairingLocked


class CodeEnterer:
    """The side where the code is entered."""

    def __init__(self, code: str, name: str, certificate: str) -> None:
        """`certificate`: fingerprint of the certificate that the other side presented."""
        from spake2 import SPAKE2_A

        self._side = SPAKE2_A("".join(filter(str.isdigit, code)).encode(), **_IDS)
        self._name, self._certificate = name, certificate
        self.message: bytes = self._side.start()
        self._key = b""

    def prove(self, answer: bytes) -> str:
        """Return the proof to send for the other side's answer. Raises WrongCode."""
        try:
            self._key = self._side.finish(answer)
        except Exception as error:
            raise WrongCode from error
        return prove(self._key, "device", self._certificate, self._name)

    def check(self, proof: str) -> None:
        """Check the other side's proof. Raises WrongCode."""
        expected = prove(self._key, "kvchat", self._certificate, self._name)
        if not hmac.compare_digest(expected.encode(), proof.encode("utf-8", "replace")):
            raise WrongCode
