"""Writing a file so that it is there whole or not at all, whatever interrupts it."""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from kvchat.system.plain_file import check_is_file, in_time

PRIVATE = 0o600


@contextlib.contextmanager
def whole_file(target: Path, *, private: bool = False) -> Iterator[Path]:
    """A name beside `target` to write under; when the block ends, what was written goes to disk and takes its place.

    A link stays one: what it leads to is written. A new file is its owner's alone, one that was there keeps its mode
    unless it is to be `private`. After an exception in the block the old file is as it was, and nothing is left beside
    it. Raises OSError, and NotAFile where something else than a regular file is in the place.
    """
    old, place = in_time(lambda: (_old_mode(target), target.resolve()))
    beside = place.with_name(f".{uuid.uuid4().hex[:12]}.new")  # of its own: two processes may write the same file
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        yield beside
        with beside.open("r+b") as written:
            os.fsync(written.fileno())
        if old is not None and not private:
            with contextlib.suppress(OSError):  # a file system without modes
                beside.chmod(old)
        beside.replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def _old_mode(target: Path) -> int | None:
    """The mode of the regular file under that name, whatever links lead to it; None where there is none yet."""
    try:
        found = target.stat().st_mode
    except FileNotFoundError:
        return None
    check_is_file(target, found)
    return stat.S_IMODE(found)
