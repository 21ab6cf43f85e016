"""Positioned reads and writes, and parallel jobs for block I/O.

The table gives the bytes read, hashed and written for a slot file of N bytes (tests/kvstore/blocks/test_io_counts.py).
"New" means the rows added by a turn; the few KB of residue are not counted.

    first save (absorb)                         read N    hashed N    written N
    next turn, rows known to be unchanged       new + 2 blocks    new + 2 blocks    new
    next turn otherwise, as after a restart     read N    hashed N    written new
    restore of a warm file                      0         0           0
    restore from disk                           read N    hashed N    written N
    restore of a part                           read and hashed: the blocks with this part; written: the part

Each piece is read, hashed and written while it is in one core's cache, to save memory bandwidth.
"""

import contextlib
import mmap
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import TypeVar

from kvchat.kvstore.savepoint import CancelCheck, Cancelled

PIECE_BYTES = 1 << 19  # bytes; fits one core's cache for reading, hashing and writing
_MAX_THREADS = 8  # beyond this, disk and memory are the limit
_LOWEST_PRIORITY = 19
_seeking = threading.Lock()  # for systems without positioned I/O (Windows)

Job = TypeVar("Job")
Result = TypeVar("Result")


def read_at(file: FileIO, buffer: memoryview, offset: int) -> None:
    """Fill the buffer with the bytes at `offset`. Raises OSError, and EOFError if the file is too short."""
    while len(buffer):
        if sys.platform != "win32":
            count = os.preadv(file.fileno(), [buffer], offset)
        else:
            with _seeking:
                file.seek(offset)
                count = file.readinto(buffer) or 0
        if not count:
            raise EOFError
        buffer, offset = buffer[count:], offset + count


def read_into(file: FileIO, buffers: Sequence[memoryview], offset: int) -> None:
    """Fill several buffers in order, like `read_at`."""
    done = os.preadv(file.fileno(), buffers, offset) if sys.platform != "win32" and len(buffers) > 1 else 0
    for buffer in buffers:
        if len(buffer) > done:
            read_at(file, buffer[done:], offset + done)
        offset, done = offset + len(buffer), max(0, done - len(buffer))


def write_at(file: FileIO, data: memoryview | bytes, offset: int) -> None:
    """Write all of `data` at `offset` of the file. Raises OSError."""
    data = memoryview(data)
    while len(data):
        if sys.platform != "win32":
            count = os.pwrite(file.fileno(), data, offset)
        else:
            with _seeking:
                file.seek(offset)
                count = file.write(data) or 0
        data, offset = data[count:], offset + count


def prefetch(path: Path) -> None:
    """Ask the system to start reading the file into the page cache."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(file)


def thread_count() -> int:
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(_MAX_THREADS, cores)


def run_parallel(
    jobs: Sequence[Job],
    function: Callable[[Job, memoryview], Result],
    cancelled: CancelCheck,
    *,
    low_priority: bool = False,
) -> list[Result]:
    """Call `function(job, buffer)` for every job in a thread pool; return the results in order of jobs.

    Each thread has a buffer of PIECE_BYTES; `low_priority` lowers its CPU and disk priority. After an error, starts no
    further job, waits for the running ones and raises the error. Raises Cancelled if cancelled between jobs.
    """
    local = threading.local()
    failed = threading.Event()

    def run(job: Job) -> Result:
        if failed.is_set() or cancelled():
            raise Cancelled
        if not hasattr(local, "buffer"):
            local.buffer = memoryview(mmap.mmap(-1, PIECE_BYTES))  # malloc would keep one for every past thread
        try:
            return function(job, local.buffer)
        except BaseException:
            failed.set()
            raise

    if not jobs:
        return []
    with ThreadPoolExecutor(min(thread_count(), len(jobs)), "blocks", lower_priority if low_priority else None) as pool:
        futures = [pool.submit(run, job) for job in jobs]
        errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise next((error for error in errors if not isinstance(error, Cancelled)), errors[0])
    return [future.result() for future in futures]


def lower_priority() -> None:
    """Lower this thread's CPU priority for good, and its disk priority if the I/O scheduler supports this."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
