"""Bytes that the store reads, hashes and writes for a slot file (see `positioned`), and the memory it needs."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from kvchat.kvstore import memory_files
from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.savepoint import Cancelled, Predecessor, RestoreMiss, RestorePlan, SavePoint, Tier, Tokens
from tests.kvstore.store_bench import BIG, Bench, Model, token_range

LENGTH, TURN = 2000, 100
BIG_FILE, BIG_ROWS = BIG.slot_file(token_range(LENGTH)), LENGTH * BIG.row_bytes
SMALL_SHARE = 0.05  # of the file: what is no row, and its blocks
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has files in memory")


class IoCounts:
    def __init__(self) -> None:
        self.read = self.hashed = self.written = 0

    def reset(self) -> tuple[int, int, int]:
        """Return the bytes read, hashed and written since the last call."""
        counts = (self.read, self.hashed, self.written)
        self.read = self.hashed = self.written = 0
        return counts


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> IoCounts:
    counts = IoCounts()

    def count(owner: Any, name: str, kind: str, size: Callable[[Any], int]) -> None:
        original = getattr(owner, name)

        def counting(first: Any, data: Any, *rest: Any) -> None:
            before = getattr(counts, kind)
            original(first, data, *rest)
            setattr(counts, kind, before + size(data))  # calls of each other are counted once

        monkeypatch.setattr(owner, name, counting)

    count(positioned, "read_at", "read", len)
    count(positioned, "read_into", "read", lambda buffers: sum(map(len, buffers)))
    count(positioned, "write_at", "written", len)

    class Hash:
        def __init__(self, data: bytes = b"") -> None:
            self._hash = xxh3_128(data)
            self.digest = self._hash.digest

        def update(self, data: memoryview) -> None:
            counts.hashed += len(data)
            self._hash.update(data)

    xxh3_128 = xxhash.xxh3_128
    monkeypatch.setattr(xxhash, "xxh3_128", Hash)
    monkeypatch.setattr(positioned, "thread_count", lambda: 1)  # the counters are plain numbers
    return counts


@pytest.fixture
def big(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store", BIG, memory=10**9)


def absorb(bench: Bench) -> int:
    """Return the bytes written."""
    before = bench.inventory.usage().bytes_written
    assert not bench.store.absorb_pending().refused
    return bench.inventory.usage().bytes_written - before


def save_and_reopen(bench: Bench) -> SavePoint:
    point = bench.save("thesis", token_range(LENGTH))
    bench.reopen()
    return point


def prepare_spare_file(bench: Bench) -> None:
    bench.restorer.limit_memory(10**9)
    bench.restorer.preallocate_file().result()


def about(counted: int, expected: int, file: int) -> bool:
    return expected <= counted <= expected + SMALL_SHARE * file


def test_a_first_save_is_read_hashed_and_written_once(big: Bench, counts: IoCounts) -> None:
    point = big.add("thesis", token_range(LENGTH))
    assert counts.reset() == (0, 0, 0), "adding does not read it"
    written = absorb(big)
    read, hashed, _ = counts.reset()
    assert about(read, point.size - BIG.row_bytes, point.size)
    assert about(hashed, BIG_ROWS, point.size)
    assert about(written, BIG_ROWS, point.size)


@pytest.mark.parametrize("memory", [10**9, 0])
def test_a_warm_file_is_restored_without_reading_it(tmp_path: Path, counts: IoCounts, memory: int) -> None:
    bench = Bench(tmp_path / "store", BIG, memory=memory)
    point = bench.add("thesis", token_range(LENGTH))
    for _ in range(2):  # before and after absorbing
        counts.reset()
        staged = bench.stage_point(point)
        assert counts.reset() == (0, 0, 0)
        assert (staged.tier, bench.read(staged)) == (Tier.WARM, BIG_FILE)
        absorb(bench)


def test_a_restore_from_disk_is_read_hashed_and_written_once(big: Bench, counts: IoCounts) -> None:
    point = save_and_reopen(big)
    counts.reset()
    staged = big.stage_point(point)
    assert counts.reset() == (BIG_ROWS, BIG_ROWS, point.size)
    assert big.read(staged) == BIG_FILE


def test_a_part_reads_only_its_blocks(big: Bench, counts: IoCounts) -> None:
    save_and_reopen(big)
    opened: list[Path] = []
    block_path = big.inventory.blocks.path
    big.inventory.blocks.path = lambda block: opened.append(block_path(block)) or block_path(block)  # type: ignore
    counts.reset()
    expected = BIG.slot_file(token_range(600))
    assert big.restore((*token_range(600), 7)) == expected
    assert counts.reset() == (3 * 256 * BIG.row_bytes, 3 * 256 * BIG.row_bytes, len(expected))
    assert max(Counter(opened).values()) <= 3, "each is prefetched and read once, not once per region"


@linux
@pytest.mark.parametrize("row_size", [512, 8])
def test_rows_are_read_into_existing_pages(tmp_path: Path, counts: IoCounts, row_size: int) -> None:
    model = Model(layers=8, row_size=row_size)
    bench = Bench(tmp_path / "store", model, memory=10**9)
    point = save_and_reopen(bench)
    prepare_spare_file(bench)
    counts.reset()
    staged = bench.stage_point(point)
    rows = LENGTH * model.row_bytes
    assert counts.reset() == (rows, rows, point.size - rows), "all but rows is written"
    assert bench.read(staged) == model.slot_file(token_range(LENGTH))
    for share, length in ((1.0, LENGTH - 300), (0.7, LENGTH), (0.2, LENGTH)):
        bench.reopen()
        bench.restorer.limit_memory(0)
        bench.restorer.preallocate_file().result()
        bench.store.staging.trim(max_bytes=10**9)
        bench.store.staging.preallocate(int(share * point.size), lambda: False)
        restored = bench.restore((*token_range(length), 7))
        assert restored == model.slot_file(token_range(length)), f"over {share} of its size"


@linux
def test_a_spare_file_with_mapped_pages_is_always_ready(big: Bench) -> None:
    points = [big.save(f"chat {number}", token_range(LENGTH - number, 5000 * number + 1)) for number in range(3)]
    big.reopen()
    big.restorer.preallocate_file().result()
    assert big.store.staging._spare_files == [], "nothing is taken before it is known what a model needs"
    big.restorer.limit_memory(10**9)
    for point in points[::-1]:
        big.restorer.preallocate_file().result()
        (spare,) = big.store.staging._spare_files
        mapped = memory_files._mapped[spare]
        assert spare.stat().st_size == points[0].size
        staged = big.stage_point(point)
        assert staged.path.resolve() == spare
        assert memory_files._mapped[spare] is mapped
        assert big.read(staged) == BIG.slot_file(point.tokens)
    big.store.close()
    assert not any(big.folder.parent in path.parents for path in memory_files._mapped)


@linux
def test_a_truncated_file_in_memory_fails_that_restore_alone(big: Bench, counts: IoCounts) -> None:
    point = save_and_reopen(big)
    prepare_spare_file(big)
    (spare,) = big.store.staging._spare_files
    polls: list[None] = []

    def truncate() -> bool:
        polls.append(None)
        if len(polls) > 2:
            os.truncate(spare, 4096)
        return False

    plan = RestorePlan(point, LENGTH, Tier.DISK, point.size)
    assert isinstance(big.restorer.stage(plan, big.slots, cancelled=truncate), RestoreMiss)
    assert big.read(big.stage_point(point)) == BIG_FILE
    assert big.inventory.take_losses() == ()


def test_a_next_turn_reads_and_writes_what_is_new(big: Bench, counts: IoCounts) -> None:
    first = big.save("thesis", token_range(LENGTH))
    second = big.add("thesis", token_range(LENGTH + TURN), predecessor=Predecessor(first.id, LENGTH))
    counts.reset()
    written = absorb(big)
    read, hashed, _ = counts.reset()
    new, two_blocks = TURN * BIG.row_bytes, 2 * 256 * BIG.row_bytes
    assert about(written, new, second.size)
    assert max(read, hashed) <= new + two_blocks + SMALL_SHARE * second.size
    big.add("thesis", token_range(LENGTH + 2 * TURN))  # without a predecessor all rows are read and compared
    counts.reset()
    written = absorb(big)
    assert about(counts.reset()[0], second.size, second.size)
    assert about(written, new, second.size)
    big.reopen()
    assert big.restore((*token_range(LENGTH + TURN), 7)) == BIG.slot_file(token_range(LENGTH + TURN))


def recomputed(model: Model, tokens: Tokens, first: int) -> bytes:
    """Return the file of these tokens with different rows from token `first` on, as another batch size computes."""
    own, other = bytearray(model.slot_file(tokens)), model.slot_file((*tokens[:first], 77, *tokens[first + 1 :]))
    same_head = 20 + 4 * len(tokens)
    own[same_head + 24 * len(tokens) :] = other[same_head + 24 * len(tokens) :]
    return bytes(own)


@pytest.mark.parametrize("first", [0, 100, 1300, LENGTH - 1])
def test_wrongly_assumed_unchanged_rows_are_noticed(big: Bench, first: int) -> None:
    """The last block assumed unchanged is compared, and rows change to the end or not at all."""
    point = big.save("thesis", token_range(LENGTH))
    data = recomputed(BIG, token_range(LENGTH + TURN), first)
    big.save("thesis", token_range(LENGTH + TURN), data=data, predecessor=Predecessor(point.id, LENGTH))
    big.reopen()
    assert big.restore((*token_range(LENGTH + TURN), 7)) == data
    assert big.inventory.verify().is_clean


def test_a_wrong_xxh3_in_the_index_loses_nothing(big: Bench) -> None:
    point = big.save("thesis", token_range(LENGTH))
    with big.inventory.index.write() as db:
        db.execute("UPDATE blocks SET xxh3 = ?", (bytes(16),))
    big.reopen()
    assert big.read(big.stage_point(point)) == BIG_FILE
    assert big.inventory.take_losses() == ()


@pytest.mark.parametrize("polls", [1, 5])
def test_a_cancelled_restore_leaves_no_file(big: Bench, polls: int) -> None:
    point = save_and_reopen(big)
    asked: list[None] = []

    def cancelled() -> bool:
        asked.append(None)
        return len(asked) >= polls

    with pytest.raises(Cancelled):
        big.restorer.stage(RestorePlan(point, LENGTH, Tier.DISK, point.size), big.slots, cancelled=cancelled)
    assert list(big.slots.iterdir()) == []
    assert big.read(big.stage_point(point)) == BIG_FILE
