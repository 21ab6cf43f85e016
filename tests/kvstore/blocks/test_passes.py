"""How often the store goes over a slot file: read, hashed and written, in bytes, as `positioned` says it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvchat.kvstore import memory_files
from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.savepoint import Cancelled, Miss, Predecessor, RestorePlan, SavePoint, StagedFile, Tier, Tokens
from tests.kvstore.slot_files import line as text
from tests.kvstore.true_files import FULL, HYBRID, WINDOW, Bench, Model

BIG = Model(layers=8, row_size=512)
LENGTH, TURN = 2000, 100
SMALL_SHARE = 0.05  # of the file: what is no row, and its blocks


@dataclass
class Passes:
    read: int = 0
    hashed: int = 0
    written: int = 0

    def since(self) -> tuple[int, int, int]:
        counted = (self.read, self.hashed, self.written)
        self.read = self.hashed = self.written = 0
        return counted


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    counted = Passes()
    read_at, read_into, write_at = positioned.read_at, positioned.read_into, positioned.write_at
    add = positioned.Digests.add

    def reading(file: object, place: memoryview, offset: int) -> None:
        counted.read += len(place)
        read_at(file, place, offset)  # type: ignore[arg-type]

    def reading_into(file: object, places: Sequence[memoryview], offset: int) -> None:
        before = counted.read
        read_into(file, places, offset)  # type: ignore[arg-type]
        counted.read = before + sum(map(len, places))

    def writing(file: object, data: memoryview | bytes, offset: int) -> None:
        counted.written += len(data)
        write_at(file, data, offset)  # type: ignore[arg-type]

    def hashing(self: positioned.Digests, piece: memoryview | bytes) -> None:
        counted.hashed += len(piece)
        add(self, piece)

    monkeypatch.setattr(positioned, "read_at", reading)
    monkeypatch.setattr(positioned, "read_into", reading_into)
    monkeypatch.setattr(positioned, "write_at", writing)
    monkeypatch.setattr(positioned.Digests, "add", hashing)
    monkeypatch.setattr(positioned, "threads", lambda: 1)  # the counters are no more than numbers
    return counted


def absorb(bench: Bench) -> int:
    report = bench.store.absorb_pending()
    assert not report.refused
    return report.bytes_written


def kept(tmp_path: Path, model: Model = BIG) -> tuple[Bench, SavePoint]:
    """A save point on disk, after a restart."""
    bench = Bench(tmp_path / "store", model, memory=10**9)
    point = bench.save("thesis", text(LENGTH))
    bench.reopen()
    return bench, point


def about(counted: int, bytes_: int, file: int) -> bool:
    return bytes_ <= counted <= bytes_ + SMALL_SHARE * file


def stage(bench: Bench, point: SavePoint, tier: Tier) -> StagedFile:
    staged = bench.restorer.stage(RestorePlan(point, point.n_tokens, tier, point.size), bench.slots)
    assert isinstance(staged, StagedFile), staged
    return staged


def test_a_first_save_is_read_hashed_and_written_once(tmp_path: Path, passes: Passes) -> None:
    bench = Bench(tmp_path / "store", BIG, memory=10**9)
    point = bench.take("thesis", text(LENGTH))
    assert passes.since() == (0, 0, 0), "taking it does not read it"
    written = absorb(bench)
    read, hashed, _ = passes.since()
    assert about(read, point.size - BIG.row_bytes, point.size)
    assert about(hashed, LENGTH * BIG.row_bytes, point.size)
    assert about(written, LENGTH * BIG.row_bytes, point.size)


@pytest.mark.parametrize("memory", [10**9, 0])
def test_what_was_just_saved_is_given_without_a_pass(tmp_path: Path, passes: Passes, memory: int) -> None:
    bench = Bench(tmp_path / "store", BIG, memory=memory)
    point = bench.take("thesis", text(LENGTH))
    for _ in range(2):
        passes.since()
        staged = stage(bench, point, Tier.DISK)
        assert passes.since() == (0, 0, 0)
        assert (staged.tier, bench.read(staged)) == (Tier.WARM, BIG.slot_file(text(LENGTH)))
        absorb(bench)


def test_from_disk_it_is_read_hashed_and_written_once(tmp_path: Path, passes: Passes) -> None:
    bench, point = kept(tmp_path)
    passes.since()
    staged = stage(bench, point, Tier.DISK)
    rows = LENGTH * BIG.row_bytes
    read, hashed, written = passes.since()
    assert (read, hashed) == (rows, rows)
    assert written == point.size
    assert bench.read(staged) == BIG.slot_file(text(LENGTH))


def test_of_a_part_no_more_is_read_than_its_blocks(tmp_path: Path, passes: Passes) -> None:
    bench, _ = kept(tmp_path)
    opened: list[Path] = []
    block_at = bench.inventory.blocks.path
    bench.inventory.blocks.path = lambda block: opened.append(block_at(block)) or block_at(block)  # type: ignore
    passes.since()
    assert bench.restored((*text(600), 7)) == BIG.slot_file(text(600))
    read, hashed, written = passes.since()
    assert read == hashed == 3 * 256 * BIG.row_bytes
    assert written == len(BIG.slot_file(text(600)))
    assert max(Counter(opened).values()) <= 3, "each to be announced, and read; a block, not a region of it"


@pytest.mark.skipif(sys.platform != "linux", reason="there is no memory to stage in")
@pytest.mark.parametrize("row_size", [512, 8])
def test_over_pages_that_are_there_it_is_read_to_where_it_belongs(
    tmp_path: Path, passes: Passes, row_size: int
) -> None:
    model = Model(layers=8, row_size=row_size)
    bench, point = kept(tmp_path, model)
    bench.restorer.keep_in_memory(10**9)
    bench.restorer.prepare().result()
    passes.since()
    staged = stage(bench, point, Tier.DISK)
    rows = LENGTH * model.row_bytes
    assert passes.since() == (rows, rows, point.size - rows), "what is no row is written"
    assert bench.read(staged) == model.slot_file(text(LENGTH))
    for share, length in ((1.0, LENGTH - 300), (0.7, LENGTH), (0.2, LENGTH)):
        bench.reopen()
        bench.restorer.keep_in_memory(0)
        bench.restorer.prepare().result()
        bench.store.staging.trim(max_bytes=10**9)
        bench.store.staging.preallocate(int(share * point.size), lambda: False)
        assert bench.restored((*text(length), 7)) == model.slot_file(text(length)), f"over {share} of its size"


@pytest.mark.skipif(sys.platform != "linux", reason="there is no memory to stage in")
def test_there_is_always_one_to_write_over_with_its_pages_at_hand(tmp_path: Path) -> None:
    """When a model's memory is planned, and for the second and third chat: as large as the largest of late."""
    bench = Bench(tmp_path / "store", BIG, memory=10**9)
    points = [bench.save(f"chat {number}", text(LENGTH - number, 5000 * number + 1)) for number in range(3)]
    bench.reopen()
    bench.restorer.prepare().result()
    assert spares(bench) == {}, "nothing is taken before it is known what a model needs"
    bench.restorer.keep_in_memory(10**9)
    for point in points[::-1]:
        bench.restorer.prepare().result()
        ((spare, mapped),) = spares(bench).items()
        assert spare.stat().st_size == points[0].size
        staged = stage(bench, point, Tier.DISK)
        assert staged.path.resolve() == spare
        assert memory_files._mapped[spare] is mapped
        assert bench.read(staged) == BIG.slot_file(point.tokens)
    bench.store.close()
    assert not any(bench.folder.parent in path.parents for path in memory_files._mapped)


def spares(bench: Bench) -> dict[Path, memory_files.Mapped]:
    return {path: memory_files._mapped[path] for path in bench.store.staging._spare}


@pytest.mark.skipif(sys.platform != "linux", reason="there is no memory to stage in")
def test_a_file_that_somebody_cuts_costs_that_restore_and_nothing_else(tmp_path: Path, passes: Passes) -> None:
    bench, point = kept(tmp_path)
    bench.restorer.keep_in_memory(10**9)
    bench.restorer.prepare().result()
    (spare,) = spares(bench)
    asked: list[int] = []

    def cut() -> bool:
        asked.append(1)
        if len(asked) > 2:
            os.truncate(spare, 4096)
        return False

    plan = RestorePlan(point, LENGTH, Tier.DISK, point.size)
    assert isinstance(bench.restorer.stage(plan, bench.slots, cancelled=cut), Miss)
    assert bench.read(stage(bench, point, Tier.DISK)) == BIG.slot_file(text(LENGTH))
    assert bench.inventory.losses() == ()


def test_the_next_turn_costs_what_is_new(tmp_path: Path, passes: Passes) -> None:
    bench = Bench(tmp_path / "store", BIG, memory=10**9)
    first = bench.save("thesis", text(LENGTH))
    second = bench.take("thesis", text(LENGTH + TURN), predecessor=Predecessor(first.id, LENGTH))
    passes.since()
    written = absorb(bench)
    read, hashed, _ = passes.since()
    new, two_blocks = TURN * BIG.row_bytes, 2 * 256 * BIG.row_bytes
    assert about(written, new, second.size)
    assert max(read, hashed) <= new + two_blocks + SMALL_SHARE * second.size
    bench.take("thesis", text(LENGTH + 2 * TURN))  # nothing is known of its rows: all are read, and compared
    passes.since()
    written = absorb(bench)
    assert about(passes.since()[0], second.size, second.size)
    assert about(written, new, second.size)
    bench.reopen()
    assert bench.restored((*text(LENGTH + TURN), 7)) == BIG.slot_file(text(LENGTH + TURN))


def other_rows(model: Model, tokens: Tokens, first: int) -> bytes:
    """The file of these tokens with rows computed anew from some token on, in other batches: they differ a little."""
    own, other = bytearray(model.slot_file(tokens)), model.slot_file((*tokens[:first], 77, *tokens[first + 1 :]))
    same_head = 20 + 4 * len(tokens)
    own[same_head + 24 * len(tokens) :] = other[same_head + 24 * len(tokens) :]
    return bytes(own)


@pytest.mark.parametrize("first", [0, 100, 1300, LENGTH - 1])
def test_a_wrong_belief_is_found_out(tmp_path: Path, first: int) -> None:
    """The last block that is believed to be unchanged is looked at, and rows change to the end or not at all."""
    bench = Bench(tmp_path / "store", BIG, memory=10**9)
    point = bench.save("thesis", text(LENGTH))
    data = other_rows(BIG, text(LENGTH + TURN), first)
    bench.save("thesis", text(LENGTH + TURN), data=data, predecessor=Predecessor(point.id, LENGTH))
    bench.reopen()
    assert bench.restored((*text(LENGTH + TURN), 7)) == data
    assert bench.inventory.verify().is_clean


@pytest.mark.parametrize("model", [FULL, WINDOW, HYBRID])
def test_turns_that_have_grown_come_back_byte_for_byte(tmp_path: Path, model: Model) -> None:
    bench = Bench(tmp_path / "store", model, memory=10**9)
    turns = [text(length) for length in (30, 255, 256, 300, 301, 700)]
    predecessor: Predecessor | None = None
    for tokens in turns:
        point = bench.save("thesis", tokens, predecessor=predecessor)
        predecessor = Predecessor(point.id, len(tokens))
    branch = text(280) + text(300, start=5000)  # some of it was kept, the rest read anew
    assert predecessor is not None
    bench.save("thesis", branch, predecessor=Predecessor(predecessor.point_id, 280))
    bench.reopen()
    for tokens in (*turns, branch):
        assert bench.restored((*tokens, 9999), can_cut=False) == model.slot_file(tokens)


def test_a_wrong_fast_hash_is_the_indexs_fault_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", BIG)
    point = bench.save("thesis", text(600))
    with bench.inventory.index.write() as db:
        db.execute("UPDATE blocks SET xxh3 = ?", (bytes(16),))
    bench.reopen()
    assert bench.read(stage(bench, point, Tier.DISK)) == BIG.slot_file(text(600))
    assert bench.inventory.losses() == ()


def test_staging_ends_between_blocks(tmp_path: Path) -> None:
    bench, point = kept(tmp_path)
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) >= 5

    with pytest.raises(Cancelled):
        bench.restorer.stage(RestorePlan(point, LENGTH, Tier.DISK, point.size), bench.slots, cancelled=cancelled)
    assert list(bench.slots.iterdir()) == []
    assert bench.read(stage(bench, point, Tier.DISK)) == BIG.slot_file(text(LENGTH))
