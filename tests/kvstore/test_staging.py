"""Staging of slot files: memory within its bounds, else the disk; and no file is overwritten while it is read."""

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
from kvchat.kvstore.savepoint import Bounds, RestorePlan, StagedFile, StoreRefused, Tier
from kvchat.kvstore.store import BlockStore
from tests.kvstore.store_bench import FINGERPRINT, FULL, Bench, Model, token_range
from tests.systems import needs_memory_folder

REPOSITORY = Path(__file__).parents[2]
SIZE = len(FULL.slot_file(token_range(300)))
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has files in memory")


@pytest.fixture
def tight(tmp_path: Path) -> Bench:
    """A store with memory for one file of 300 tokens, and chats of 300 tokens that begin with 1, 1001 and 2001."""
    bench = Bench(tmp_path / "store", memory=3 * SIZE // 2)
    for start in (1, 1001, 2001):
        bench.save(f"chat {start}", token_range(300, start))
    return bench


def stage(bench: Bench, start: int = 1) -> StagedFile:
    return bench.stage(bench.plan(token_range(310, start)))


def file_of(start: int) -> bytes:
    return FULL.slot_file(token_range(300, start))


@linux
def test_files_are_overwritten_in_place_but_not_while_they_are_read(tight: Bench) -> None:
    first = stage(tight)
    (file,) = tight.files_in_memory()
    inode = file.stat().st_ino
    tight.restorer.unstage(first)
    second = stage(tight, 1001)
    assert [(path, path.stat().st_ino) for path in tight.files_in_memory()] == [(file, inode)]
    with second.path.open("rb") as engine:  # which was told to restore it, and whose answer was not awaited
        tight.restorer.unstage(second, engine_done=False)
        third = stage(tight, 2001)
        assert engine.read() == file_of(1001)
    fourth = stage(tight)  # the third does not make room for it
    assert (tight.read(third), tight.read(fourth)) == (file_of(2001), file_of(1))


@needs_memory_folder
def test_memory_is_used_as_far_as_it_is_free_now(tmp_path: Path) -> None:
    free = 10**9
    bench = Bench(tmp_path / "store", memory=lambda held: held + free)
    bench.save("one", token_range(300))
    assert bench.inventory.usage().warm_bytes >= SIZE
    free = -1  # another program needs it
    bench.save("two", token_range(300, start=1001))
    assert bench.inventory.usage().warm_bytes == 0
    assert "not enough free memory" in bench.inventory.usage().staged
    for start in (1001, 1):
        assert bench.restore(token_range(310, start)) == file_of(start)


@linux
def test_warm_files_make_room_for_a_model_but_unabsorbed_ones_stay(roomy: Bench) -> None:
    roomy.save("one", token_range(300))
    roomy.save("two", token_range(300, start=1001))
    roomy.add("three", token_range(300, start=2001))  # not absorbed: there is no other copy
    memory = roomy.store.staging.memory()
    assert 2 * SIZE <= memory.reclaimable < roomy.inventory.usage().warm_bytes <= memory.capacity
    roomy.restorer.limit_memory(0)
    assert [path.stat().st_size for path in roomy.files_in_memory()] == [SIZE]
    assert not roomy.store.absorb_pending().refused
    assert roomy.store.staging.memory().reclaimable == 0
    roomy.save("four", token_range(300, start=3001))
    assert roomy.files_in_memory() == [], "the model needs all memory"
    for start in (1, 1001, 2001, 3001):
        assert roomy.restore(token_range(310, start=start)) == file_of(start)
    roomy.restorer.limit_memory(10**9)
    roomy.save("five", token_range(300, start=4001))
    assert roomy.files_in_memory()


@linux
@pytest.mark.parametrize("owner", ["program/editor", "a chat"])
def test_the_last_state_is_in_memory_before_its_request(roomy: Bench, owner: str) -> None:
    """It is built while the engine starts, and still counts as read from disk the first time."""
    roomy.save(owner, token_range(300))
    roomy.save(owner, token_range(400), fingerprint=replace(FINGERPRINT, kv_type_k="q8_0"))
    roomy.reopen()
    roomy.restorer.limit_memory(10**9, FINGERPRINT)
    roomy.restorer.preallocate_file().result()
    plan = roomy.plan(token_range(310), conversation=owner)
    assert plan.tier is Tier.WARM
    for tier in (Tier.DISK, Tier.WARM):
        staged = roomy.stage(plan)
        assert (staged.tier, staged.path.read_bytes()) == (tier, file_of(1))
        roomy.restorer.unstage(staged)


def test_stored_rows_need_no_room_on_disk(bench: Bench) -> None:
    """The disk has room for the engine's file and the new rows, but not for the file twice."""
    bench.save("thesis", token_range(2000))
    state = FINGERPRINT, token_range(2100)
    size = len(FULL.slot_file(state[1]))
    bench.free = size * 5 // 4
    path = bench.slots / "saved.slot"
    bench.saver.prepare_save(size, "thesis", path, *state)
    for other in ((FINGERPRINT, token_range(2100, 5000)), (replace(FINGERPRINT, kv_type_k="q8_0"), state[1])):
        with pytest.raises(StoreRefused, match="nearly full"):
            bench.saver.prepare_save(size, "thesis", path, *other)
    bench.free = size - 1
    with pytest.raises(StoreRefused, match="nearly full"):
        bench.saver.prepare_save(size, "thesis", path, *state)


@needs_memory_folder
def test_delete_all_leaves_no_file_in_memory_and_no_unknown_block(roomy: Bench) -> None:
    roomy.save("thesis", token_range(300))
    known = roomy.block_files()[0]
    shutil.copy(known, known.with_name(known.name[:2] + "0" * 62))
    assert isinstance(roomy.restore(token_range(200) + (7,) * 40), bytes)
    assert roomy.files_in_memory()
    assert roomy.inventory.delete_all() > 0
    assert (roomy.files_in_memory(), roomy.block_files(), roomy.inventory.usage().save_points) == ([], [], 0)


def test_a_save_that_memory_cannot_hold_is_repeated_on_disk(roomy: Bench) -> None:
    path = roomy.slots / "saved.slot"
    roomy.saver.prepare_save(1000, "thesis", path, FINGERPRINT, token_range(300))
    path.write_bytes(b"a part")
    roomy.store.staging.discard_saved(path)
    assert [roomy.files_in_memory(), list(roomy.slots.iterdir())] == [[], []]
    path.write_bytes(file_of(1))
    point = roomy.saver.add(path, "thesis", FINGERPRINT, token_range(300))
    assert roomy.inventory.usage().warm_bytes == 0
    assert stage(roomy).save_point.id == point.id


@linux
def test_a_restore_that_memory_cannot_hold_goes_to_disk(roomy: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    roomy.save("thesis", token_range(1000))
    roomy.reopen()
    memory, write = roomy.folder.parent / "memory", positioned.write_at

    def fail(file: FileIO, data: memoryview | bytes, offset: int) -> None:
        if Path(f"/proc/self/fd/{file.fileno()}").readlink().is_relative_to(memory):
            raise OSError(errno.ENOSPC, "no space left")
        write(file, data, offset)

    monkeypatch.setattr(positioned, "write_at", fail)
    for length in (1000, 600):
        assert roomy.restore(token_range(length) + (7,) * 40) == FULL.slot_file(token_range(length))
        roomy.reopen()
    assert roomy.files_in_memory() == []


@linux
def test_a_restore_takes_the_spare_file_before_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has room for one such file: a restore soon after the start must not go through the disk."""
    bench = Bench(tmp_path / "store", Model(layers=16, row_size=2048))
    bench.save("thesis", token_range(300))
    bench.memory = len(bench.model.slot_file(token_range(300))) * 3 // 2
    bench.reopen()
    allocate, restored = os.posix_fallocate, list[Path]()

    def restore_meanwhile(file: int, offset: int, size: int) -> None:
        allocate(file, offset, size)
        if not restored:
            restored.append(bench.slots)
            staged = stage(bench)
            restored.append(staged.path.resolve())
            assert bench.read(staged) == bench.model.slot_file(token_range(300))

    monkeypatch.setattr(os, "posix_fallocate", restore_meanwhile)
    bench.restorer.limit_memory(bench.memory)
    bench.restorer.preallocate_file().result()
    assert (bench.folder.parent / "memory") in restored[-1].parents


def test_without_links_files_go_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EPERM, "as exFAT does")

    monkeypatch.setattr(Path, "symlink_to", fail)
    bench = Bench(tmp_path / "store", memory=10**9)
    bench.save("thesis", token_range(300))
    assert bench.files_in_memory() == []
    bench.reopen()
    assert bench.restore(token_range(310)) == file_of(1)


def test_stale_files_in_a_servers_folder_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_RUN_ID", "0123456789abcdef")
    stale = disk.engine_file_name()
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "another"))
    of_another_home = disk.engine_file_name()
    monkeypatch.undo()
    own = disk.engine_file_name()
    for name in (stale, own, of_another_home, "of-the-user"):
        (tmp_path / name).touch()
    (tmp_path / f"{stale}-folder").mkdir()
    disk.remove_stale_engine_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {own, of_another_home, "of-the-user"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        ("mount -t tmpfs -o size=64m tmpfs /dev/shm", "limited by /dev/shm"),  # as in containers
        (
            "mount -t tmpfs -o size=1m tmpfs /dev/shm && head -c 1048576 /dev/zero > /dev/shm/taken",
            "on disk: /dev/shm is full",
        ),
        ("mount -t tmpfs -o ro,size=1m tmpfs /dev/shm", "on disk: /dev/shm is not available"),
    ],
)
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs mount namespaces")
def test_with_little_memory_files_go_to_disk(tmp_path: Path, mount: str, expected: str) -> None:
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run([*unshare, mount], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    command = f"{mount} && exec {sys.executable} -m tests.kvstore.test_staging {tmp_path / 'store'}"
    done = subprocess.run([*unshare, command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [expected in line for line in done.stdout.splitlines()] == [True, True]


def save_and_restore_large_chat(folder: Path) -> None:
    """Save a chat too large for 64 MB, restore it warm and from disk; print where it was staged."""
    model, tokens = Model(layers=16, row_size=2048), token_range(1100)
    data, point = model.slot_file(tokens), None
    for tier in (Tier.WARM, Tier.DISK):
        store = BlockStore(folder, Bounds(10**10, 0), lambda _: 10**9, sync=False)
        slots = store.staging.slot_folder()
        store.restorer.limit_memory(store.staging.memory().capacity)  # as planned for a model that leaves all of it
        if point is None:
            path = slots / "saved.slot"
            store.saver.prepare_save(len(data), "thesis", path, FINGERPRINT, tokens)
            path.write_bytes(data)
            point = store.saver.add(path, "thesis", FINGERPRINT, tokens, len(data))
            assert not store.absorb_pending().refused
        staged = store.restorer.stage(RestorePlan(point, len(tokens), Tier.DISK, point.size), slots)
        assert isinstance(staged, StagedFile), staged
        assert (staged.tier, staged.path.read_bytes()) == (tier, data)
        store.restorer.unstage(staged)
        print(store.inventory.usage().staged)
        store.close()


if __name__ == "__main__":
    save_and_restore_large_chat(Path(sys.argv[1]))
