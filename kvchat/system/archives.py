"""Safe unpacking of untrusted archives: nothing lands outside the target folder."""

import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from gzip import BadGzipFile
from pathlib import Path

from kvchat.text.language import _

MAX_UNPACKED_BYTES = 20_000_000_000  # more than any engine
MAX_FILES = 100_000
_ARCHIVE_ERRORS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    BadGzipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    ValueError,
)


class UnsafeArchive(Exception):
    """The file is not an archive, or has an unsafe member, which the message names."""


def unpack(archive: Path, target: Path, stop: threading.Event) -> None:
    """Unpack a .zip or .tar.gz without its single top folder. Ends early if `stop` is set. Raises UnsafeArchive."""
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target) as name:
        work, total = Path(name), 0
        try:
            for count, size in enumerate(_extract(archive, work), 1):
                if stop.is_set():
                    return
                total += size
                if total > MAX_UNPACKED_BYTES or count > MAX_FILES:
                    raise UnsafeArchive(_("it is too large when unpacked"))
        except tarfile.FilterError as error:
            member = repr(error.tarinfo.name)
            raise UnsafeArchive(_("it contains a file with an invalid name: {name}", name=member)) from error
        except _ARCHIVE_ERRORS as error:
            raise UnsafeArchive(_("it is damaged: {error}", error=error)) from error
        paths = list(work.iterdir())
        if len(paths) == 1 and paths[0].is_dir() and not paths[0].is_symlink():
            paths = list(paths[0].iterdir())
        for path in paths if not stop.is_set() else ():
            path.replace(target / path.name)


def _extract(archive: Path, folder: Path) -> Iterator[int]:
    """Yield the size of each member in bytes, and extract the member when the next one is requested."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                yield entry.file_size
                zipped.extract(entry, folder)  # inside the folder whatever the name; a link becomes a file
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.issym() and "/" in member.linkname:  # links to libraries have none
                    raise UnsafeArchive(_("it contains a link to another folder: {name}", name=repr(member.name)))
                yield member.size
                tar.extract(member, folder, filter="data")
