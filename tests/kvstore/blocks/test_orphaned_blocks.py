"""Blocks written for a save point that came to nothing: they count toward the store's size, and are deleted."""

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
from tests.kvstore.store_bench import Bench, Model, token_range

AtThirdBlock = Callable[[Callable[[], None]], None]


class SynchronousExecutor(Executor):
    def __init__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store", Model(layers=4, row_size=384))


@pytest.fixture
def at_third_block(monkeypatch: pytest.MonkeyPatch) -> AtThirdBlock:
    """Return a function that lets something happen when the third block is written."""

    def install(action: Callable[[], None]) -> None:
        commit, commits = BlockFiles.commit, iter(range(1_000_000))

        def commit_after_action(self: BlockFiles, written: WrittenBlock) -> int:
            if next(commits) == 2:
                action()
            return commit(self, written)

        monkeypatch.setattr(BlockFiles, "commit", commit_after_action)
        monkeypatch.setattr(positioned, "threads", lambda: 1)  # one block after the other
        monkeypatch.setattr(absorb, "ThreadPoolExecutor", SynchronousExecutor)

    return install


@pytest.mark.parametrize("everything", [True, False])
def test_a_chat_deleted_while_it_is_absorbed_leaves_nothing(
    bench: Bench, at_third_block: AtThirdBlock, everything: bool
) -> None:
    delete = bench.inventory.delete_all if everything else lambda: bench.inventory.delete_conversation("thesis")
    at_third_block(lambda: print(delete()))
    bench.add("thesis", token_range(2000))
    assert bench.store.absorb_pending() == AbsorbReport(0, ()), "deleted on purpose: nothing is reported"
    assert bench.block_files() == []
    assert bench.inventory.usage().physical_bytes == disk.tree_size(bench.folder)


def test_a_full_disk_leaves_no_blocks(bench: Bench, at_third_block: AtThirdBlock) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bench.save("letter", token_range(300))
    before = bench.block_files()
    at_third_block(fail)
    bench.add("thesis", token_range(2000, start=9000))
    assert bench.store.absorb_pending().refused == (Reason(ReasonCode.DISK_FULL),)
    assert bench.block_files() == before
    assert bench.inventory.usage().physical_bytes == disk.tree_size(bench.folder)


def test_unfinished_blocks_count(bench: Bench, at_third_block: AtThirdBlock) -> None:
    sizes: list[tuple[int, int]] = []
    at_third_block(lambda: sizes.append((bench.inventory.usage().physical_bytes, disk.tree_size(bench.folder))))
    bench.save("thesis", token_range(2000))
    assert len(bench.block_files()) > 3
    ((reported, actual),) = sizes
    assert reported == actual


def test_blocks_of_a_killed_process_are_deleted_at_the_next_start(
    bench: Bench, at_third_block: AtThirdBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    at_third_block(kill)
    bench.add("thesis", token_range(2000))
    with monkeypatch.context() as dead:
        dead.setattr("kvchat.kvstore.inventory.Inventory.delete_unknown", lambda *_: 0)
        with pytest.raises(Killed):
            bench.store.absorb_pending()
    assert len(bench.block_files()) == 2
    other = bench.open()
    assert bench.block_files() == []
    other.close()


def test_a_damaged_index_leaves_no_blocks(bench: Bench) -> None:
    bench.save("thesis", token_range(300))
    bench.store.close()
    (bench.folder / "index.db").write_bytes(os.urandom(20_000))
    bench.use(bench.open())
    assert bench.block_files() == []


def test_delete_all_includes_unknown_blocks(bench: Bench) -> None:
    bench.save("thesis", token_range(300))
    known = bench.block_files()[0]
    shutil.copy(known, known.with_name(known.name[:2] + "0" * 62))
    assert bench.inventory.delete_all() > 0
    assert bench.block_files() == []
    assert bench.inventory.usage().save_points == 0
