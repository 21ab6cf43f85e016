"""`--size`: whether the store holds at the size of real chats, beside plain copies of the same bytes in the same run.

Two parts. With the engine: a chat of N tokens on a model whose KV cache is an 8B's, restored from disk after a restart,
beside the engine's own restore of the same file. The store alone: a made file, taken, absorbed and put together again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kvchat.cli.bench.home import BenchFailed, BenchHome, bench_home, say
from kvchat.cli.bench.made_files import write_kv_model
from kvchat.cli.bench.size_store import StoreAlone, store_alone
from kvchat.cli.options import BenchOptions
from kvchat.cli.terminal import columns
from kvchat.kvstore import disk
from kvchat.kvstore.memory_files import MEMORY_FOLDER
from kvchat.session.proof import Source
from kvchat.system.paths import resolve_paths
from kvchat.words.wording import duration, size

MADE_BYTES = 2_150_000_000
ROUNDS = 3
REPLY_TOKENS = 8
QUESTION = "Which of these notes was the first?"


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


async def measure(options: BenchOptions) -> Size:
    """Both parts, one after the other. Raises KvchatError and OSError."""
    engine = await _with_the_engine(options)
    store = await asyncio.to_thread(store_alone, options.made_bytes or MADE_BYTES)
    return Size(**vars(engine), **vars(store))


async def _with_the_engine(options: BenchOptions) -> WithEngine:
    """The chat of N tokens. Where no model is given, one is made."""
    paths = resolve_paths().ensure()
    with tempfile.TemporaryDirectory(prefix="bench-model-", dir=paths.cache) as folder:
        model = options.model
        if model is None:
            model = Path(folder) / "kv.gguf"
            await asyncio.to_thread(write_kv_model, model)
        wanted = dataclasses.replace(options, model=model)
        async with bench_home(wanted, options.tokens + 2048, REPLY_TOKENS) as home:
            return await _restored(home, options.tokens)


async def _restored(home: BenchHome, tokens: int) -> WithEngine:
    say(f"Reading a chat of {tokens:,} tokens, as long as that takes …")
    chat_id = (await home.runtime.chat.new_conversation()).id
    await home.ask(chat_id, await home.notes(tokens))
    home.check_saved(1)
    times: list[float] = []
    own: list[float] = []
    for number in range(ROUNDS):
        say(f"From disk after a restart, round {number + 1} of {ROUNDS} …")
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
    """The figures for a reader."""
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
