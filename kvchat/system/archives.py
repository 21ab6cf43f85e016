"""Safe unpacking of untrusted archives: nothing lands outside the target folder."""

from __future__ import annotations

import stat
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from gzip import BadGzipFile
from pathlib import Path
from typing import IO

from kvchat.text.language import _

MOST_UNPACKED = 20_000_000_000  # bytes; more than any engine
MOST_FILES = 100_000
_CHUNK = 1024 * 1024


class UnsafeArchive(ValueError):
    """Not an archive, or it has a member that does not belong; says which."""


@dataclass(frozen=True)
class _Member:
    name: str
    size: int = 0
    runs: bool = False  # owner-executable
    open: Callable[[], IO[bytes]] | None = None
    link: str = ""  # symlink target as stored


def unpack(archive: Path, into: Path, stop: threading.Event) -> None:
    """Unpack a .zip or .tar.gz, without its single top folder; ends at `stop`. Raises UnsafeArchive."""
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=into) as name:
        beside = Path(name)
        _unpack(archive, beside, stop)
        found = list(beside.iterdir())
        if len(found) == 1 and found[0].is_dir() and not found[0].is_symlink():
            found = list(found[0].iterdir())
        for path in found if not stop.is_set() else ():
            path.replace(into / path.name)


def _unpack(archive: Path, into: Path, stop: threading.Event) -> None:
    total = files = 0
    try:
        for member in _zipped(archive) if zipfile.is_zipfile(archive) else _tarred(archive):
            if stop.is_set():
                return
            total, files = total + member.size, files + 1
            if total > MOST_UNPACKED or files > MOST_FILES:
                raise UnsafeArchive(_("it is too large when unpacked"))
            _put(member, _inside(into, member.name), stop)
    except (tarfile.TarError, zipfile.BadZipFile, BadGzipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise UnsafeArchive(_("it is damaged: {error}", error=error)) from error


def _put(member: _Member, target: Path, stop: threading.Event) -> None:
    folder = target if member.open is None and not member.link else target.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder == target:
        return
    target.unlink(missing_ok=True)  # may be a link: never write through it
    if member.link:
        target.symlink_to(member.link)
        return
    assert member.open is not None
    with member.open() as reader, target.open("xb") as writer:
        while not stop.is_set() and (chunk := reader.read(_CHUNK)):
            writer.write(chunk)
    if member.runs:
        target.chmod(0o755)


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a member. Raises UnsafeArchive if it is outside, or behind a link."""
    pieces = [piece for piece in name.split("/") if piece not in ("", ".")]
    if name.startswith("/") or any(piece == ".." or set(piece) & set('\\:*?"<>|\0') for piece in pieces):
        raise UnsafeArchive(_("it contains a file with an invalid name: {name}", name=repr(name)))
    target = folder.joinpath(*pieces)
    for parent in target.parents:
        if parent == folder:
            break
        if parent.is_symlink():
            raise UnsafeArchive(_("it contains a file behind a link: {name}", name=repr(name)))
    return target


def _tarred(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as tar:
        for entry in tar:
            if entry.isdir():
                yield _Member(entry.name)
            elif entry.issym():
                if "/" in entry.linkname or entry.linkname in ("", ".", ".."):  # libllama.so -> libllama.so.0
                    raise UnsafeArchive(_("it contains a link to another folder: {name}", name=repr(entry.name)))
                yield _Member(entry.name, link=entry.linkname)
            elif entry.isreg():

                def opened(entry: tarfile.TarInfo = entry) -> IO[bytes]:
                    reader = tar.extractfile(entry)
                    assert reader is not None  # a regular file
                    return reader

                yield _Member(entry.name, entry.size, bool(entry.mode & stat.S_IXUSR), opened)
            else:
                raise UnsafeArchive(_("it contains an entry that is not a file: {name}", name=repr(entry.name)))


def _zipped(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as zipped:
        for entry in zipped.infolist():
            mode = entry.external_attr >> 16
            if stat.S_ISLNK(mode):
                raise UnsafeArchive(_("it contains a link: {filename}", filename=repr(entry.filename)))
            if entry.is_dir():
                yield _Member(entry.filename)
            else:
                opened = partial(zipped.open, entry)
                yield _Member(entry.filename, entry.file_size, bool(mode & stat.S_IXUSR), opened)
