"""Safe unpacking of untrusted archives: nothing lands outside the target folder."""

import contextlib
import stat
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from gzip import BadGzipFile
from pathlib import Path
from typing import IO

from kvchat.system.files import replace_file
from kvchat.text.language import _

MAX_UNPACKED_BYTES = 20_000_000_000  # more than any engine
MAX_FILES = 100_000
_CHUNK = 1024 * 1024


class UnsafeArchive(ValueError):
    """The file is not an archive, or has an unsafe member, which the message names."""


@dataclass(frozen=True)
class _Member:
    name: str
    size: int = 0
    is_executable: bool = False
    open: Callable[[], IO[bytes] | None] | None = None
    link: str = ""  # symlink target as stored


def unpack(archive: Path, target: Path, stop: threading.Event, *, max_bytes: int = 0) -> None:
    """Unpack a .zip or .tar.gz, without its single top folder. `stop` aborts. Raises UnsafeArchive."""
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target) as name:
        work = Path(name)
        total = 0
        members = _read_zip(archive) if zipfile.is_zipfile(archive) else _read_tar(archive)
        try:
            with contextlib.closing(members):  # Windows deletes no open archive
                for count, member in enumerate(members, 1):
                    if stop.is_set():
                        return
                    total += member.size
                    if total > (max_bytes or MAX_UNPACKED_BYTES) or count > MAX_FILES:
                        raise UnsafeArchive(_("it is too large when unpacked"))
                    _write(member, _path_inside(work, member.name), stop)
        except (tarfile.TarError, zipfile.BadZipFile, BadGzipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise UnsafeArchive(_("it is damaged: {error}", error=error)) from error
        paths = list(work.iterdir())
        if len(paths) == 1 and paths[0].is_dir() and not paths[0].is_symlink():
            paths = list(paths[0].iterdir())
        for path in paths if not stop.is_set() else ():
            replace_file(path, target / path.name)


def _write(member: _Member, target: Path, stop: threading.Event) -> None:
    if member.open is None and not member.link:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    target.unlink(missing_ok=True)  # may be a link: never write through it
    if member.open is None:
        target.symlink_to(member.link)
        return
    reader = member.open()
    assert reader is not None  # a regular file
    with reader, target.open("xb") as writer:
        while not stop.is_set() and (chunk := reader.read(_CHUNK)):
            writer.write(chunk)
    if member.is_executable:
        target.chmod(0o755)


def _path_inside(folder: Path, name: str) -> Path:
    """Return the path of a member. Raises UnsafeArchive if it is outside, or behind a link."""
    pieces = [piece for piece in name.split("/") if piece not in ("", ".")]
    if name.startswith("/") or any(piece == ".." or set(piece) & set('\\:*?"<>|\0') for piece in pieces):
        raise UnsafeArchive(_("it contains a file with an invalid name: {name}", name=repr(name)))
    target = folder.joinpath(*pieces)
    for parent in target.parents:
        if parent == folder:
            break
        if parent.is_symlink():
            raise UnsafeArchive(_("it contains a file in a linked folder: {name}", name=repr(name)))
    return target


def _read_tar(archive: Path) -> Generator[_Member, None, None]:
    with tarfile.open(archive) as tar:
        for entry in tar:
            if entry.isdir():
                yield _Member(entry.name)
            elif entry.issym():
                if "/" in entry.linkname or entry.linkname in ("", ".", ".."):  # libllama.so -> libllama.so.0
                    raise UnsafeArchive(_("it contains a link to another folder: {name}", name=repr(entry.name)))
                yield _Member(entry.name, link=entry.linkname)
            elif entry.isreg():
                is_executable = bool(entry.mode & stat.S_IXUSR)
                yield _Member(entry.name, entry.size, is_executable, partial(tar.extractfile, entry))
            else:
                raise UnsafeArchive(_("it contains an entry that is not a file: {name}", name=repr(entry.name)))


def _read_zip(archive: Path) -> Generator[_Member, None, None]:
    with zipfile.ZipFile(archive) as zipped:
        for entry in zipped.infolist():
            mode = entry.external_attr >> 16
            if stat.S_ISLNK(mode):
                raise UnsafeArchive(_("it contains a link: {filename}", filename=repr(entry.filename)))
            if entry.is_dir():
                yield _Member(entry.filename)
            else:
                is_executable = bool(mode & stat.S_IXUSR)
                yield _Member(entry.filename, entry.file_size, is_executable, partial(zipped.open, entry))
