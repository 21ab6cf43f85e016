"""Reading of regular files from untrusted paths, with size and time limits, and atomic writes.

Each access has a time limit, because a pipe or a disconnected network folder may never respond.
"""

import contextlib
import errno
import io
import json
import os
import re
import stat
import threading
import time
import uuid
from collections.abc import AsyncIterable, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from kvchat.text.formatting import format_size
from kvchat.text.language import _

ACCESS_TIMEOUT_S = 10.0  # long enough for a sleeping disk
SHARING_TIMEOUT_S = 3.0  # a virus scanner reads a new file for about a second
# ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, ERROR_LOCK_VIOLATION, and None if `os.open` failed on Windows
_SHARING_ERRORS = (5, 32, 33, None)
_READ_BYTES = 1024 * 1024
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # some files in /proc block

R = TypeVar("R")


class NotAFile(OSError):
    def __init__(self, path: Path, mode: int) -> None:
        kinds = {stat.S_IFDIR: _("a folder"), stat.S_IFIFO: _("a pipe"), stat.S_IFSOCK: _("a socket")}
        self.kind = kinds.get(stat.S_IFMT(mode), _("a device"))
        super().__init__(errno.EINVAL, _("It is {kind}, not a file", kind=self.kind), str(path))


def file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


_ONLINE_ONLY_ATTRIBUTES = 0x441000  # winnt.h: FILE_ATTRIBUTE_OFFLINE, _RECALL_ON_OPEN and _RECALL_ON_DATA_ACCESS
_ONLINE_ONLY_FLAG = 0x40000000  # macOS' sys/stat.h: SF_DATALESS


def is_online_only(status: os.stat_result) -> bool:
    """Return True if reading the file would download it, for example from OneDrive or iCloud."""
    attributes, flags = getattr(status, "st_file_attributes", 0), getattr(status, "st_flags", 0)
    return bool(attributes & _ONLINE_ONLY_ATTRIBUTES or flags & _ONLINE_ONLY_FLAG)


def file_stamp(path: Path) -> tuple[int, int, int]:
    """Return a file's size in bytes, modification time in ns and inode number; zeros if it is not accessible."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_size, status.st_mtime_ns, status.st_ino)


class TooLarge(OSError):
    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(errno.EFBIG, _("It is larger than {most}", most=format_size(limit)), str(path))


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, including NotAFile and TimeoutError."""

    def opened() -> io.RawIOBase:
        check_is_regular_file(path, path.stat().st_mode)  # before opening it, which has side effects on some devices
        file = _FileWithTimeout(os.open(path, _OPEN_FLAGS))
        try:
            check_is_regular_file(path, os.fstat(file.fileno()).st_mode)
        except OSError:
            file.close()
            raise
        return file

    return io.BufferedReader(run_with_timeout(opened))


def read_regular_file(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes. Raises OSError like `open_regular_file`, and TooLarge."""
    with open_regular_file(path) as file:
        content = file.read(limit + 1)  # the size from `stat` may change, and is 0 in /proc
    if len(content) > limit:
        raise TooLarge(path, limit)
    return content


def read_json(path: Path, limit: int = 64_000_000) -> Any:
    """Read a JSON file. Raises OSError like `read_regular_file`, and ValueError."""
    return parse_json(read_regular_file(path, limit))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON from an untrusted source. Raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


async def read_limited(pieces: AsyncIterable[bytes], limit: int) -> bytes:
    """Join the pieces of an untrusted response. Raises ValueError once they exceed `limit` bytes."""
    content = bytearray()
    async for piece in pieces:
        content += piece
        if len(content) > limit:
            raise ValueError(f"it is larger than {format_size(limit)}")
    return bytes(content)


def is_folder(path: Path) -> bool:
    try:
        return run_with_timeout(path.is_dir)
    except OSError:  # the name is too long, or the disk does not respond
        return False


def run_with_timeout(function: Callable[[], R]) -> R:
    """Call `function` in a thread. Raises TimeoutError after ACCESS_TIMEOUT_S and abandons the thread."""
    done: Future[R] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="reading", daemon=True).start()
    try:
        return done.result(ACCESS_TIMEOUT_S)
    except TimeoutError as error:
        if done.done():  # the function itself raised it
            raise
        message = _("No response for {patience_s} s", patience_s=f"{ACCESS_TIMEOUT_S:.0f}")
        raise TimeoutError(errno.ETIMEDOUT, message) from error


def check_is_regular_file(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotAFile(path, mode)


class _FileWithTimeout(io.RawIOBase):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._hangs = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]  # any writable buffer
        try:
            read = run_with_timeout(lambda: os.read(self._descriptor, min(len(buffer), _READ_BYTES)))
        except TimeoutError:
            self._hangs = True
            raise
        except BlockingIOError as error:
            raise OSError(errno.EAGAIN, _("Reading it blocks, so it is not a regular file")) from error
        buffer[: len(read)] = read
        return len(read)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def close(self) -> None:
        """Close the descriptor, unless a hung read still uses it."""
        if not self.closed and not self._hangs:
            os.close(self._descriptor)
        super().close()


PRIVATE_MODE = 0o600
LEFTOVER_AGE_S = 3600.0  # another process may still be writing a newer file
_TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{12}\.new")


@contextlib.contextmanager
def atomic_write(target: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield the path of a temporary file to write to; afterwards sync it and rename it to `target`.

    If `target` is a link, replace the file it points to. A new file is readable by its owner only; an existing file
    keeps its mode unless `private`. If the body of the `with` statement fails, the old file stays. Raises OSError, and
    NotAFile if the target is not a regular file.
    """
    old_mode: int | None = None

    def prepare() -> tuple[Path, Path]:
        nonlocal old_mode
        with contextlib.suppress(FileNotFoundError):
            old_mode = target.stat().st_mode
            check_is_regular_file(target, old_mode)
        destination = target.resolve()
        return destination, temporary_path(destination)

    destination, temporary = run_with_timeout(prepare)
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE))
        yield temporary
        with temporary.open("r+b") as written:
            os.fsync(written.fileno())
        replace_file(temporary, destination)
        if old_mode is not None and not private:
            with contextlib.suppress(OSError):  # some file systems have no modes
                destination.chmod(stat.S_IMODE(old_mode))
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace_file(source: Path, target: Path) -> None:
    """Rename a file or folder, replacing an existing file. Raises OSError."""
    retry_while_open(partial(source.replace, target))


def retry_while_open(function: Callable[[], R]) -> R:
    """Call `function`. On Windows, retry for SHARING_TIMEOUT_S while another program has the file open.

    A virus scanner does that with each new file. Raises OSError.
    """
    deadline = time.monotonic() + SHARING_TIMEOUT_S
    while True:
        try:
            return function()
        except PermissionError as error:
            if getattr(error, "winerror", 0) not in _SHARING_ERRORS or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def temporary_path(target: Path) -> Path:
    """Return an unused path in the target's folder, and delete old temporary files left by killed processes."""
    with contextlib.suppress(OSError):
        for left in target.parent.iterdir():
            if _TEMPORARY_NAME.match(left.name) and left.stat().st_mtime < time.time() - LEFTOVER_AGE_S:
                left.unlink()
    return target.with_name(f".{uuid.uuid4().hex[:12]}.new")
