"""A chat with its memory in one file, optionally encrypted with a passphrase.

The file is a plain tar: the chat as in any export, the manifest of its save points, then each block they need, once.
Files are untrusted: sizes are checked before contents are read, and no name in a file is used for writing.

Files are encrypted with age, whose authenticated chunks can be streamed, and a key made for each file. The passphrase
encrypts that key by hashlib's scrypt (about 1 second and 256 MB of memory), as age's own scrypt blocks Python's other
threads.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import tarfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO

import pyrage
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from kvchat.chat.record.database import Database
from kvchat.chat.turn.imported_memory import ImportTestResult
from kvchat.errors import KvchatError
from kvchat.kvstore import exchange
from kvchat.kvstore.exchange import BadMemory, BlockStream, Manifest, manifest_from_json, manifest_to_json
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.kvstore.store import BlockStore
from kvchat.system.concurrency import OnProgress
from kvchat.system.files import open_regular_file
from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _, format_number, join_sentences, plural
from kvchat.text.safe_text import safe_prose
from kvchat.transfer.exporting import ExportForm, export_target, write_export
from kvchat.transfer.untrusted_files import MAX_CHAT, read_conversations

_CHATS, _MEMORY, _BLOCKS = "chats.json", "memory.json", "blocks/"
CHUNK_BYTES = 1 << 20  # bytes
NOT_VERIFIED = N_("kvchat cannot verify this memory, so only this chat uses it.")
_INCOMPLETE = N_("it is incomplete or damaged")
MAGIC = b"kvchat sealed "
_VERSION = b"1\n"
_SCRYPT_N, _SCRYPT_R = 1 << 18, 8  # as in age
_SALT_BYTES, _NONCE, _ENCRYPTED_KEY_BYTES = 16, bytes(12), 90  # each salt's key seals only one message


class PassphraseNeeded(KvchatError):
    def __init__(self, title: str = "") -> None:
        super().__init__(
            title or _("This file requires a passphrase"),
            _("Nothing was imported."),
            _("Enter the passphrase used for the export."),
        )


def encrypt(pieces: Iterable[bytes], out: IO[bytes], passphrase: str) -> None:
    key = pyrage.x25519.Identity.generate()
    salt = secrets.token_bytes(_SALT_BYTES)
    out.write(MAGIC + _VERSION + salt + _cipher(passphrase, salt).encrypt(_NONCE, str(key).encode(), None))
    source = _PieceReader(pieces)
    try:
        pyrage.encrypt_io(source, out, [key.to_public()])
    except (pyrage.EncryptError, OSError) as error:
        if source.error is not None:  # pyrage wraps this error
            raise source.error from None
        raise error if isinstance(error, OSError) else OSError(str(error)) from error


@contextmanager
def decrypted(file: IO[bytes], passphrase: str) -> Iterator[IO[bytes]]:
    """Yield the decrypted content of a file positioned after MAGIC.

    If the file is damaged, the content ends early, without an error.
    """
    version, salt, encrypted = file.read(len(_VERSION)), file.read(_SALT_BYTES), file.read(_ENCRYPTED_KEY_BYTES)
    try:
        if version != _VERSION:
            raise ValueError
        key = pyrage.x25519.Identity.from_str(_cipher(passphrase, salt).decrypt(_NONCE, encrypted, None).decode())
    except (InvalidTag, pyrage.IdentityError, ValueError) as error:
        raise PassphraseNeeded(_("Wrong passphrase")) from error  # or its first bytes are damaged
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
        thread.join()  # stops at a closed pipe


def _cipher(passphrase: str, salt: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(
        hashlib.scrypt(passphrase.encode(), salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=1, maxmem=1 << 30, dklen=32)
    )


class _PieceReader:
    """File object for pyrage that reads from an iterable of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._remainder = iter(pieces), memoryview(b"")
        self.error: Exception | None = None  # from the source

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        try:
            while not self._remainder and (piece := next(self._pieces, None)) is not None:
                self._remainder = memoryview(piece)
        except Exception as error:
            self.error = error
            raise
        taken, self._remainder = self._remainder[:size], self._remainder[size:]
        return bytes(taken)


@dataclass(frozen=True)
class ImportedMemory:
    conversation_id: str
    fingerprint: Fingerprint
    model: str  # name of its file where saved; empty if unknown
    n_tokens: int
    bytes: int


def describe_import(memory: ImportedMemory, test: ImportTestResult) -> str:
    sizes = {
        "tokens": plural(memory.n_tokens, "{count} token", "{count} tokens"),
        "size": format_size(memory.bytes),
    }
    imported = _("Its memory was imported: {tokens}, {size}.", **sizes)
    if model := safe_prose(memory.model):
        imported = _("Its memory was imported: {tokens}, {size}, created with {model}.", **sizes, model=model)
    imported = join_sentences(imported, _(NOT_VERIFIED))
    if test.is_pending:
        reason = _("It could not be tested yet: {reason}.", reason=test.reason.text) if test.reason else ""
        return join_sentences(imported, reason or _("kvchat tests it with the next message in this chat."))
    if test.reason:
        return _("{result} This computer must reprocess the chat: {reason}.", result=imported, reason=test.reason.text)
    works = N_("{result} A test on this computer succeeded: {tokens} of {total} tokens need no reprocessing.")
    return _(works, result=imported, tokens=format_number(test.tokens), total=format_number(test.total))


class NoSavedMemory(KvchatError):
    def __init__(self) -> None:
        advice = _("Export the chat without its memory, or get a new reply and try again.")
        super().__init__(_("This chat has no saved memory to export"), "", advice)


def memory_to_export(store: Path, conversation_id: str) -> Manifest:
    """Return the manifest of a chat's save points in `store`. Raises NoSavedMemory and StoreRefused."""
    manifest = exchange.stored_manifest(store, conversation_id)
    if manifest is None:
        raise NoSavedMemory
    return manifest


def export_with_memory(
    database: Database,
    store: Path,
    conversation_id: str,
    target: Path,
    passphrase: str = "",
    progress: OnProgress = lambda done, total: None,
) -> int:
    """Write a chat with its memory to a private file; return its size. A failure leaves no file.

    `store`: the store's folder, which another process may own. `progress` gets bytes.
    """
    manifest = memory_to_export(store, conversation_id)

    def pieces() -> Iterator[bytes]:
        done = 0
        for piece in _file_pieces(database, store, conversation_id, manifest):
            yield piece
            done += len(piece)
            progress(min(done, manifest.bytes), manifest.bytes)

    with export_target(target, private=True) as new, new.open("wb") as out:
        if passphrase:
            encrypt(pieces(), out, passphrase)
        else:
            out.writelines(pieces())
        return out.tell()


def _file_pieces(database: Database, store: Path, conversation_id: str, manifest: Manifest) -> Iterator[bytes]:
    chats = io.BytesIO()
    write_export(database, [conversation_id], ExportForm.JSON, chats)
    yield from _tar_member(_CHATS, len(chats.getvalue()), [chats.getvalue()])
    conversation = database.conversation(conversation_id)
    model = PurePath(conversation.model).name if conversation and conversation.model else ""
    description = json.dumps(manifest_to_json(manifest) | {"model": model}, separators=(",", ":")).encode()
    yield from _tar_member(_MEMORY, len(description), [description])
    for name, content in exchange.read_blocks(store, manifest):
        yield from _tar_member(_BLOCKS + name.hex(), manifest.block_sizes[name], content)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _tar_member(name: str, size: int, content: Iterable[bytes]) -> Iterator[bytes]:
    head = tarfile.TarInfo(name)
    head.size, head.mode = size, 0o600
    yield head.tobuf(tarfile.USTAR_FORMAT)
    yield from content
    yield bytes(-size % tarfile.BLOCKSIZE)


def is_memory_file(path: Path) -> bool:
    """Return True if the file's first bytes are those of a chat with memory. Raises OSError."""
    with open_regular_file(path) as file:
        begin = file.read(tarfile.BLOCKSIZE)
    return begin.startswith(MAGIC) or (begin.startswith(_CHATS.encode() + b"\0") and begin[257:262] == b"ustar")


def has_memory(path: Path) -> bool:
    with suppress(OSError):
        return is_memory_file(path)
    return False


@contextmanager
def open_memory_file(path: Path, passphrase: str = "") -> Iterator[MemoryFile]:
    """Open a file written by `export_with_memory`. Raises PassphraseNeeded and OSError."""
    with io.BufferedReader(open_regular_file(path), CHUNK_BYTES) as file:  # type: ignore[type-var]
        if not file.peek(len(MAGIC)).startswith(MAGIC):
            yield MemoryFile(file)
            return
        if not passphrase:
            raise PassphraseNeeded
        file.read(len(MAGIC))
        with decrypted(file, passphrase) as plain:
            yield MemoryFile(plain)


class MemoryFile:
    def __init__(self, stream: IO[bytes]) -> None:
        self._members = _read_members(stream)

    def chats(self) -> IO[bytes]:
        return io.BytesIO(self._read_member(_CHATS))

    def import_into(
        self, store: BlockStore, conversation_id: str, progress: OnProgress = lambda done, total: None
    ) -> ImportedMemory:
        """Import the memory completely or not at all. Raises BadMemory, StoreRefused and what `progress` raises."""
        try:
            description = next(read_conversations(io.BytesIO(self._read_member(_MEMORY)))).value
            manifest = manifest_from_json(description)
        except BadMemory:
            raise
        except (ValueError, RecursionError, StopIteration) as error:
            raise BadMemory(_("its manifest is invalid")) from error
        exchange.import_memory(store.inventory, conversation_id, manifest, self._blocks(manifest, progress))
        model = description.get("model")
        name = model if isinstance(model, str) else ""
        return ImportedMemory(conversation_id, manifest.fingerprint, name, manifest.n_tokens, manifest.bytes)

    def _read_member(self, expected: str) -> bytes:
        name, size, content = next(self._members, ("", 0, iter(())))
        if name != expected or size > MAX_CHAT:
            raise BadMemory(_(_INCOMPLETE))
        return b"".join(content)

    def _blocks(self, manifest: Manifest, progress: OnProgress) -> BlockStream:
        done = 0
        for name, size, content in self._members:
            try:
                block = bytes.fromhex(name.removeprefix(_BLOCKS))
            except ValueError as error:
                raise BadMemory(_(_INCOMPLETE)) from error
            if manifest.block_sizes.get(block) != size:
                raise BadMemory(_("it contains an unused block"))
            yield block, content
            done += size
            progress(done, manifest.bytes)


def _read_members(stream: IO[bytes]) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Yield each tar member's name, size and content. Raises BadMemory if incomplete or damaged."""
    while (head := _read_exactly(stream, tarfile.BLOCKSIZE)) != bytes(tarfile.BLOCKSIZE):
        try:
            member = tarfile.TarInfo.frombuf(head, "ascii", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise BadMemory(_(_INCOMPLETE)) from error
        if not member.isreg() or member.size < 0:
            raise BadMemory(_(_INCOMPLETE))
        content = _read_content(stream, member.size)
        yield member.name, member.size, content
        for _unread in content:
            pass


def _read_content(stream: IO[bytes], size: int) -> Iterator[bytes]:
    left = size
    while left:
        piece = _read_exactly(stream, min(left, CHUNK_BYTES))
        left -= len(piece)
        yield piece
    _read_exactly(stream, -size % tarfile.BLOCKSIZE)


def _read_exactly(stream: IO[bytes], count: int) -> bytes:
    piece = stream.read(count)
    if len(piece) < count:
        raise BadMemory(_(_INCOMPLETE))
    return piece
