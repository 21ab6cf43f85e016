"""`--size`: whether the store holds at the size of real chats, beside plain copies of the same bytes in the same run.

Two parts. With the engine: a chat of N tokens on a model whose KV cache is an 8B's, restored from disk after a restart,
beside the engine's own restore of the same file. The store alone: a made file, taken, absorbed and put together again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kvchat.cli.bench.home import BenchFailed, BenchHome, bench_home, say
from kvchat.cli.bench.made_files import write_kv_model
from kvchat.cli.bench.size_store import StoreAlone, store_alone
from kvchat.cli.command_runtime import chosen_settings
from kvchat.cli.grammar.options import BenchOptions
from kvchat.engine.speaking.wire import Sampling
from kvchat.kvstore.files import disk
from kvchat.kvstore.files.memory_files import MEMORY_FOLDER
from kvchat.session.proof import Source
from kvchat.system.paths import resolve_paths
from kvchat.words.wording import duration, size

MADE_BYTES = 2_150_000_000
ROUNDS = 3
REPLY = Sampling(max_tokens=8, temperature=0.0, seed=1)
QUESTION = "Which of these notes was the first?"


@dataclass(frozen=True)
class WithEngine:
    """A chat restored by kvchat and by the engine alone. Times in ms, medians; sizes in bytes."""

    tokens: int
    file_bytes: int  # of its slot file
    restore_ms: float  # from disk after a restart, page cache warm: find, put together, the engine's own part
    engine_restore_ms: float  # the engine alone, of the same file, from where it was staged
    restore_ratio: float  # the first by the second


async def run(options: BenchOptions) -> int:
    """Measure and print. Returns the exit code."""
    engine = await _with_the_engine(options)
    store = await asyncio.to_thread(store_alone, options.made_bytes or MADE_BYTES)
    figures = dataclasses.asdict(engine) | dataclasses.asdict(store)  # these names are the keys of `--json`
    print(json.dumps(figures) if options.as_json else table(engine, store))
    return 0


async def _with_the_engine(options: BenchOptions) -> WithEngine:
    """The chat of N tokens. Where no model is given, one is made, with the chosen model's vocabulary."""
    paths = resolve_paths()
    paths.ensure()
    with tempfile.TemporaryDirectory(prefix="bench-model-", dir=paths.cache) as folder:
        model = options.model
        if model is None:
            chosen = (await chosen_settings(paths, None, options.engine)).model_path
            if chosen is None:
                raise BenchFailed("A model is needed", "", "Give one with --model PATH.")
            model = Path(folder) / "kv.gguf"
            await asyncio.to_thread(write_kv_model, Path(chosen), model)
        wanted = dataclasses.replace(options, model=model)
        async with bench_home(wanted, context_size=options.tokens + 2048) as home:
            return await _restored(home, options.tokens)


async def _restored(home: BenchHome, tokens: int) -> WithEngine:
    say(f"Reading a chat of {tokens:,} tokens, as long as that takes …")
    chat_id = (await home.runtime.chat.new_conversation()).id
    await home.ask(chat_id, await home.notes(tokens), REPLY)
    if not home.saved:
        raise BenchFailed("The chat could not be saved", "", "See `kvchat doctor` for the free disk space.")
    times: list[float] = []
    own: list[float] = []
    for number in range(ROUNDS):
        say(f"From disk after a restart, round {number + 1} of {ROUNDS} …")
        await home.restart()
        receipt = (await home.ask(chat_id, QUESTION if not number else None, REPLY, keep=False)).receipt
        if receipt.source is not Source.DISK:
            raise BenchFailed("The chat did not come from disk", receipt.miss_reason or "", "Try it once more.")
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
    host = await home.runtime.host.ready()
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


def table(engine: WithEngine, result: StoreAlone) -> str:
    """The figures for a reader."""
    made = size(result.made_bytes)
    rows = [
        (
            f"Restore of {size(engine.file_bytes)} from disk",
            f"{duration(engine.restore_ms)}   ({engine.restore_ratio:.2f} times the engine's own part)",
        ),
        (f"First save of {made}", f"{duration(result.absorb_ms)}   (at {result.absorb_ratio:.2f} of the speed of cp)"),
        (
            "Put together, page cache warm",
            f"{duration(result.rebuild_ms)}   (at {result.rebuild_ratio:.2f} of the speed of cp)",
        ),
        ("  after a start", duration(result.first_rebuild_ms)),
        (
            "Put together, page cache cold",
            f"{duration(result.cold_rebuild_ms)}   (at {result.cold_rebuild_ratio:.2f} of the speed of cp)",
        ),
        ("Ready for the engine, just saved", duration(result.warm_before_engine_ms)),
        ("CPU of the next turn, by a first save", f"{result.next_turn_cpu_ratio:.2f}"),
        ("Written by it", size(result.next_turn_bytes_written)),
        ("Most that was staged", size(result.peak_staging_bytes)),
    ]
    if result.peak_memory_growth_bytes is not None:
        rows.append(("Most memory taken besides", size(result.peak_memory_growth_bytes)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
