"""Thousands of turns in one run of kvchat: what it takes of the machine must not grow."""

from __future__ import annotations

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
TURNS_PER_CHAT, CHATS = 5, 4  # older chats are deleted, so that the disk has no reason to grow either
LOOKS = 20  # at the machine, over the whole run
BLOCK = 100  # bytes that Python's own allocator gives at a time, on average (sys._debugmallocstats, of kvchat)
WIDE = 4  # threads and readers of the index


@dataclass(frozen=True)
class Look:
    turn: int
    memory: int  # bytes that this process uses: what the allocators keep in pieces between is not what grows with turns
    resident: int  # bytes of this process alone: files in memory, which it maps, have a budget
    engine_memory: int  # bytes
    descriptors: int
    threads: int
    disk: int  # bytes of the whole home but for the engine's log

    def __str__(self) -> str:
        return (
            f"turn {self.turn}: {self.memory / 1e6:.1f} of {self.resident / 1e6:.1f} MB,"
            f" engine {self.engine_memory / 1e6:.1f} MB,"
            f" {self.descriptors} descriptors, {self.threads} threads, {self.disk / 1e6:.1f} MB on disk"
        )


class Grew(AssertionError):
    """Something grew with the turns."""


async def run(folder: Path, model: Path, turns: int, tell: Callable[[str], None] = print) -> list[Look]:
    """So many turns, and looks at the machine. Raises Grew if the second half took clearly more than the first."""
    settings = Settings(model_path=str(model), context_size=8192, free_floor_bytes=0, model_titles=False)
    looks: list[Look] = []
    chats: list[str] = []
    every = max(TURNS_PER_CHAT, turns // LOOKS)
    async with opened(folder / "home", settings) as runtime:
        await _widen(runtime)
        for turn in range(turns):
            if turn % TURNS_PER_CHAT == 0:
                chats.append((await runtime.chat.new_conversation("Notes.\n" + notes(20, start=turn))).id)
                if len(chats) > CHATS:
                    await runtime.chat.recently_deleted.purge_chat(chats.pop(0))
            chat = chats[-1 - (turn % 3 == 2 and len(chats) > 1)]  # every third in the chat before: a restore
            reply = await runtime.chat.send(chat, f"How long is bridge {turn}?", GREEDY)
            assert reply is not None, f"turn {turn} had no reply"
            if (turn + 1) % every == 0:
                await runtime.chat.idle()
                looks.append(look(runtime, turn + 1))
                tell(str(looks[-1]))
    _judge(looks)
    return looks


async def _widen(runtime: Runtime) -> None:
    """Have from the beginning what is made when it is needed first: on a busy machine more is needed, and late."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(WIDE))
    all_there = Barrier(WIDE)
    await asyncio.gather(*(asyncio.to_thread(all_there.wait) for _ in range(WIDE)))
    with ExitStack() as readers:
        for _ in range(WIDE):
            readers.enter_context(runtime._store.inventory.index.read())


def look(runtime: Runtime, turn: int) -> Look:
    gc.collect()
    me = psutil.Process()
    mine = me.memory_info()
    resident = mine.rss - getattr(mine, "shared", 0)
    engines = sum(child.memory_info().rss for child in me.children(recursive=True))
    log = runtime.paths.engine_log.parent  # fills up to what it may have, and then begins anew
    home = disk.tree_size(runtime.paths.data.parent) - disk.tree_size(log)
    descriptors = me.num_fds() if hasattr(me, "num_fds") else 0
    return Look(turn, _used() or resident, resident, engines, descriptors, me.num_threads(), home)


class _Malloc(ctypes.Structure):
    """glibc's mallinfo2(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "mapped", "usmblks", "fsmblks", "used", "free", "keepcost")
    ]


def _used() -> int:
    """Bytes that were asked of the allocators, Python's own and the library's; 0 where only glibc's would tell."""
    with suppress(OSError, AttributeError, TypeError):
        told = ctypes.CDLL(None).mallinfo2
        told.restype = _Malloc
        malloc = told()
        return int(malloc.used + malloc.mapped + BLOCK * sys.getallocatedblocks())
    return 0


def _judge(looks: list[Look]) -> None:
    """The second half beside the first, once there are as many chats as there will be."""
    looks = [look for look in looks if look.turn > (CHATS + 1) * TURNS_PER_CHAT]
    half = len(looks) // 2
    if not half:
        return
    early, late = looks[:half], looks[-half:]

    def grown(of: Callable[[Look], int]) -> float:
        return median(map(of, late)) - median(map(of, early))

    faults = {
        "memory": grown(lambda look: look.memory) > 6e6,
        "engine memory": grown(lambda look: look.engine_memory) > 6e6,
        "descriptors": grown(lambda look: look.descriptors) > 2,
        "threads": grown(lambda look: look.threads) > 2,
        "disk": grown(lambda look: look.disk) > 0.25 * median(look.disk for look in early),
    }
    if any(faults.values()):
        raise Grew(f"{[name for name, bad in faults.items() if bad]} grew: {early[0]} … {late[-1]}")
