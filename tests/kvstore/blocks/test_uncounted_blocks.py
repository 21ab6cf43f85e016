"""Blocks nobody counts: written for a save point that came to nothing. They are counted, and they go."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from kvchat.kvstore import disk
from kvchat.kvstore.blocks import absorb, positioned
from kvchat.kvstore.blocks.block_files import BlockFiles, WrittenBlock
from kvchat.kvstore.savepoint import AbsorbReport
from kvchat.text.reasons import Reason, ReasonCode
from tests.kvstore.slot_files import line as text
from tests.kvstore.true_files import FULL, Bench, Model

BIG = Model(layers=4, row_size=384)


def at_the_third_block(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    put, puts = BlockFiles.commit, iter(range(1_000_000))

    def put_and_see(self: BlockFiles, written: WrittenBlock) -> int:
        if next(puts) == 2:
            happens()
        return put(self, written)

    monkeypatch.setattr(BlockFiles, "commit", put_and_see)
    monkeypatch.setattr(positioned, "threads", lambda: 1)  # one block after the other
    monkeypatch.setattr(absorb, "ThreadPoolExecutor", AtOnce)


class AtOnce(Executor):
    def __init__(self, *_: object) -> None:
        pass

    def submit(self, do: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(do(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("everything", [True, False])
def test_a_chat_deleted_while_it_is_absorbed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    bench = Bench(tmp_path / "store", BIG)
    delete = bench.inventory.delete_all if everything else lambda: bench.inventory.delete_conversation("thesis")
    at_the_third_block(monkeypatch, lambda: print(delete()))
    bench.take("thesis", text(2000))
    assert bench.store.absorb_pending() == AbsorbReport(0, 0, ()), "and nothing is said: it is gone on purpose"
    assert bench.block_files() == []
    assert bench.inventory.usage().physical_bytes == disk.tree_size(bench.folder)


def test_a_disk_that_fills_half_way_keeps_nothing_of_the_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path / "store", BIG)
    bench.save("letter", text(300))
    before = bench.block_files()
    at_the_third_block(monkeypatch, lambda: fail(errno.ENOSPC))
    bench.take("thesis", text(2000, start=9000))
    assert bench.store.absorb_pending().refused == (Reason(ReasonCode.DISK_FULL),)
    assert bench.block_files() == before
    assert bench.inventory.usage().physical_bytes == disk.tree_size(bench.folder)


def test_what_is_being_written_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path / "store", BIG)
    counted: list[tuple[int, int]] = []
    at_the_third_block(
        monkeypatch, lambda: counted.append((bench.inventory.usage().physical_bytes, disk.tree_size(bench.folder)))
    )
    bench.save("thesis", text(2000))
    assert len(bench.block_files()) > 3
    ((said, there),) = counted
    assert said == there


def test_what_a_killed_process_has_written_is_swept_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "store", BIG)

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    at_the_third_block(monkeypatch, kill)
    bench.take("thesis", text(2000))
    with monkeypatch.context() as dead:
        dead.setattr("kvchat.kvstore.inventory.Inventory.delete_unknown", lambda *_: 0)
        with pytest.raises(Killed):
            bench.store.absorb_pending()
    assert len(bench.block_files()) == 2
    other = bench.open()
    assert bench.block_files() == []
    other.close()


def test_a_damaged_index_leaves_no_blocks_behind(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", FULL)
    bench.save("thesis", text(300))
    bench.store.close()
    (bench.folder / "index.db").write_bytes(os.urandom(20_000))
    bench.use(bench.open())
    assert bench.block_files() == []


def test_deleting_everything_takes_what_another_process_left_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", FULL)
    bench.save("thesis", text(300))
    stray = next(iter(bench.block_files()))
    copy = stray.with_name(stray.name[:2] + "0" * 62)
    shutil.copy(stray, copy)
    assert bench.inventory.delete_all() > 0
    assert bench.block_files() == []
    assert bench.inventory.usage().save_points == 0
