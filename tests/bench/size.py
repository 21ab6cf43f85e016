"""`python -m tests.bench size`: the store at the size of real chats, compared with plain copies of the same bytes.

With the engine: a chat of N tokens restored from disk after a restart, compared with the engine's own restore.
The store alone: a generated file, as of a chat with an 8B model, added, absorbed and rebuilt.
"""

import asyncio
import dataclasses
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import gguf
import httpx2
import numpy as np
import numpy.typing as npt

from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import BenchFailed, BenchSetup, bench_home
from kvchat.cli.terminal import print_err
from kvchat.kvstore import disk
from kvchat.kvstore.memory_files import MEMORY_FOLDER, MemoryRoom
from kvchat.kvstore.savepoint import Bounds, Fingerprint, Predecessor, RestorePlan, SavePoint, StagedFile, Tier, Tokens
from kvchat.kvstore.store import BlockStore
from kvchat.library.memory.demand import staging_room
from kvchat.session.proof import Source
from kvchat.system.paths import resolve_paths
from kvchat.text.formatting import format_size
from tests.bench.servers import TIMEOUT_S, Direct

TOKENS = 16_384  # of the chat with the engine
SIZE_BYTES = 2_150_000_000  # of the file that is made
REPLY_TOKENS = 8
QUESTION = "Which of these notes was the first?"
ROUNDS, LARGE = 3, 4_000_000_000  # a file of this size is measured only once
TURN = 100  # tokens of the next turn
LAYERS, HEADS, HEAD = 32, 8, 128  # of Llama-3.1-8B
ROW = 2 * HEADS * HEAD  # bytes of one token's K, or V, of one layer in f16
TOKEN_BYTES = 2 * LAYERS * ROW  # 128 KB
_F16 = 1
_AT_ONCE = 8192  # rows written at a time
_FINGERPRINT = Fingerprint("bench", "f16", "f16", "auto", 1, "")
_UNBOUNDED = 1 << 60  # bytes
WIDTH, CONTEXT = 256, 131_072  # of the generated model
_Q4_BLOCK, _Q4_BYTES = 32, 18  # Q4_0: an f16 scale and 16 bytes of nibbles for 32 weights


async def measure(options: BenchOptions, made_bytes: int) -> dict[str, Any]:
    """Measure both parts, one after the other, by default with a generated model. Raises KvchatError and OSError.

    A ratio of speeds is above 1 if the store is faster than a plain copy, which is synced where the store syncs.
    `rebuild_…`: rebuilt from blocks in the page cache, over an earlier file; `cold_…`: blocks, or the copied file, not
    in the page cache. `warm_before_engine_ms`: time until a file just saved is ready.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or write_kv_model(Path(folder) / "kv.gguf")
        tokens = options.tokens or TOKENS
        async with bench_home(dataclasses.replace(options, model=model), tokens + 2048, REPLY_TOKENS) as home:
            figures = await _restored(home, tokens)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=resolve_paths().ensure().cache) as folder:
        return figures | await asyncio.to_thread(_Made(Path(folder), made_bytes).measure)


async def _restored(home: BenchSetup, tokens: int) -> dict[str, Any]:
    print_err(f"Reading a chat of {tokens:,} tokens, as long as that takes …")
    chat_id = (await home.runtime.chat.new_conversation()).id
    await home.ask(chat_id, await home.make_notes(tokens))
    home.check_save_count(1)
    times: list[float] = []
    own: list[float] = []
    own_first: list[float] = []
    for number in range(ROUNDS):
        print_err(f"From disk after a restart, round {number + 1} of {ROUNDS} …")
        await home.restart()
        receipt = (await home.ask(chat_id, QUESTION if not number else None, save=False)).receipt
        if receipt.source is not Source.DISK:
            why = receipt.miss_reason.text if receipt.miss_reason else ""
            raise BenchFailed("The chat did not come from disk", why, "Try it once more.")
        times.append(receipt.restore_ms)
        first_ms, third_ms = await _engine_alone(home)
        own_first.append(first_ms)
        own.append(third_ms)
    return {
        "tokens": home.saves[0].tokens,
        "file_bytes": home.saves[0].bytes,
        "restore_ms": median(times),  # lookup, rebuild, and the engine's restore
        "engine_restore_ms": median(own_first),  # the first of a new process, like kvchat's
        "engine_third_restore_ms": median(own),
        "restore_ratio": median(map(truediv, times, own_first)),
        "restore_ratio_to_third": median(map(truediv, times, own)),
    }


async def _engine_alone(home: BenchSetup) -> tuple[float, float]:
    """Return the ms that engines need to restore the chat's slot file, saved by this one.

    A new process, for its first restore, and this one, for its third: it takes less time with each.
    """
    host, choice = await home.runtime.engine.ready(), home.runtime.engine.choice
    assert choice is not None
    name = f"{disk.engine_file_name()}.slot"
    in_memory = MEMORY_FOLDER / name
    if MEMORY_FOLDER.is_dir():
        (host.slot_path / name).symlink_to(in_memory)
    await host.engine.save_slot(name)
    try:
        server = Direct(choice.location, choice.plan, host.slot_path)
        address = await server.open(1)
        try:
            async with httpx2.AsyncClient(timeout=TIMEOUT_S) as client:
                started = time.perf_counter()
                answer = await client.post(f"{address.url}/slots/0?action=restore", json={"filename": name})
                first_ms = _ms_since(started)
            answer.raise_for_status()
        finally:
            await server.close()
        third_ms = 0.0
        for _ in range(2):
            await host.engine.erase_slot()
            started = time.perf_counter()
            await host.engine.restore_slot(name)
            third_ms = _ms_since(started)
        return first_ms, third_ms
    finally:
        (host.slot_path / name).unlink(missing_ok=True)
        in_memory.unlink(missing_ok=True)


def write_slot_file(path: Path, tokens: Tokens) -> int:
    """Write the slot file of these tokens (format: kvchat/kvstore/blocks/parser.py); return its size.

    A token's rows depend only on its position, so a longer file continues a shorter one, like a chat.
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
    """Return the rows of consecutive tokens, all different."""
    rows = np.tile(np.random.default_rng(region).integers(0, 2**63, ROW // 8, dtype=np.int64), (count, 1))
    rows += np.arange(first, first + count, dtype=np.int64)[:, None] * 0x9E3779B97F4A7C1
    return rows.data.cast("B")


class _Made:
    """The store alone, in a folder of its own."""

    def __init__(self, folder: Path, made_bytes: int) -> None:
        self._folder, self._tokens = folder, tuple(range(1, made_bytes // TOKEN_BYTES + 1))
        # Room for one file, not for two: the second overwrites the first. And no more room than in real use.
        most = int(1.1 * (made_bytes + TURN * TOKEN_BYTES))
        self._budget: MemoryRoom = lambda held: min(most, staging_room(held))
        self._open()

    def _open(self) -> None:
        self._store = BlockStore(self._folder / "store", Bounds(_UNBOUNDED, 0), self._budget)
        self._store.restorer.limit_memory(_UNBOUNDED)  # as when an engine is started
        self._slots = self._store.staging.slot_folder()
        self._copy = self._slots / "copy.slot"

    def measure(self) -> dict[str, Any]:
        """Save, absorb and rebuild a generated file; compare with `cp`. Raises BenchFailed, StoreRefused, OSError."""
        original = self._folder / "original.slot"
        print_err(f"The store alone: a made file of {format_size(len(self._tokens) * TOKEN_BYTES)} …")
        made_bytes = write_slot_file(original, self._tokens)
        print_err("Absorbing, beside a plain copy …")
        _run("cat", original)  # into the page cache
        copied_ms = _timed(lambda: self._copied_to_disk(original))
        write = partial(_run, "cp", original)
        first, absorb_ms, absorb_cpu_ms, _ = self._absorbed(self._tokens, write, None)
        print_err("The next turn …")
        longer = (*self._tokens, *range(1, TURN + 1))
        predecessor = Predecessor(first.id, len(self._tokens))  # the engine kept all rows
        second, _, next_cpu_ms, written = self._absorbed(
            longer, lambda path: write_slot_file(path, longer), predecessor
        )
        warm_ms = max(self._warm_ms)
        print_err("Putting it together again, beside a plain copy …")
        self._store.close()
        self._open()
        self._staged(first)
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
        return {
            "made_bytes": made_bytes,
            "absorb_ms": absorb_ms,
            "absorb_ratio": copied_ms / absorb_ms,
            "absorb_cpu_ms": absorb_cpu_ms,
            "next_turn_cpu_ms": next_cpu_ms,
            "next_turn_cpu_ratio": next_cpu_ms / absorb_cpu_ms,
            "next_turn_bytes_written": written,
            "warm_before_engine_ms": warm_ms,
            "rebuild_ms": median(rebuilds),
            "rebuild_ratio": median(map(truediv, copies, rebuilds)),
            "cold_rebuild_ms": median(cold),
            "cold_rebuild_ratio": median(map(truediv, cold_copies, cold)),
        }

    def _absorbed(
        self, tokens: Tokens, write: Callable[[Path], object], predecessor: Predecessor | None
    ) -> tuple[SavePoint, float, float, int]:
        """Return a save point of these tokens, and the ms, CPU ms and bytes written to absorb it."""
        saved = self._slots / f"{disk.engine_file_name()}.slot"
        self._store.saver.prepare_save(len(tokens) * TOKEN_BYTES, "bench", saved, _FINGERPRINT, tokens)
        write(saved)
        size = saved.stat().st_size
        point = self._store.saver.add(
            saved, "bench", _FINGERPRINT, tokens, size, float(len(tokens)), predecessor=predecessor
        )
        before_ms = self._staged(point)
        written_before = self._store.inventory.usage().bytes_written
        cpu, started = time.process_time(), time.perf_counter()
        report = self._store.absorb_pending()
        taken, cpu_taken = _ms_since(started), 1000 * (time.process_time() - cpu)
        if report.refused:
            raise BenchFailed("The made file could not be kept", report.refused[0].text)
        self._warm_ms = (before_ms, self._staged(point))
        return point, taken, cpu_taken, self._store.inventory.usage().bytes_written - written_before

    def _staged(self, point: SavePoint) -> float:
        """Return the ms until the save point's file is ready for an engine, not counting work done beforehand."""
        self._store.restorer.preallocate_file().result()
        started = time.perf_counter()
        staged = self._store.restorer.stage(RestorePlan(point, point.n_tokens, Tier.DISK, point.size), self._slots)
        taken = _ms_since(started)
        if not isinstance(staged, StagedFile):
            raise BenchFailed("The made file could not be put together again", staged.reason.text)
        self._copy = staged.path.resolve().with_name("copy.slot")  # beside it, in memory or on disk
        self._store.restorer.unstage(staged)
        return taken

    def _copied_to_disk(self, original: Path) -> None:
        copy = self._folder / "copy.slot"
        _run("cp", original, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())
        copy.unlink()

    def _copied_to_staging(self, original: Path) -> float:
        """Return the ms of a plain copy to the folder engines restore from."""
        copy = self._copy
        try:
            return _timed(lambda: _run("cp", original, copy))
        finally:
            copy.unlink(missing_ok=True)

    def _drop_caches(self, original: Path) -> None:
        """Drop the file and all blocks from the page cache. If the system cannot, the figures are warm ones."""
        if not hasattr(os, "posix_fadvise"):
            return
        for path in (original, *(file for file in (self._folder / "store").rglob("*") if file.is_file())):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(program: str, *paths: Path) -> None:
    """Run `cp` or `cat`, or do the same in Python if the system has none."""
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


def write_kv_model(out: Path) -> Path:
    """Write a llama model (23 MB) with a token per byte and the KV cache of an 8B model; return its path.

    The weights are random, so its states cannot be compressed.
    """
    writer = gguf.GGUFWriter(out, "llama")
    kind = gguf.TokenType
    space = "\u2581"  # as the tokenizer writes it
    tokens = {"<unk>": kind.UNKNOWN, "<s>": kind.CONTROL, "</s>": kind.CONTROL, space: kind.NORMAL}
    tokens |= {f"<0x{byte:02X}>": kind.BYTE for byte in range(256)}
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(tokens))
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(list(tokens.values()))
    writer.add_add_space_prefix(False)
    writer.add_name("kvchat bench")
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    random, inner = np.random.default_rng(0), HEADS * HEAD
    shapes = [("token_embd", len(tokens), WIDTH), ("output", len(tokens), WIDTH)]
    norms = ["output_norm"]
    for layer in (f"blk.{n}." for n in range(LAYERS)):
        shapes += [(f"{layer}attn_{name}", inner, WIDTH) for name in "qkv"]
        shapes += [(f"{layer}attn_output", WIDTH, inner)]
        shapes += [(f"{layer}ffn_{name}", WIDTH, WIDTH) for name in ("gate", "up", "down")]
        norms += [f"{layer}attn_norm", f"{layer}ffn_norm"]
    for name, rows, columns in shapes:
        weights = _random_q4_0(rows, columns, random)
        writer.add_tensor(f"{name}.weight", weights, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _random_q4_0(rows: int, columns: int, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return the bytes of a Q4_0 matrix, scaled so that products with it keep their magnitude."""
    blocks = columns // _Q4_BLOCK
    pattern = random.integers(0, 256, (257, blocks, _Q4_BYTES), dtype=np.uint8)
    scale = np.float16(1.0 / (4.6 * np.sqrt(columns)))  # nibbles 0 to 15, minus 8, have a standard deviation of 4.6
    pattern[:, :, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return np.resize(pattern.reshape(257, -1), (rows, blocks * _Q4_BYTES))
