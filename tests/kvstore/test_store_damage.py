"""What processes, crashes and bad disks do to a block store: never wrong bytes, never more than a colder start."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.kvstore import disk
from kvchat.kvstore.index.index import IndexFailed
from kvchat.kvstore.savepoint import NotSaved, RestorePlan, StagedFile
from tests.kvstore import mutating
from tests.kvstore.slot_files import line as text
from tests.kvstore.true_files import FULL, HYBRID, Bench, Model

REPOSITORY = Path(__file__).parents[2]
KILLS, MUTATIONS = 100, 1000
QUOTA = 1_000_000  # of which the index takes more than half


def killed(forker: subprocess.Popen[str], seed: int, dice: random.Random) -> None:
    """Let the forker's child hammer the store, and kill it some time after its first round."""
    assert forker.stdin is not None
    assert forker.stdout is not None
    print(seed, file=forker.stdin, flush=True)
    first, second = sorted([forker.stdout.readline(), forker.stdout.readline()])  # in either order
    assert first.strip().isdigit(), f"the child ended by itself: {first}"
    for _ in range(dice.randrange(3)):
        assert forker.stdout.readline().strip().isdigit()
    signal.sigtimedwait([], dice.random() * 0.01)  # some place between two rounds
    os.kill(int(second.removeprefix("pid ")), signal.SIGKILL)
    while (line := forker.stdout.readline()).strip().isdigit():
        pass
    assert line == f"ended {int(signal.SIGKILL)}\n"


@pytest.mark.slow
def test_killed_a_hundred_times_it_verifies_clean(tmp_path: Path) -> None:
    folder, dice = tmp_path / "store", random.Random(3)
    kept = 0
    command = [sys.executable, "-m", "tests.kvstore.hammering", str(folder), "fork", str(QUOTA)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True) as forker:
        for seed in range(KILLS):
            killed(forker, seed, dice)
            if seed % 10 == 9:
                bench = Bench(folder, HYBRID, quota=QUOTA)
                report = bench.inventory.verify()
                assert report.is_clean, report
                kept += bench.inventory.usage().save_points
                bench.store.close()
        assert forker.stdin is not None
        forker.stdin.close()
        assert forker.wait() == 0
    assert kept > 0
    assert list((folder / "blocks" / "temporary").iterdir()) == []
    assert list((folder / "staging").iterdir()) == []


MUTATIONS_OF = ("flip", "truncate", "empty", "delete", "swap", "append")


def mutate(dice: random.Random, files: list[Path]) -> str:
    path, how = dice.choice(files), dice.choice(MUTATIONS_OF)
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
    elif how == "truncate":
        path.write_bytes(data[: dice.randrange(len(data))])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "delete":
        path.unlink()
    elif how == "append":
        path.write_bytes(data + b"x")
    else:
        other = dice.choice([one for one in files if one != path])
        path.write_bytes(other.read_bytes())
    return how


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one, so that nothing waits for the disk."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_a_thousand_mutated_stores_never_give_wrong_bytes(quick_folder: Path) -> None:
    model, dice = Model(layers=1, row_size=16), random.Random(4)
    bench = Bench(quick_folder / "store", model)
    turns = [text(20), text(45), text(30) + text(20, start=500)]
    for tokens in turns:
        bench.save("thesis", tokens)
    bench.store.close()
    pristine = quick_folder / "pristine"
    shutil.copytree(bench.folder, pristine)
    told = misses = 0
    for _ in range(MUTATIONS):
        shutil.rmtree(bench.folder)
        shutil.copytree(pristine, bench.folder)
        mutate(dice, bench.block_files())
        bench.use(bench.open())
        bench.slots = bench.store.staging.slot_folder()
        for tokens in (*turns, text(33)):
            plan = bench.find((*tokens, 99))
            staged = bench.restorer.stage(plan, bench.slots) if isinstance(plan, RestorePlan) else plan
            if isinstance(staged, StagedFile):
                held = staged.save_point.tokens[: staged.n_tokens]
                assert bench.read(staged) == model.slot_file(held)
                assert isinstance(plan, RestorePlan)
                assert held[: plan.tokens_used] == tokens[: plan.tokens_used]
            else:
                misses += 1
                assert list(bench.slots.iterdir()) == []
        lost = bench.inventory.losses()
        assert bench.inventory.losses() == ()  # told once
        report = bench.inventory.verify()  # finds what no restore has read, such as a byte too many
        assert bool(lost) + bool(report.losses) == 1
        told += 1
        bench.store.close()
    assert misses > 100
    assert told == MUTATIONS


def test_a_bad_block_is_deleted_with_everything_that_needs_it(bench: Bench) -> None:
    bench.save("thesis", text(300))
    bench.save("letter", text(280) + text(20, start=900))
    bench.save("recipe", text(300, start=5000))
    first = max(bench.block_files(), key=lambda path: path.stat().st_size)
    flipped = bytearray(first.read_bytes())
    flipped[5] ^= 1
    first.write_bytes(flipped)
    report = bench.inventory.verify()
    assert report.bad_blocks == 1
    assert len(report.losses) in (1, 2)  # the recipe, or those two that share their beginning
    assert bench.inventory.losses() == ()
    assert not first.exists()
    assert bench.inventory.verify().is_clean
    bench.save("thesis", text(300))
    assert bench.restored(text(310)) == FULL.slot_file(text(300))


def test_verifying_puts_wrong_sums_right(bench: Bench) -> None:
    bench.save("thesis", text(300))
    bench.save("letter", text(280) + text(20, start=900))
    before = bench.inventory.usage()
    with bench.inventory.index.write() as db:
        db.execute("UPDATE blocks SET disk_bytes = 7, holders = 3")
        db.execute("UPDATE conversations SET held_bytes = 1, exclusive_bytes = 2")
        db.execute("UPDATE holdings SET uses = 5")
        db.execute("UPDATE sums SET row_bytes = 1, disk_bytes = 2")
    assert bench.inventory.usage().conversations != before.conversations
    assert bench.inventory.verify().is_clean
    after = bench.inventory.usage()
    assert (after.conversations, after.unique_rows_bytes) == (before.conversations, before.unique_rows_bytes)
    assert after.physical_bytes == disk.tree_size(bench.folder)
    bench.inventory.delete_conversation("thesis")
    assert bench.inventory.usage().physical_bytes == disk.tree_size(bench.folder)


def test_killed_between_a_blocks_deletion_and_its_record_it_verifies_clean(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", HYBRID)
    bench.save("thesis", text(300))
    with bench.inventory.index.write() as db:
        db.execute(
            "INSERT INTO blocks (name, size, residue, disk_bytes, xxh3) VALUES (?, 10, 0, 0, ?)", (bytes(32), b"")
        )  # its file is gone
    assert bench.inventory.verify().is_clean
    assert bench.restored(text(400), can_cut=False) == HYBRID.slot_file(text(300))


def test_a_save_that_the_index_refuses_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path / "store", memory=10**9)

    def refuse(*_: object, **__: object) -> None:
        raise IndexFailed("database or disk is full")

    monkeypatch.setattr("kvchat.kvstore.staging.Staging.has_warm", refuse)  # the last thing in the transaction
    with pytest.raises(NotSaved):
        bench.take("thesis", text(300))
    assert not list((tmp_path / "memory").glob("*/*"))
    assert bench.inventory.usage().save_points == 0


def test_some_mutated_stores_are_no_worse_than_empty_ones() -> None:
    seen = mutating.run(30, 11)
    assert seen["restored"] > 10


@pytest.mark.slow
def test_hundreds_of_mutated_stores_are_no_worse_than_empty_ones() -> None:
    """`packaging/soak` has as many as it is asked for."""
    seen = mutating.run(400, 12)
    assert seen["restored"] > 120
