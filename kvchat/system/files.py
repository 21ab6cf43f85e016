"""Reading of regular files from untrusted paths, with size and time limits, and atomic writes.

Every step has a time limit, because a pipe or a lost network folder may never respond. A hung thread is abandoned.
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
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from kvchat.text.formatting import format_size
from kvchat.text.language import _

PATIENCE_S = 10.0  # long enough for a sleeping disk
_PIECE = 1024 * 1024  # bytes per read
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # reading some /proc files blocks

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


def file_stamp(path: Path) -> tuple[int, int, int]:
    """Return a file's size, modification time in ns and inode; zeros if it cannot be read."""
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
        check_is_regular_file(path, path.stat().st_mode)  # first: opening a device can have side effects
        file = _FileWithTimeout(os.open(path, _FLAGS))
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
        content = file.read(limit + 1)  # the reported size may change, or be 0 in /proc
    if len(content) > limit:
        raise TooLarge(path, limit)
    return content


def read_json(path: Path, limit: int = 64_000_000) -> Any:
    """Read a JSON file. Raises OSError like `read_regular_file`, and ValueError."""
    return parse_json(read_regular_file(path, limit))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON from an untrusted source. Raises ValueError, also for excessive nesting."""
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
    except OSError:  # name too long, or no response
        return False


def run_with_timeout(function: Callable[[], R]) -> R:
    """Call `function` in a thread. Raises TimeoutError if it takes too long; the thread continues."""
    done: Future[R] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="reading", daemon=True).start()
    try:
        return done.result(PATIENCE_S)
    except TimeoutError as error:
        if done.done():  # from the call
            raise
        message = _("No response for {patience_s} s", patience_s=f"{PATIENCE_S:.0f}")
        raise TimeoutError(errno.ETIMEDOUT, message) from error


def check_is_regular_file(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotAFile(path, mode)


class _FileWithTimeout(io.RawIOBase):
    """A file with a read timeout."""

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
            read = run_with_timeout(lambda: os.read(self._descriptor, min(len(buffer), _PIECE)))
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


PRIVATE = 0o600
LEFTOVER_AGE_S = 3600.0  # another process may be writing newer ones
_TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{12}\.new")


@contextlib.contextmanager
def atomic_write(target: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a path next to `target` to write to; then sync it to disk and replace `target`.

    Follows a link and writes its target. A new file is private to its owner, an old one keeps its mode unless
    `private`. An exception in the block leaves the old file as it was, and nothing next to it. Raises OSError, and
    NotAFile if the target is not a regular file.
    """

    def existing_mode() -> int | None:
        try:
            mode = target.stat().st_mode
        except FileNotFoundError:
            return None
        check_is_regular_file(target, mode)
        return stat.S_IMODE(mode)

    old, destination = run_with_timeout(lambda: (existing_mode(), target.resolve()))
    temporary = run_with_timeout(lambda: temporary_path(destination))
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        yield temporary
        with temporary.open("r+b") as written:
            os.fsync(written.fileno())
        if old is not None and not private:
            with contextlib.suppress(OSError):  # a file system without modes
                temporary.chmod(old)
        temporary.replace(destination)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def temporary_path(target: Path) -> Path:
    """Return a fresh name in the same folder; delete old leftovers of killed processes."""
    with contextlib.suppress(OSError):
        for left in target.parent.iterdir():
            if _TEMPORARY_NAME.match(left.name) and left.stat().st_mtime < time.time() - LEFTOVER_AGE_S:
                left.unlink()
    return target.with_name(f".{uuid.uuid4().hex[:12]}.new")
