"""What real processes, threads and disks do to a store: killed half-way, two at once, no space left."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kvchat.kvstore import disk
from kvchat.kvstore.manifest import read_manifest
from kvchat.kvstore.points import verify
from kvchat.kvstore.savepoint import Miss, SavePoint, StagedFile
from kvchat.kvstore.store import StoreRefused
from kvchat.kvstore.whole_file_store import WholeFileStore
from tests.kvstore.absorbing import BODY, CONVERSATIONS
from tests.kvstore.slot_files import FINGERPRINT, Shelf, line, write_slot_file

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def absorbing(folder: Path, seed: int, quota: int = 10**9) -> Iterator[subprocess.Popen[str]]:
    """A child that hammers the store; killed at the end with SIGKILL, wherever it is just then."""
    command = [sys.executable, "-m", "tests.kvstore.absorbing", str(folder), str(seed), str(quota)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_for_rounds(child: subprocess.Popen[str], rounds: int) -> None:
    assert child.stdout is not None
    for _ in range(rounds):
        assert child.stdout.readline(), f"the child ended with {child.wait()}"


def assert_whole(folder: Path) -> int:
    """Every save point's manifest reads and its file verifies; nothing was set aside. Returns how many there are."""
    points = list((folder / "points").iterdir())
    for point in points:
        manifest = read_manifest((point / "manifest.json").read_bytes())
        assert manifest.id == point.name
        verify(point / "kv.slot", manifest)
    assert list((folder / "set-aside").iterdir()) == []
    return len(points)


def test_killed_at_any_moment_it_leaves_only_whole_save_points(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    dice = random.Random(2)
    kept = 0
    for seed in range(5):
        with absorbing(folder, seed) as child:
            wait_for_rounds(child, 1 + dice.randrange(8))
        assert child.returncode == -9
        store = WholeFileStore(folder, 10**9, 0)
        assert list((folder / "temporary").iterdir()) == []
        assert list((folder / "staging").iterdir()) == []
        kept += assert_whole(folder)
        assert {one.conversation_id for one in store.usage().conversations} <= set(CONVERSATIONS)
    assert kept > 0


def test_two_processes_and_this_one_share_a_store(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    quota = 3 * BODY  # so that they prune each other's as well
    with absorbing(folder, 1, quota) as one, absorbing(folder, 2, quota) as two:
        wait_for_rounds(one, 1)
        shelf = Shelf(folder, quota=quota)
        for child in (one, two) * 10:
            wait_for_rounds(child, 1)
            shelf.save("mine", line(100))
            assert isinstance(shelf.find("thesis", line(400)), SavePoint | Miss)
        assert one.poll() is None
        assert two.poll() is None
    shelf.open()
    assert list((folder / "temporary").iterdir()) == []
    assert_whole(folder)


def test_threads_share_a_store(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "store")

    def turns(name: str) -> None:
        slots = shelf.store.staging_folder()
        for length in range(50, 60):
            write_slot_file(slots / "saved.slot", line(length))
            shelf.store.absorb(slots / "saved.slot", name, FINGERPRINT, line(length))
            staged = shelf.store.find(name, FINGERPRINT, line(100))
            assert isinstance(staged, SavePoint)
            assert staged.n_tokens == length
            assert isinstance(shelf.store.stage(staged, slots), StagedFile)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(turns, ["a", "b", "c", "d"]))
    assert assert_whole(shelf.folder) == 4


def gone_process() -> int:
    """The id of a process that has just ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    return child.pid


def test_leftovers_of_the_dead_are_deleted_and_those_of_the_living_kept(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "store")
    saved = shelf.save("thesis", line(100))
    dead, alive = f"{gone_process()}-0a0b0c0d-1", "1-0a0b0c0d-1"
    earlier_life = disk.temporary_name().replace(disk.process_prefix(), disk.process_prefix()[:-2] + "zz-")
    for place in ("temporary", "staging"):
        for name in (dead, alive, earlier_life, "notes.txt", "99999999999-x"):
            (shelf.folder / place / name).mkdir()
            write_slot_file(shelf.folder / place / name / "kv.slot", line(50))
    shelf.open()
    left = {alive, "notes.txt", "99999999999-x"}
    assert {entry.name for entry in (shelf.folder / "temporary").iterdir()} == left
    assert {entry.name for entry in (shelf.folder / "staging").iterdir()} == left | {shelf.slots.name}
    assert shelf.find("thesis", line(100)) == saved


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs is not permitted here; the file-size limit below tests the same path")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until no page is left."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_full_disk_is_said_and_what_was_kept_stays(small_disk: Path, tmp_path: Path) -> None:
    shelf = Shelf(small_disk / "store", floor=0)
    kept = shelf.save("thesis", line(1000))
    outside = tmp_path / "saved.slot"  # so that it has to be copied in
    write_slot_file(outside, line(6000))
    with pytest.raises(StoreRefused, match="the disk is full"):
        shelf.store.absorb(outside, "letter", FINGERPRINT, line(6000))
    assert not outside.exists()
    # And with the file already there, but no page left for the manifest.
    saved = shelf.slots / "saved.slot"
    write_slot_file(saved, line(1000))
    fill(small_disk / "filler")
    with pytest.raises(StoreRefused, match="the disk is full"):
        shelf.store.absorb(saved, "letter", FINGERPRINT, line(1000))
    assert not saved.exists()
    assert list((shelf.folder / "temporary").iterdir()) == []
    assert shelf.find("thesis", line(1000)) == kept
    (small_disk / "filler").unlink()
    assert shelf.save("letter", line(1000)).n_tokens == 1000


def test_a_manifest_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "store")
    kept = shelf.save("thesis", line(100))
    write_slot_file(shelf.slots / "saved.slot", line(200))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(StoreRefused, match="could not be written") as refusal:
            shelf.store.absorb(shelf.slots / "saved.slot", "thesis", FINGERPRINT, line(200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "too large" in refusal.value.detail
    assert list(shelf.slots.iterdir()) == []
    assert shelf.find("thesis", line(200)) == kept
