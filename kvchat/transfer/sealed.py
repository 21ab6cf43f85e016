"""A file that only a passphrase opens.

It is sealed by age, whose authenticated pieces can be written and read one at a time, however large the file is;
`cryptography` has authenticated encryption for what fits into memory alone. The passphrase (scrypt, which takes about a
second and half a GB of memory) opens a key that is made for this one file.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import IO

import pyrage

from kvchat.errors import KvchatError

MAGIC = b"kvchat sealed 1\n"
_LENGTH = 2  # bytes that say how long the sealed key is


class PassphraseNeeded(KvchatError):
    """The file cannot be opened without its passphrase."""

    def __init__(self, title: str = "This file needs its passphrase") -> None:
        super().__init__(title, "Nothing was imported.", "Give the passphrase it was exported with.")


class WrongPassphrase(PassphraseNeeded):
    """Another one was given, or the first bytes of the file are damaged."""

    def __init__(self) -> None:
        super().__init__("The passphrase does not open this file")


def seal(pieces: Iterable[bytes], out: IO[bytes], passphrase: str) -> None:
    """Write the pieces so that only the passphrase opens them. Raises OSError and what making them raises."""
    key = pyrage.x25519.Identity.generate()
    sealed = pyrage.passphrase.encrypt(str(key).encode(), passphrase)
    out.write(MAGIC + len(sealed).to_bytes(_LENGTH, "big") + sealed)
    joined = _Joined(iter(pieces))
    try:
        with io.BufferedReader(joined, 1 << 20) as source:  # type: ignore[type-var]
            pyrage.encrypt_io(source, out, [key.to_public()])
    except (pyrage.EncryptError, OSError) as error:
        if joined.fault is not None:  # which pyrage has made its own of
            raise joined.fault from None
        raise error if isinstance(error, OSError) else OSError(str(error)) from error


@contextmanager
def opened(file: IO[bytes], passphrase: str) -> Iterator[IO[bytes]]:
    """What was sealed in a file that stands behind MAGIC, to be read from beginning to end.

    It ends early where the file is cut off or is not what was written: whoever reads it must know where its end is.
    Raises WrongPassphrase.
    """
    sealed = file.read(int.from_bytes(file.read(_LENGTH), "big"))
    try:
        key = pyrage.x25519.Identity.from_str(pyrage.passphrase.decrypt(sealed, passphrase).decode())
    except (pyrage.DecryptError, pyrage.IdentityError, ValueError) as error:
        raise WrongPassphrase from error
    reading, writing = os.pipe()

    def decrypt() -> None:
        with suppress(pyrage.DecryptError, OSError), closing(os.fdopen(writing, "wb", 1 << 16)) as pipe:
            pyrage.decrypt_io(file, pipe, [key])

    thread = threading.Thread(target=decrypt, name="opening", daemon=True)
    thread.start()
    try:
        with os.fdopen(reading, "rb", 1 << 16) as plain:
            yield plain
    finally:
        thread.join()  # it meets a closed pipe


class _Joined(io.RawIOBase):
    """Pieces as one file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, memoryview(b"")
        self.fault: Exception | None = None  # that making them ended in

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]  # any writable buffer
        while not self._left:
            try:
                piece = next(self._pieces, None)
            except Exception as error:
                self.fault = error
                raise
            if piece is None:
                return 0
            self._left = memoryview(piece)
        taken = min(len(buffer), len(self._left))
        buffer[:taken] = self._left[:taken]
        self._left = self._left[taken:]
        return taken
