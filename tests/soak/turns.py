"""Thousands of turns in one run of kvchat, whose use of the machine must not grow."""

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Barrier

import psutil

from kvchat.engine.api.wire import Sampling
from kvchat.kvstore import disk
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from tests.e2e.home import notes
from tests.running import opened

GREEDY = Sampling(max_tokens=8, temperature=0.0, seed=1)
TURNS_PER_CHAT, CHATS = 5, 4  # older chats are deleted, so that the disk use need not grow
MEASUREMENTS = 20
BLOCK = 100  # average bytes of a block of Python's allocator (sys._debugmallocstats, of kvchat)
THREADS = 4  # threads and index readers made at the start: on a busy machine they are needed late


@dataclass(frozen=True)
class Usage:
    turn: int
    memory: int  # allocated bytes, without fragments, which do not grow with turns
    resident: int  # private bytes: mapped files have a budget
    engine_memory: int  # bytes
    descriptors: int
    threads: int
    disk: int  # bytes of the home without the engine's log

    def __str__(self) -> str:
        return (
            f"turn {self.turn}: {self.memory / 1e6:.1f} of {self.resident / 1e6:.1f} MB,"
            f" engine {self.engine_memory / 1e6:.1f} MB,"
            f" {self.descriptors} descriptors, {self.threads} threads, {self.disk / 1e6:.1f} MB on disk"
        )


class UsageGrew(AssertionError):
    """A field of Usage grew with the number of turns."""


async def run(folder: Path, model: Path, turns: int, report: Callable[[str], None] = print) -> list[Usage]:
    """Run these turns. Raises UsageGrew if the second half used clearly more than the first."""
    settings = Settings(model_path=str(model), context_size=8192, free_floor_bytes=0, model_titles=False)
    usages: list[Usage] = []
    chats: list[str] = []
    interval = max(TURNS_PER_CHAT, turns // MEASUREMENTS)
    async with opened(folder / "home", settings) as runtime:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        barrier = Barrier(THREADS)
        await asyncio.gather(*(asyncio.to_thread(barrier.wait) for _ in range(THREADS)))
        with ExitStack() as readers:
            for _ in range(THREADS):
                readers.enter_context(runtime._store.inventory.index.read())
        for turn in range(turns):
            if turn % TURNS_PER_CHAT == 0:
                chats.append((await runtime.chat.new_conversation("Notes.\n" + notes(20, start=turn))).id)
                if len(chats) > CHATS:
                    await runtime.chat.recently_deleted.purge_chat(chats.pop(0))
            chat = chats[-1 - (turn % 3 == 2 and len(chats) > 1)]  # every third in the chat before: a restore
            reply = await runtime.chat.send(chat, f"How long is bridge {turn}?", GREEDY)
            assert reply is not None, f"turn {turn} had no reply"
            if (turn + 1) % interval == 0:
                await runtime.chat.wait_until_idle()
                usages.append(measure_usage(runtime, turn + 1))
                report(str(usages[-1]))
    _check(usages)
    return usages


def measure_usage(runtime: Runtime, turn: int) -> Usage:
    gc.collect()
    process = psutil.Process()
    memory = process.memory_info()
    resident = memory.rss - getattr(memory, "shared", 0)
    engines = sum(child.memory_info().rss for child in process.children(recursive=True))
    log = runtime.paths.engine_log.parent  # is rotated
    home = disk.tree_size(runtime.paths.data.parent) - disk.tree_size(log)
    descriptors = process.num_fds() if hasattr(process, "num_fds") else 0
    return Usage(turn, _allocated() or resident, resident, engines, descriptors, process.num_threads(), home)


class _Malloc(ctypes.Structure):
    """glibc's mallinfo2(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "mapped", "usmblks", "fsmblks", "used", "free", "keepcost")
    ]


def _allocated() -> int:
    """Return the bytes allocated by Python and the C library; 0 if the latter is not glibc."""
    with suppress(OSError, AttributeError, TypeError):
        mallinfo2 = ctypes.CDLL(None).mallinfo2
        mallinfo2.restype = _Malloc
        malloc = mallinfo2()
        return int(malloc.used + malloc.mapped + BLOCK * sys.getallocatedblocks())
    return 0


def _check(usages: list[Usage]) -> None:
    """Compare the halves of the run, from when the number of chats is constant."""
    usages = [usage for usage in usages if usage.turn > (CHATS + 1) * TURNS_PER_CHAT]
    half = len(usages) // 2
    if not half:
        return
    early, late = usages[:half], usages[-half:]
    limits = {"memory": 6e6, "engine_memory": 6e6, "descriptors": 2, "threads": 2}
    limits["disk"] = 0.25 * median(usage.disk for usage in early)
    grown = []
    for name, limit in limits.items():
        first, last = (median(getattr(usage, name) for usage in part) for part in (early, late))
        if last - first > limit:
            grown.append(name)
    if grown:
        raise UsageGrew(f"{grown} grew: {early[0]} … {late[-1]}")
