"""The part of `bench --size` without an engine: a made file through the store, beside `cp` of the same bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from kvchat.cli.bench.home import BenchFailed, say
from kvchat.cli.bench.made_files import TOKEN_BYTES, write_slot_file
from kvchat.kvstore import disk
from kvchat.kvstore.memory_files import MemoryRoom
from kvchat.kvstore.savepoint import Bounds, Fingerprint, Grown, RestorePlan, SavePoint, StagedFile, Tier, Tokens
from kvchat.kvstore.store import BlockStore
from kvchat.library.memory.machine import staging_room
from kvchat.system.paths import resolve_paths
from kvchat.words.wording import size

ROUNDS, LARGE = 3, 4_000_000_000  # a file of so many bytes goes through once
TURN = 100  # tokens of the next turn
_FINGERPRINT = Fingerprint("bench", "f16", "f16", "auto", 1, "")
_UNBOUNDED = 1 << 60  # bytes
_LOOK_S = 0.02  # how often what is staged is looked at


@dataclass(frozen=True)
class StoreAlone:
    """A made file through the store. A ratio of speeds is above 1 where the store is quicker than the plain copy."""

    made_bytes: int
    absorb_ms: float  # a first save, taken apart and on disk
    absorb_ratio: float  # speed, by that of `cp` to the same disk, synced as well
    rebuild_ms: float  # put together from blocks in the page cache, over an earlier file
    first_rebuild_ms: float  # the same after a start, over what is made ready while an engine starts
    rebuild_ratio: float  # speed, by that of `cp` of such a file to the same place
    cold_rebuild_ms: float  # with the blocks out of the page cache
    cold_rebuild_ratio: float  # speed, by that of `cp` with the file out of the page cache
    cat_ms: float  # `cat` of the file, page cache warm
    warm_before_engine_ms: float  # until what was just saved is ready; the slower of before and after absorbing
    absorb_cpu_ms: float  # CPU time of the first save in this process
    next_turn_cpu_ms: float  # and of one that goes on for 100 tokens
    next_turn_cpu_ratio: float
    next_turn_bytes_written: int
    peak_staging_bytes: int  # the most that lay in the staging folder at any time
    peak_memory_growth_bytes: int | None  # of this process, over what it had before; what is staged left out


def store_alone(made_bytes: int) -> StoreAlone:
    """A made file through the store, beside `cp` of it. Blocks. Raises BenchFailed, StoreRefused, OSError."""
    paths = resolve_paths().ensure()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=paths.cache) as folder:
        return _Made(Path(folder), made_bytes).measure()


class _Made:
    """The store alone, in a folder of its own."""

    def __init__(self, folder: Path, made_bytes: int) -> None:
        self._folder, self._tokens = folder, tuple(range(1, made_bytes // TOKEN_BYTES + 1))
        # Room for one file, not for two: the second is staged where the first was. And no more than in real life.
        most = int(1.1 * (made_bytes + TURN * TOKEN_BYTES))
        self._budget: MemoryRoom = lambda held: min(most, staging_room(held))
        self._open()

    def _open(self) -> None:
        self._store = BlockStore(self._folder / "store", Bounds(_UNBOUNDED, 0), self._budget)
        self._store.keep_in_memory(_UNBOUNDED)  # as when an engine is started
        self._slots = self._store.staging_folder()
        self._copy = self._slots / "copy.slot"

    def measure(self) -> StoreAlone:
        """Once through everything."""
        original = self._folder / "original.slot"
        say(f"The store alone: a made file of {size(len(self._tokens) * TOKEN_BYTES)} …")
        made_bytes = write_slot_file(original, self._tokens)
        before = _own_memory()
        with self._watched() as peak:
            figures = self._measure(original, made_bytes)
        growth = peak[1] - before if before is not None else None
        return dataclasses.replace(figures, peak_staging_bytes=peak[0], peak_memory_growth_bytes=growth)

    def _measure(self, original: Path, made_bytes: int) -> StoreAlone:
        say("Absorbing, beside a plain copy …")
        _run("cat", original)
        cat_ms = _timed(lambda: _run("cat", original))
        copied_ms = _timed(lambda: self._copied_to_disk(original))
        write = partial(_run, "cp", original)
        first, absorb_ms, absorb_cpu_ms, _ = self._absorbed(self._tokens, write, None)
        say("The next turn …")
        longer = (*self._tokens, *range(1, TURN + 1))
        grown = Grown(first.id, len(self._tokens))  # as the engine says that it kept all rows
        second, _, next_cpu_ms, written = self._absorbed(longer, lambda path: write_slot_file(path, longer), grown)
        warm_ms = max(self._warm_ms)
        say("Putting it together again, beside a plain copy …")
        self._store.close()
        self._open()
        first_rebuild_ms = self._staged(first)
        rebuilds, copies, cold, cold_copies = [], [], [], []
        rounds = ROUNDS if made_bytes < LARGE else 1
        for number in range(rounds):
            rebuilds.append(self._staged(second if number % 2 == 0 else first))
            copies.append(self._copied_to_staging(original))
        for number in range(rounds):
            self._drop_caches(original)
            cold.append(self._staged(second if (rounds + number) % 2 == 0 else first))
            self._drop_caches(original)
            cold_copies.append(self._copied_to_staging(original))
        self._store.close()
        return StoreAlone(
            made_bytes=made_bytes,
            cat_ms=cat_ms,
            absorb_ms=absorb_ms,
            absorb_ratio=copied_ms / absorb_ms,
            absorb_cpu_ms=absorb_cpu_ms,
            next_turn_cpu_ms=next_cpu_ms,
            next_turn_cpu_ratio=next_cpu_ms / absorb_cpu_ms,
            next_turn_bytes_written=written,
            warm_before_engine_ms=warm_ms,
            first_rebuild_ms=first_rebuild_ms,
            rebuild_ms=median(rebuilds),
            rebuild_ratio=median(b / a for a, b in zip(rebuilds, copies, strict=True)),
            cold_rebuild_ms=median(cold),
            cold_rebuild_ratio=median(b / a for a, b in zip(cold, cold_copies, strict=True)),
            peak_staging_bytes=0,
            peak_memory_growth_bytes=None,
        )

    def _absorbed(
        self, tokens: Tokens, write: Callable[[Path], object], grown: Grown | None
    ) -> tuple[SavePoint, float, float, int]:
        """A save point of these tokens; the ms, the CPU ms and the bytes written to absorb it."""
        saved = self._slots / f"{disk.name_for_engine()}.slot"
        self._store.check_room(len(tokens) * TOKEN_BYTES, "bench", saved)
        write(saved)
        size = saved.stat().st_size
        point = self._store.take(saved, "bench", _FINGERPRINT, tokens, size, float(len(tokens)), grown=grown)
        before_ms = self._staged(point)
        cpu, started = time.process_time(), time.perf_counter()
        report = self._store.absorb_pending()
        taken, cpu_taken = _ms_since(started), 1000 * (time.process_time() - cpu)
        if report.refused:
            raise BenchFailed("The made file could not be kept", report.refused[0].words)
        self._warm_ms = (before_ms, self._staged(point))
        return point, taken, cpu_taken, report.bytes_written

    def _staged(self, point: SavePoint) -> float:
        """The ms until the point's file is ready for an engine; what is made ready beforehand is waited for."""
        self._store.prepare().result()
        started = time.perf_counter()
        staged = self._store.stage(RestorePlan(point, point.n_tokens, Tier.DISK, point.size), self._slots)
        taken = _ms_since(started)
        if not isinstance(staged, StagedFile):
            raise BenchFailed("The made file could not be put together again", staged.reason.words)
        self._copy = staged.path.resolve().with_name("copy.slot")  # beside it, in memory or on disk
        self._store.unstage(staged)
        return taken

    def _copied_to_disk(self, original: Path) -> None:
        copy = self._folder / "copy.slot"
        _run("cp", original, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())
        copy.unlink()

    def _copied_to_staging(self, original: Path) -> float:
        """The ms a plain copy takes to where engines restore from."""
        copy = self._copy
        try:
            return _timed(lambda: _run("cp", original, copy))
        finally:
            copy.unlink(missing_ok=True)

    def _drop_caches(self, original: Path) -> None:
        """Have the page cache forget the file and all blocks; where the system cannot, the figures are warm ones."""
        if not hasattr(os, "posix_fadvise"):
            return
        for path in (original, *(one for one in (self._folder / "store").rglob("*") if one.is_file())):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[list[int]]:
        """The most bytes that lie in the staging folder, and that this process has of its own, until the end."""
        most, ended = [0, 0], threading.Event()

        def look() -> None:
            while not ended.wait(_LOOK_S):
                most[0] = max(most[0], self._store.staged_bytes() - disk.tree_size(self._copy))
                most[1] = max(most[1], _own_memory() or 0)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield most
        finally:
            ended.set()
            watcher.join()


def _run(program: str, *paths: Path) -> None:
    """`cp` or `cat`, the system's own where it has them."""
    if shutil.which(program):
        subprocess.run([program, *map(str, paths)], check=True, stdout=subprocess.DEVNULL)
    elif len(paths) > 1:
        shutil.copyfile(*paths)
    else:
        disk.hash_file(paths[0])


def _timed(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return _ms_since(started)


def _ms_since(started: float) -> float:
    return 1000 * (time.perf_counter() - started)


def _own_memory() -> int | None:
    """The memory this process has, bytes, files that it maps left out; None where the system does not say."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return 1024 * int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])
    return None
