"""Writing a file so that it is there whole or not at all, whatever interrupts it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A name beside `target` to write under; when the block ends, what was written goes to disk and takes its place.

    After an exception in the block the old file is as it was, and nothing is left beside it. Raises OSError.
    """
    beside = target.with_name(f".{uuid.uuid4().hex[:12]}.new")  # of its own: two processes may write the same file
    try:
        yield beside
        with beside.open("r+b") as written:
            os.fsync(written.fileno())
        beside.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
