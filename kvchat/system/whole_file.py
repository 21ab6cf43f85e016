"""Writing a file so that it is there whole or not at all, whatever interrupts it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from kvchat.system.plain_file import check_is_file, in_time

PRIVATE = 0o600
LEFTOVER_AGE_S = 3600.0  # what is younger another process may be writing
_BEGUN = re.compile(r"\.[0-9a-f]{12}\.new")


@contextlib.contextmanager
def whole_file(target: Path, *, private: bool = False) -> Iterator[Path]:
    """A name beside `target` to write under; when the block ends, what was written goes to disk and takes its place.

    A link stays one: what it leads to is written. A new file is its owner's alone, one that was there keeps its mode
    unless it is to be `private`. After an exception in the block the old file is as it was, and nothing is left beside
    it. Raises OSError, and NotAFile where something else than a regular file is in the place.
    """
    old, place = in_time(lambda: (_old_mode(target), target.resolve()))
    beside = in_time(lambda: name_beside(place))
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


def name_beside(target: Path) -> Path:
    """A fresh name in the same folder, to write under: two processes may write the same file.

    What was begun there by one that was killed goes, with SQLite's journals.
    """
    with contextlib.suppress(OSError):
        for left in target.parent.iterdir():
            if _BEGUN.match(left.name) and left.stat().st_mtime < time.time() - LEFTOVER_AGE_S:
                left.unlink()
    return target.with_name(f".{uuid.uuid4().hex[:12]}.new")


def _old_mode(target: Path) -> int | None:
    """The mode of the regular file under that name, whatever links lead to it; None where there is none yet."""
    try:
        found = target.stat().st_mode
    except FileNotFoundError:
        return None
    check_is_file(target, found)
    return stat.S_IMODE(found)
