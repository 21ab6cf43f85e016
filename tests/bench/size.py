"""`python -m tests.bench size`: does the store hold at the size of real chats, beside plain copies of the same bytes?

Two parts. With the engine: a chat of N tokens, restored from disk after a restart, beside the engine's own restore of
the same file. The store alone: a made file, as of a chat with an 8B, taken, absorbed and put together again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import BenchFailed, BenchHome, bench_home
from kvchat.cli.terminal import columns, remark
from kvchat.kvstore import disk
from kvchat.kvstore.memory_files import MEMORY_FOLDER, MemoryRoom
from kvchat.kvstore.savepoint import Bounds, Fingerprint, Grown, RestorePlan, SavePoint, StagedFile, Tier, Tokens
from kvchat.kvstore.store import BlockStore
from kvchat.library.memory.demand import staging_room
from kvchat.session.proof import Source
from kvchat.system.paths import resolve_paths
from kvchat.words.wording import duration, size

TOKENS = 16_384  # of the chat with the engine
SIZE_BYTES = 2_150_000_000  # of the file that is made
REPLY_TOKENS = 8
QUESTION = "Which of these notes was the first?"
ROUNDS, LARGE = 3, 4_000_000_000  # a file of so many bytes goes through once
TURN = 100  # tokens of the next turn
LAYERS, HEADS, HEAD = 32, 8, 128  # of Llama-3.1-8B
ROW = 2 * HEADS * HEAD  # bytes of one token's K, or V, of one layer in f16
TOKEN_BYTES = 2 * LAYERS * ROW  # 128 KB
_F16 = 1
_AT_ONCE = 8192  # rows written at a time
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


@dataclass(frozen=True)
class WithEngine:
    """A chat restored by kvchat and by the engine alone. Times in ms, medians; sizes in bytes."""

    tokens: int
    file_bytes: int  # of its slot file
    restore_ms: float  # from disk after a restart, page cache warm: find, put together, the engine's own part
    engine_restore_ms: float  # the engine alone, of the same file, from where it was staged
    restore_ratio: float  # the first by the second


@dataclass(frozen=True)
class Size(StoreAlone, WithEngine):
    """Both parts. `--json` prints these names as keys."""


async def measure(options: BenchOptions, made_bytes: int | None) -> Size:
    """Both parts, one after the other. Raises KvchatError and OSError."""
    tokens = options.tokens or TOKENS
    async with bench_home(options, tokens + 2048, REPLY_TOKENS) as home:
        engine = await _restored(home, tokens)
    store = await asyncio.to_thread(_store_alone, made_bytes or SIZE_BYTES)
    return Size(**vars(engine), **vars(store))


async def _restored(home: BenchHome, tokens: int) -> WithEngine:
    remark(f"Reading a chat of {tokens:,} tokens, as long as that takes …")
    chat_id = (await home.runtime.chat.new_conversation()).id
    await home.ask(chat_id, await home.notes(tokens))
    home.check_saved(1)
    times: list[float] = []
    own: list[float] = []
    for number in range(ROUNDS):
        remark(f"From disk after a restart, round {number + 1} of {ROUNDS} …")
        await home.restart()
        receipt = (await home.ask(chat_id, QUESTION if not number else None, keep=False)).receipt
        if receipt.source is not Source.DISK:
            why = receipt.miss_reason.words if receipt.miss_reason else ""
            raise BenchFailed("The chat did not come from disk", why, "Try it once more.")
        times.append(receipt.restore_ms)
        own.append(await _engine_alone(home))
    return WithEngine(
        tokens=home.saved[0].tokens,
        file_bytes=home.saved[0].bytes,
        restore_ms=median(times),
        engine_restore_ms=median(own),
        restore_ratio=median(a / b for a, b in zip(times, own, strict=True)),
    )


async def _engine_alone(home: BenchHome) -> float:
    """The ms the engine takes to restore what it saves now from where it saves it; the second time, as later ones."""
    host = await home.runtime.engine.ready()
    name = f"{disk.name_for_engine()}.slot"
    in_memory = MEMORY_FOLDER / name
    if MEMORY_FOLDER.is_dir():
        (host.slot_path / name).symlink_to(in_memory)
    await host.engine.save_slot(name)
    try:
        taken = 0.0
        for _ in range(2):
            await host.engine.erase_slot()
            started = time.perf_counter()
            await host.engine.restore_slot(name)
            taken = 1000 * (time.perf_counter() - started)
        return taken
    finally:
        (host.slot_path / name).unlink(missing_ok=True)
        in_memory.unlink(missing_ok=True)


def lines(result: Size) -> list[str]:
    own = f"({result.restore_ratio:.2f} times the engine's own part)"
    rows = [
        (f"Restore of {size(result.file_bytes)} from disk", f"{duration(result.restore_ms)}   {own}"),
        (f"First save of {size(result.made_bytes)}", _beside_cp(result.absorb_ms, result.absorb_ratio)),
        ("Put together, page cache warm", _beside_cp(result.rebuild_ms, result.rebuild_ratio)),
        ("  after a start", duration(result.first_rebuild_ms)),
        ("Put together, page cache cold", _beside_cp(result.cold_rebuild_ms, result.cold_rebuild_ratio)),
        ("Ready for the engine, just saved", duration(result.warm_before_engine_ms)),
        ("CPU of the next turn, by a first save", f"{result.next_turn_cpu_ratio:.2f}"),
        ("Written by it", size(result.next_turn_bytes_written)),
        ("Most that was staged", size(result.peak_staging_bytes)),
    ]
    if result.peak_memory_growth_bytes is not None:
        rows.append(("Most memory taken besides", size(result.peak_memory_growth_bytes)))
    return columns(rows)


def _beside_cp(ms: float, ratio: float) -> str:
    return f"{duration(ms)}   (at {ratio:.2f} of the speed of cp)"


def write_slot_file(path: Path, tokens: Tokens) -> int:
    """Write what an engine would save for these tokens (see kvstore/layout/parser.py); returns its size.

    The rows of a token are the same in every file whose first tokens are as many: a longer file goes on from a
    shorter one as a chat does.
    """
    words = [-1, 1, len(tokens), *tokens, 0]
    cells = np.zeros((len(tokens), 3), "<i4")
    cells[:, 0], cells[:, 1] = np.arange(len(tokens)), 1
    with path.open("wb") as file:
        file.write(struct.pack(f"<4sII{len(words)}i", b"qsgg", 4, len(words), *words))
        file.write(struct.pack("<II", 1, len(tokens)) + cells.tobytes() + struct.pack("<IIII", 0, LAYERS, HEAD, HEAD))
        for region in range(2 * LAYERS):
            file.write(struct.pack("<iQ", _F16, ROW))
            for first in range(0, len(tokens), _AT_ONCE):
                file.write(_rows(region, first, min(_AT_ONCE, len(tokens) - first)))
        return file.tell()


def _rows(region: int, first: int, count: int) -> memoryview:
    """Rows of consecutive tokens, each different from every other."""
    rows = np.tile(np.random.default_rng(region).integers(0, 2**63, ROW // 8, dtype=np.int64), (count, 1))
    rows += np.arange(first, first + count, dtype=np.int64)[:, None] * 0x9E3779B97F4A7C1
    return rows.data.cast("B")


def _store_alone(made_bytes: int) -> StoreAlone:
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
        original = self._folder / "original.slot"
        remark(f"The store alone: a made file of {size(len(self._tokens) * TOKEN_BYTES)} …")
        made_bytes = write_slot_file(original, self._tokens)
        before = _own_memory()
        with self._watched() as peak:
            figures = self._measure(original, made_bytes)
        growth = peak[1] - before if before is not None else None
        return dataclasses.replace(figures, peak_staging_bytes=peak[0], peak_memory_growth_bytes=growth)

    def _measure(self, original: Path, made_bytes: int) -> StoreAlone:
        remark("Absorbing, beside a plain copy …")
        _run("cat", original)
        cat_ms = _timed(lambda: _run("cat", original))
        copied_ms = _timed(lambda: self._copied_to_disk(original))
        write = partial(_run, "cp", original)
        first, absorb_ms, absorb_cpu_ms, _ = self._absorbed(self._tokens, write, None)
        remark("The next turn …")
        longer = (*self._tokens, *range(1, TURN + 1))
        grown = Grown(first.id, len(self._tokens))  # as the engine says that it kept all rows
        second, _, next_cpu_ms, written = self._absorbed(longer, lambda path: write_slot_file(path, longer), grown)
        warm_ms = max(self._warm_ms)
        remark("Putting it together again, beside a plain copy …")
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
                most[0] = max(most[0], self._store.staging.bytes(disk_too=True) - disk.tree_size(self._copy))
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
