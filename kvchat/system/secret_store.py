"""Storage of a secret in the system's keyring or, without one, in a file that only the user can read."""

import contextlib
from enum import Enum
from pathlib import Path

from kvchat.system.files import atomic_write, read_regular_file
from kvchat.text.language import N_

_SERVICE = "kvchat"


class SecretLocation(Enum):
    """Location of a secret. On screen, the value follows the words "kept in"."""

    KEYRING = N_("the system keyring")
    FILE = N_("a file that only you can read, because no keyring is available")


class SecretStore:
    """Storage of a secret. Call it off the event loop, because a keyring may ask the user to unlock it."""

    def __init__(self, account: str, file: Path) -> None:
        """`account`: name of the secret in the keyring. `file`: used without a keyring."""
        self._account, self._file = account, file

    def load(self) -> tuple[str, SecretLocation] | None:
        if value := self._read_keyring():
            return value, SecretLocation.KEYRING
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if value := read_regular_file(self._file, 100_000).decode().strip():
                return value, SecretLocation.FILE
        return None

    def save(self, value: str) -> SecretLocation:
        """Store the secret and return its location. Raises OSError."""
        with contextlib.suppress(Exception):
            import keyring

            keyring.set_password(_SERVICE, self._account, value)
            if self._read_keyring() == value:  # keyring's null backend stores nothing and raises nothing
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
        with contextlib.suppress(Exception):  # backends are plugins and may raise anything
            import keyring

            keyring.delete_password(_SERVICE, self._account)

    def _read_keyring(self) -> str | None:
        with contextlib.suppress(Exception):
            import keyring

            return keyring.get_password(_SERVICE, self._account) or None
        return None
