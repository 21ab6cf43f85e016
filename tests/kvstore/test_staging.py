"""Where slot files go on their way: memory within its bounds, else the disk; and none is written over that is read."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest

from kvchat.kvstore import disk
from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.savepoint import Bounds, Miss, RestorePlan, StagedFile, StoreRefused, Tier, Tokens, program_of
from kvchat.kvstore.store import BlockStore
from tests.kvstore.slot_files import FINGERPRINT
from tests.kvstore.slot_files import line as text
from tests.kvstore.true_files import FULL, Bench, Model
from tests.store_contents import flip_a_byte

REPOSITORY = Path(__file__).parents[2]
SIZE = len(FULL.slot_file(text(300)))
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has files in memory")


def in_memory(bench: Bench) -> list[Path]:
    return [path for path in (bench.folder.parent / "memory").glob("*/*") if path.is_file()]


def stage(bench: Bench, tokens: Tokens) -> StagedFile:
    plan = bench.find((*tokens, 9999))
    assert isinstance(plan, RestorePlan), plan
    staged = bench.restorer.stage(plan, bench.slots)
    assert isinstance(staged, StagedFile), staged
    return staged


@linux
def test_a_file_is_written_over_in_place_but_never_one_that_is_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", memory=3 * SIZE // 2)
    for number in range(3):
        bench.save(f"chat {number}", text(300, start=1000 * number + 1))
    first = stage(bench, text(300))
    (file,) = in_memory(bench)
    bench.restorer.unstage(first)
    second = stage(bench, text(300, start=1001))
    assert [(path, path.stat().st_ino) for path in in_memory(bench)] == [(file, file.stat().st_ino)], "no new pages"
    with second.path.open("rb") as engine:  # which was told to restore it, and whose answer nobody waited for
        bench.restorer.unstage(second, engine_done=False)
        third = stage(bench, text(300, start=2001))
        assert engine.read() == FULL.slot_file(text(300, start=1001))
    assert bench.read(third) == FULL.slot_file(text(300, start=2001))


@linux
def test_a_damaged_block_is_found_where_a_file_is_written_over_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", memory=3 * SIZE // 2)
    bench.save("one", text(300))
    mine = set(bench.block_files())
    bench.save("two", text(300, start=1001))
    bench.restorer.unstage(stage(bench, text(300, start=1001)))
    assert in_memory(bench), "whose pages the next is read into"
    largest = max(mine, key=lambda path: path.stat().st_size)
    flip_a_byte(largest)
    plan = bench.find((*text(300), 9999))
    assert isinstance(plan, RestorePlan)
    assert isinstance(bench.restorer.stage(plan, bench.slots), Miss)
    assert not list(bench.slots.iterdir())
    assert isinstance(bench.find((*text(300), 9999)), Miss), "it is not tried again"


def test_what_an_engine_may_be_reading_is_not_deleted_for_room(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", memory=3 * SIZE // 2)
    bench.save("one", text(300))
    bench.save("two", text(300, start=1001))
    first = stage(bench, text(300))
    second = stage(bench, text(300, start=1001))  # beside it there is no room in memory
    assert bench.read(first) == FULL.slot_file(text(300))
    assert bench.read(second) == FULL.slot_file(text(300, start=1001))


def test_it_looks_at_what_is_free_now(tmp_path: Path) -> None:
    free = 10**9
    bench = Bench(tmp_path / "store", memory=lambda held: held + free)
    bench.save("one", text(300))
    assert bench.inventory.usage().warm_bytes >= SIZE
    free = -1  # another program needs it
    bench.save("two", text(300, start=1001))
    assert bench.inventory.usage().warm_bytes == 0
    assert "too little memory is free" in bench.inventory.usage().staged
    assert bench.restored(text(310, start=1001)) == FULL.slot_file(text(300, start=1001))
    assert bench.restored(text(310)) == FULL.slot_file(text(300))


@linux
def test_warm_files_go_for_a_model_and_what_waits_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", memory=10**9)
    bench.save("one", text(300))
    bench.save("two", text(300, start=1001))
    bench.take("three", text(300, start=2001))  # not absorbed: there is no other copy
    staged = bench.store.staging.memory()
    assert 2 * SIZE <= staged.reclaimable < bench.inventory.usage().warm_bytes <= staged.capacity
    bench.restorer.keep_in_memory(0)
    assert [path.stat().st_size for path in in_memory(bench)] == [SIZE]
    assert not bench.store.absorb_pending().refused
    assert bench.store.staging.memory().reclaimable == 0
    bench.save("four", text(300, start=3001))
    assert in_memory(bench) == [], "a model was planned to have all there is: it goes by way of the disk"
    for start in (1, 1001, 2001, 3001):
        assert bench.restored(text(310, start=start)) == FULL.slot_file(text(300, start=start))
    bench.restorer.keep_in_memory(10**9)
    bench.save("five", text(300, start=4001))
    assert in_memory(bench)


@linux
@pytest.mark.parametrize("owner", ["program/editor", "a chat"])
def test_what_a_program_goes_on_from_is_warm_before_it_asks(tmp_path: Path, owner: str) -> None:
    """While the engine starts; what is on show of a chat the window itself prepares."""
    bench = Bench(tmp_path / "store", memory=10**9)
    bench.save(owner, text(300))
    bench.reopen()
    bench.restorer.keep_in_memory(10**9)
    bench.restorer.prepare().result()
    plan = bench.find(text(310), conversation=owner)
    assert isinstance(plan, RestorePlan)
    assert plan.tier is (Tier.WARM if program_of(owner) else Tier.DISK)
    assert bench.restored(text(310), conversation=owner) == FULL.slot_file(text(300))


def test_a_next_turn_is_not_refused_for_what_is_kept_already(bench: Bench) -> None:
    """On a disk with room for the engine's file and what is new, and not for the file twice."""
    bench.save("thesis", text(2000))
    size = len(FULL.slot_file(text(2100)))
    bench.free = size * 5 // 4
    place = bench.slots / "saved.slot"
    bench.saver.check_room(size, "thesis", place, (FINGERPRINT, text(2100)))
    for other in ((FINGERPRINT, text(2100, start=5000)), None, (replace(FINGERPRINT, kv_type_k="q8_0"), text(2100))):
        with pytest.raises(StoreRefused, match="nearly full"):
            bench.saver.check_room(size, "thesis", place, other)
    bench.free = size - 1
    with pytest.raises(StoreRefused, match="nearly full"):
        bench.saver.check_room(size, "thesis", place, (FINGERPRINT, text(2100)))


def test_a_deleted_chat_leaves_nothing_in_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", memory=10**9)
    bench.save("thesis", text(300))
    assert isinstance(bench.restored(text(200) + (7,) * 40), bytes)
    assert in_memory(bench)
    bench.inventory.delete_all()
    assert in_memory(bench) == []


def test_a_save_that_memory_cannot_hold_after_all_leaves_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", memory=10**9)
    place = bench.slots / "saved.slot"
    bench.saver.check_room(1000, "thesis", place)
    place.write_bytes(b"as far as it went")
    bench.store.staging.discard_saved(place)
    assert [in_memory(bench), list(bench.slots.iterdir())] == [[], []]
    place.write_bytes(FULL.slot_file(text(300)))  # so it is saved once more, on disk
    point = bench.saver.add(place, "thesis", FINGERPRINT, text(300))
    assert bench.inventory.usage().warm_bytes == 0
    assert stage(bench, text(300)).save_point.id == point.id


@linux
def test_a_restore_that_memory_cannot_hold_after_all_goes_by_way_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "store", memory=10**9)
    bench.save("thesis", text(1000))
    bench.reopen()
    memory, write = bench.folder.parent / "memory", positioned.write_at

    def full(file: FileIO, data: memoryview | bytes, offset: int) -> None:
        if Path(f"/proc/self/fd/{file.fileno()}").readlink().is_relative_to(memory):
            raise OSError(errno.ENOSPC, "somebody else was quicker")
        write(file, data, offset)

    monkeypatch.setattr(positioned, "write_at", full)
    assert bench.restored(text(1010)) == FULL.slot_file(text(1000))
    bench.reopen()
    assert bench.restored(text(600) + (7,) * 40) == FULL.slot_file(text(600)), "a part of it, too"
    assert in_memory(bench) == []


@linux
def test_a_restore_has_the_file_that_is_being_made_ready_as_far_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory has room for one such file: a restore soon after the start must not go by way of the disk."""
    bench = Bench(tmp_path / "store", Model(layers=16, row_size=2048))
    bench.save("thesis", text(300))
    bench.memory = len(bench.model.slot_file(text(300))) * 3 // 2
    bench.reopen()
    make_pages, restored = os.posix_fallocate, list[Path]()

    def sent_just_now(file: int, offset: int, size: int) -> None:
        make_pages(file, offset, size)
        if not restored:
            restored.append(bench.slots)
            staged = stage(bench, text(300))
            restored.append(staged.path.resolve())
            assert bench.read(staged) == bench.model.slot_file(text(300))

    monkeypatch.setattr(os, "posix_fallocate", sent_just_now)
    bench.restorer.keep_in_memory(bench.memory)
    bench.restorer.prepare().result()
    assert (bench.folder.parent / "memory") in restored[-1].parents


def test_where_no_links_can_be_made_it_goes_by_way_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "as exFAT does")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    bench = Bench(tmp_path / "store", memory=10**9)
    bench.save("thesis", text(300))
    assert in_memory(bench) == []
    bench.reopen()
    assert bench.restored(text(310)) == FULL.slot_file(text(300))


def test_what_a_killed_kvchat_left_in_a_servers_folder_goes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_RUN", "0123456789abcdef")
    left = disk.name_for_engine()
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "another"))
    anothers = disk.name_for_engine()
    monkeypatch.undo()
    mine = disk.name_for_engine()
    for name in (left, mine, anothers, "of-the-user"):
        (tmp_path / name).touch()
    (tmp_path / f"{left}-folder").mkdir()
    disk.remove_stale_for_engine(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {mine, anothers, "of-the-user"}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["small", "full", "none"])
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs mount namespaces")
def test_with_little_memory_it_goes_by_way_of_the_disk(tmp_path: Path, place: str) -> None:
    """A /dev/shm of 64 MB as containers have it, a full one and none at all."""
    mounts = {
        "small": "mount -t tmpfs -o size=64m tmpfs /dev/shm",
        "full": "mount -t tmpfs -o size=1m tmpfs /dev/shm && head -c 1048576 /dev/zero > /dev/shm/taken",
        "none": "mount -t tmpfs -o ro,size=1m tmpfs /dev/shm",
    }
    command = f"{mounts[place]} && exec {sys.executable} -m tests.kvstore.test_staging {tmp_path / 'store'}"
    own = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run([*own, mounts[place]], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    done = subprocess.run([*own, command], cwd=REPOSITORY, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    words = {
        "small": "for /dev/shm has no more",
        "full": "on disk: /dev/shm is full",
        "none": "on disk: no files can be made in /dev/shm",
    }
    assert [words[place] in line for line in done.stdout.splitlines()] == [True, True]


def saved_warm_and_restored(folder: Path) -> None:
    """In a process of its own: a chat too large for 64 MB is saved, warm and restored; prints where it was staged."""
    model, tokens = Model(layers=16, row_size=2048), text(1100)
    store = BlockStore(folder, Bounds(10**10, 0), 10**9, sync=False)
    slots, data = store.staging.slot_folder(), model.slot_file(tokens)
    store.restorer.keep_in_memory(store.staging.memory().capacity)  # as planned for a model that leaves all of it
    place = slots / "saved.slot"
    store.saver.check_room(len(data), "thesis", place)
    place.write_bytes(data)
    point = store.saver.add(place, "thesis", FINGERPRINT, tokens, len(data))
    assert not store.absorb_pending().refused
    for tier in (Tier.WARM, Tier.DISK):
        staged = store.restorer.stage(RestorePlan(point, len(tokens), Tier.DISK, point.size), slots)
        assert isinstance(staged, StagedFile), staged
        assert (staged.tier, staged.path.read_bytes()) == (tier, data)
        store.restorer.unstage(staged)
        print(store.inventory.usage().staged)
        store.close()
        store = BlockStore(folder, Bounds(10**10, 0), 10**9, sync=False)
        store.restorer.keep_in_memory(store.staging.memory().capacity)
        slots = store.staging.slot_folder()
    store.close()


if __name__ == "__main__":
    saved_warm_and_restored(Path(sys.argv[1]))
