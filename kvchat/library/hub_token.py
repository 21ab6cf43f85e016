"""The access token for Hugging Face: kept in the system's keyring, or in a file that only the user may read.

The token itself never goes into a log, an error or a repr.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from kvchat.errors import KvchatError

SERVICE, ACCOUNT = "kvchat", "Hugging Face access token"
FILE_NAME = "huggingface-token"


class TokenPlace(Enum):
    """Where a token was found or is kept; the value is how a sentence ends: "kept in …"."""

    KEYRING = "the system's keyring"
    FILE = "a file that only you may read, because no keyring answers here"
    ELSEWHERE = "HF_TOKEN or the Hugging Face command line tool"


class BadToken(KvchatError):
    """What was given cannot be an access token."""


@dataclass(frozen=True)
class AccessToken:
    """A token and its place."""

    value: str = field(repr=False)
    place: TokenPlace


class TokenStore:
    """Reads, keeps and forgets the token. A keyring may ask the user to unlock it: use this off the event loop."""

    def __init__(self, config: Path) -> None:
        self._file = config / FILE_NAME
        self._loaded: AccessToken | None = None
        self._looked = False

    def load(self) -> AccessToken | None:
        """The token kvchat keeps, or else the one the user has given to Hugging Face's own tools. Remembered."""
        if not self._looked:
            self._loaded, self._looked = self._look(), True
        return self._loaded

    def value(self) -> str | None:
        """The token alone, for a request."""
        found = self.load()
        return found.value if found else None

    def _look(self) -> AccessToken | None:
        kept = _from_keyring()
        if kept:
            return AccessToken(kept, TokenPlace.KEYRING)
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if kept := self._file.read_text("ascii").strip():
                return AccessToken(kept, TokenPlace.FILE)
        from huggingface_hub import get_token

        found = get_token()
        return AccessToken(found, TokenPlace.ELSEWHERE) if found else None

    def save(self, value: str) -> TokenPlace:
        """Keep a token; returns where. Raises BadToken, and OSError where not even the file can be written."""
        value = value.strip()
        if not value.isascii() or not value.isprintable() or " " in value or len(value) < 8:
            raise BadToken("This is no access token", "A token is one word, such as hf_…", "Copy it once more.")
        self.forget()
        if _to_keyring(value):
            return TokenPlace.KEYRING
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(value)
        return TokenPlace.FILE

    def forget(self) -> None:
        """Forget the token kvchat keeps, wherever it is."""
        self._looked = False
        self._file.unlink(missing_ok=True)
        with contextlib.suppress(Exception):  # not there, or no keyring
            import keyring

            keyring.delete_password(SERVICE, ACCOUNT)


def _from_keyring() -> str | None:
    """The keyring's entry; None where there is none. Backends are plugins and may fail in their own ways."""
    try:
        import keyring

        return keyring.get_password(SERVICE, ACCOUNT) or None
    except Exception:
        return None


def _to_keyring(value: str) -> bool:
    """Whether the keyring has taken it: read back, for the null backend takes everything and keeps nothing."""
    try:
        import keyring

        keyring.set_password(SERVICE, ACCOUNT, value)
    except Exception:
        return False
    return _from_keyring() == value
