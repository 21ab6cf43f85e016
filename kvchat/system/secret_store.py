"""Storage for a secret in the system's keyring or, without one, in a private file. Never in a log or repr."""

import contextlib
from enum import Enum
from pathlib import Path

from kvchat.system.files import atomic_write, read_regular_file
from kvchat.text.language import N_

_SERVICE = "kvchat"


class SecretLocation(Enum):
    """Place of a secret; the value completes "kept in …"."""

    KEYRING = N_("the system keyring")
    FILE = N_("a file that only you can read, because no keyring is available")


class SecretStore:
    """Storage for a secret. Call it off the event loop: a keyring may ask the user to unlock it."""

    def __init__(self, account: str, file: Path) -> None:
        """`account`: its name in the keyring; `file`: the fallback."""
        self._account, self._file = account, file

    def load(self) -> tuple[str, SecretLocation] | None:
        if value := self._read_keyring():
            return value, SecretLocation.KEYRING
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if value := read_regular_file(self._file, 100_000).decode().strip():
                return value, SecretLocation.FILE
        return None

    def save(self, value: str) -> SecretLocation:
        """Store a secret and return its location. Readers see the old or the new value. Raises OSError."""
        with contextlib.suppress(Exception):
            import keyring

            keyring.set_password(_SERVICE, self._account, value)
            if self._read_keyring() == value:  # the null backend accepts all and stores nothing
                self._file.unlink(missing_ok=True)
                return SecretLocation.KEYRING
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(self._file, private=True) as temporary:
            temporary.write_text(value, encoding="utf-8")
        self._forget_in_keyring()
        return SecretLocation.FILE

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)
        self._forget_in_keyring()

    def _forget_in_keyring(self) -> None:
        with contextlib.suppress(Exception):  # no entry or no keyring
            import keyring

            keyring.delete_password(_SERVICE, self._account)

    def _read_keyring(self) -> str | None:
        """Return the keyring's entry, or None. Backends are plugins and may fail in any way."""
        try:
            import keyring

            return keyring.get_password(_SERVICE, self._account) or None
        except Exception:
            return None
