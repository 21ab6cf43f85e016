"""Kills, crashes and bad disks: never wrong bytes, never more than a colder start.

`python -m tests.kvstore.test_store_damage STORE QUOTA` uses a store until stopped. It reads seeds and forks a child for
each, so that imports are paid for once. It prints "pid N" when a child begins, a number after each round, and "ended S"
with the status from os.waitpid.
"""

import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvchat.kvstore import disk
from kvchat.kvstore.blocks import absorb, positioned
from kvchat.kvstore.blocks.block_files import BlockFiles, WrittenBlock
from kvchat.kvstore.index.index import IndexFailed
from kvchat.kvstore.savepoint import AbsorbReport, NotSaved, StoreRefused
from kvchat.text.reasons import Reason, ReasonCode
from tests.kvstore import mutating
from tests.kvstore.store_bench import FULL, HYBRID, Bench, is_damage, token_range

REPOSITORY = Path(__file__).parents[2]
KILLS = 100
QUOTA = 1_000_000  # of which the index takes more than half
OWNERS = ("thesis", "letter", "recipe")


def random_tokens(dice: random.Random) -> tuple[int, ...]:
    return token_range(40) + token_range(dice.randrange(1, 90), 100 * dice.randrange(1, 4))


def hammer(folder: Path, seed: int, quota: int) -> None:
    """Use the store until killed; exit with a message if it gives wrong bytes."""
    dice = random.Random(seed)
    bench = Bench(folder, HYBRID, quota=quota, memory=100_000 * (seed % 2))
    for number in count():
        try:
            bench.add(dice.choice(OWNERS), random_tokens(dice))
            bench.store.absorb_pending()
            miss = mutating.restore(bench, (*random_tokens(dice), 7), can_cut=False)
            if miss and is_damage(miss.reason):
                sys.exit(f"found damage: {miss.reason.english}")
            if dice.random() < 0.2:
                bench.inventory.prune(bench.inventory.plan_prune(quota // 3))
            if dice.random() < 0.1:
                bench.inventory.delete_conversation(dice.choice(OWNERS))
        except StoreRefused as refusal:
            if "quota" not in str(refusal):
                sys.exit(f"refused: {refusal}")
        write_line(number)


def write_line(value: object) -> None:
    """Write a line at once: a process may be killed between the two writes of an unbuffered `print`."""
    os.write(1, f"{value}\n".encode())


def hammer_for_each_line(folder: Path, quota: int) -> None:
    for line in sys.stdin:
        pid = os.fork()  # of a process without threads
        if pid == 0:
            try:
                hammer(folder, int(line), quota)
            finally:
                os._exit(1)
        write_line(f"pid {pid}")
        write_line(f"ended {os.waitpid(pid, 0)[1]}")


def kill_one(forker: subprocess.Popen[str], seed: int, dice: random.Random) -> None:
    """Let the forker's child hammer the store, and kill it some time after its first round."""
    assert forker.stdin is not None
    assert forker.stdout is not None
    print(seed, file=forker.stdin, flush=True)
    first, second = sorted([forker.stdout.readline(), forker.stdout.readline()])  # in either order
    assert first.strip().isdigit(), f"the child ended by itself: {first}"
    for _ in range(dice.randrange(3)):
        assert forker.stdout.readline().strip().isdigit()
    signal.sigtimedwait([], dice.random() * 0.01)  # at any time between two rounds
    os.kill(int(second.removeprefix("pid ")), signal.SIGKILL)
    while (line := forker.stdout.readline()).strip().isdigit():
        pass
    assert line == f"ended {int(signal.SIGKILL)}\n"


@pytest.mark.slow
def test_killed_a_hundred_times_it_verifies_clean(tmp_path: Path) -> None:
    folder, dice = tmp_path / "store", random.Random(3)
    save_points = 0
    command = [sys.executable, "-m", "tests.kvstore.test_store_damage", str(folder), str(QUOTA)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True) as forker:
        for seed in range(KILLS):
            kill_one(forker, seed, dice)
            if seed % 10 == 9:
                bench = Bench(folder, HYBRID, quota=QUOTA)
                report = bench.inventory.verify()
                assert report.is_clean, report
                save_points += bench.inventory.usage().save_points
                bench.store.close()
        assert forker.stdin is not None
        forker.stdin.close()
        assert forker.wait() == 0
    assert save_points > 0
    assert list((folder / "blocks" / "temporary").iterdir()) == []
    assert list((folder / "staging").iterdir()) == []


def flip(data: bytearray) -> None:
    data[5] ^= 1


def cut(data: bytearray) -> None:
    del data[-1]


def extend(data: bytearray) -> None:
    data.append(0)


@pytest.mark.parametrize("damage", [flip, cut, extend, None])
def test_a_bad_block_is_deleted_with_everything_that_needs_it(
    bench: Bench, damage: Callable[[bytearray], None] | None
) -> None:
    bench.save("thesis", token_range(300))
    bench.save("letter", token_range(280) + token_range(20, start=900))
    bench.save("recipe", token_range(300, start=5000))
    first = max(bench.block_files(), key=lambda path: path.stat().st_size)
    data = bytearray(first.read_bytes())
    if damage:
        damage(data)
        first.write_bytes(data)
    else:
        first.unlink()
    report = bench.inventory.verify()
    assert report.bad_blocks == 1
    assert len(report.losses) in (1, 2)  # the recipe, or those two that share their beginning
    assert bench.inventory.take_losses() == ()
    assert not first.exists()
    assert bench.inventory.verify().is_clean
    bench.save("thesis", token_range(300))
    assert bench.restore(token_range(310)) == FULL.slot_file(token_range(300))


def test_verify_corrects_wrong_sizes_and_drops_records_of_deleted_blocks(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", HYBRID)
    bench.save("thesis", token_range(300))
    before = bench.inventory.usage().conversations
    with bench.inventory.index.write() as db:
        db.execute("UPDATE blocks SET disk_bytes = 7")
        query = "INSERT INTO blocks (name, size, residue, disk_bytes, xxh3) VALUES (?, 10, 0, 0, x'')"
        db.execute(query, (bytes(32),))  # as if killed between the deletions of its file and of this record
    assert bench.inventory.verify().is_clean
    assert bench.inventory.usage().conversations == before
    assert bench.restore(token_range(400), can_cut=False) == HYBRID.slot_file(token_range(300))


def test_a_save_that_the_index_refuses_leaves_no_file(roomy: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise IndexFailed("database or disk is full")

    monkeypatch.setattr("kvchat.kvstore.staging.Staging.is_in_memory", fail)  # the last step of the transaction
    with pytest.raises(NotSaved):
        roomy.add("thesis", token_range(300))
    assert not roomy.files_in_memory()
    assert roomy.inventory.usage().save_points == 0


@pytest.mark.parametrize(("rounds", "seed"), [(30, 11), pytest.param(400, 12, marks=pytest.mark.slow)])
def test_damaged_stores_are_no_worse_than_empty_ones(rounds: int, seed: int) -> None:
    """`tests/soak` runs more rounds."""
    assert mutating.run(rounds, seed)["restored"] > 3 * rounds // 10


# Blocks written for a save point that came to nothing count toward the size, and are deleted

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
def at_third_block(monkeypatch: pytest.MonkeyPatch) -> AtThirdBlock:
    """Return a function that runs a callback when the third block is written."""

    def install(action: Callable[[], None]) -> None:
        commit, commits = BlockFiles.commit, iter(range(1_000_000))

        def commit_after_action(self: BlockFiles, written: WrittenBlock) -> int:
            if next(commits) == 2:
                action()
            return commit(self, written)

        monkeypatch.setattr(BlockFiles, "commit", commit_after_action)
        monkeypatch.setattr(positioned, "thread_count", lambda: 1)  # one block after the other
        monkeypatch.setattr(absorb, "ThreadPoolExecutor", SynchronousExecutor)

    return install


@pytest.mark.parametrize("everything", [True, False])
def test_a_chat_deleted_while_it_is_absorbed_leaves_nothing(
    big: Bench, at_third_block: AtThirdBlock, everything: bool
) -> None:
    def delete() -> None:
        assert big.inventory.usage().physical_bytes == disk.tree_size(big.folder), "unfinished blocks count"
        big.inventory.delete_all() if everything else big.inventory.delete_conversation("thesis")

    at_third_block(delete)
    big.add("thesis", token_range(2000))
    assert big.store.absorb_pending() == AbsorbReport(0, ()), "deleted on purpose: nothing is reported"
    assert big.block_files() == []
    assert big.inventory.usage().physical_bytes == disk.tree_size(big.folder)


def test_a_full_disk_leaves_no_blocks(big: Bench, at_third_block: AtThirdBlock) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    big.save("letter", token_range(300))
    before = big.block_files()
    at_third_block(fail)
    big.add("thesis", token_range(2000, start=9000))
    assert big.store.absorb_pending().refused == (Reason(ReasonCode.DISK_FULL),)
    assert big.block_files() == before
    assert big.inventory.usage().physical_bytes == disk.tree_size(big.folder)


def test_blocks_of_a_killed_process_are_deleted_at_the_next_start(
    big: Bench, at_third_block: AtThirdBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    at_third_block(kill)
    big.add("thesis", token_range(2000))
    with monkeypatch.context() as dead:
        dead.setattr("kvchat.kvstore.inventory.Inventory.delete_unindexed", lambda *_: 0)
        with pytest.raises(Killed):
            big.store.absorb_pending()
    assert len(big.block_files()) == 2
    other = big.open()
    assert big.block_files() == []
    other.close()


if __name__ == "__main__":
    hammer_for_each_line(Path(sys.argv[1]), int(sys.argv[2]))
