"""A file that only a passphrase opens.

It is sealed by age, whose authenticated pieces can be written and read one at a time, however large the file is;
`cryptography` has authenticated encryption for what fits into memory alone: for the key that is made for this one file,
which the passphrase opens (scrypt, about a second and a quarter of a GB of memory). age's own way with passphrases
lets no other thread run Python meanwhile, and the window would stand still.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import IO

import pyrage
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from kvchat.errors import KvchatError
from kvchat.words.language import _

MAGIC = b"kvchat sealed "
_EARLIER, _VERSION = b"1\n", b"2\n"  # what follows; the earlier one's key is sealed in age's own way
_COST, _BLOCK = 1 << 18, 8  # of scrypt, as age has them
_SALT, _NONCE, _SEALED_KEY = 16, bytes(12), 90  # bytes; whatever is sealed with a salt's key is sealed once


class PassphraseNeeded(KvchatError):
    """The file cannot be opened without its passphrase."""

    def __init__(self, title: str = "") -> None:
        super().__init__(
            title or _("This file needs its passphrase"),
            _("Nothing was imported."),
            _("Give the passphrase it was exported with."),
        )


class WrongPassphrase(PassphraseNeeded):
    """Another one was given, or the first bytes of the file are damaged."""

    def __init__(self) -> None:
        super().__init__(_("The passphrase does not open this file"))


def seal(pieces: Iterable[bytes], out: IO[bytes], passphrase: str) -> None:
    """Write the pieces so that only the passphrase opens them. Raises OSError and what making them raises."""
    key = pyrage.x25519.Identity.generate()
    salt = secrets.token_bytes(_SALT)
    out.write(MAGIC + _VERSION + salt + _lock(passphrase, salt).encrypt(_NONCE, str(key).encode(), None))
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
    try:
        key = pyrage.x25519.Identity.from_str(_unlocked(file, passphrase).decode())
    except (InvalidTag, pyrage.DecryptError, pyrage.IdentityError, ValueError) as error:
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


def _unlocked(file: IO[bytes], passphrase: str) -> bytes:
    """The file's key."""
    if file.read(len(_VERSION)) == _EARLIER:
        return bytes(pyrage.passphrase.decrypt(file.read(int.from_bytes(file.read(2), "big")), passphrase))
    salt, sealed = file.read(_SALT), file.read(_SEALED_KEY)
    return _lock(passphrase, salt).decrypt(_NONCE, sealed, None)


def _lock(passphrase: str, salt: bytes) -> ChaCha20Poly1305:
    """What seals the file's key."""
    return ChaCha20Poly1305(
        hashlib.scrypt(passphrase.encode(), salt=salt, n=_COST, r=_BLOCK, p=1, maxmem=1 << 30, dklen=32)
    )


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
