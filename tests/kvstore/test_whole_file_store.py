from __future__ import annotations

import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from kvchat.kvstore.savepoint import Miss, SavePoint, StagedFile
from kvchat.kvstore.slotfile import read_tokens
from kvchat.kvstore.store import SavePointStore, StoreRefused
from kvchat.kvstore.whole_file_store import worth_restoring
from tests.kvstore.slot_files import FINGERPRINT, Shelf, line, slot_file_bytes, write_slot_file


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "store")


def found(result: SavePoint | Miss) -> SavePoint:
    assert isinstance(result, SavePoint), result
    return result


def reason(result: object) -> str:
    assert isinstance(result, Miss), result
    return result.reason


def test_it_is_a_save_point_store(shelf: Shelf) -> None:
    store: SavePointStore = shelf.store
    assert store.usage().total_bytes == 0


def test_what_was_saved_is_staged_byte_for_byte(shelf: Shelf) -> None:
    saved = shelf.save("thesis", line(100))
    assert saved.tokens == line(100)
    assert saved.size == len(slot_file_bytes(line(100)))
    assert list(shelf.slots.iterdir()) == []
    point = found(shelf.find("thesis", line(150)))
    assert point.id == saved.id
    assert point.tokens == saved.tokens
    staged = shelf.store.stage(point, shelf.slots)
    assert isinstance(staged, StagedFile)
    assert staged.path.parent == shelf.slots
    assert staged.path.read_bytes() == slot_file_bytes(line(100))
    assert staged.verify_ms > 0
    shelf.store.unstage(staged)
    assert list(shelf.slots.iterdir()) == []
    assert read_tokens(shelf.slot_file(saved)) == line(100)


def test_a_restart_finds_it_again(shelf: Shelf) -> None:
    saved = shelf.save("thesis", line(100))
    assert shelf.open().find("thesis", FINGERPRINT, line(120)) == saved


def test_another_process_finds_it_without_reopening(shelf: Shelf) -> None:
    other = shelf.open()
    assert reason(other.find("thesis", FINGERPRINT, line(100))) == "nothing saved yet for this conversation"
    saved = shelf.save("thesis", line(100))
    assert found(other.find("thesis", FINGERPRINT, line(100))).id == saved.id
    other.delete_conversation("thesis")
    assert isinstance(shelf.find("thesis", line(100)), Miss)


def test_the_newest_replaces_the_older_of_its_line(shelf: Shelf) -> None:
    shelf.save("thesis", line(100))
    newer = shelf.save("thesis", line(200))
    other_engine = shelf.save("thesis", line(150), replace(FINGERPRINT, kv_type_k="q8_0"))
    other_chat = shelf.save("letter", line(150))
    kept = {entry.name for entry in (shelf.folder / "points").iterdir()}
    assert kept == {newer.id, other_engine.id, other_chat.id}
    assert found(shelf.find("thesis", line(300))).id == newer.id


def test_the_newest_wins_though_the_clock_was_set_back(shelf: Shelf) -> None:
    older = shelf.save("thesis", line(100))
    shelf.clock.now -= timedelta(days=400)
    newer = shelf.save("thesis", line(100))
    assert newer.created_at > older.created_at
    assert [entry.name for entry in (shelf.folder / "points").iterdir()] == [newer.id]


def test_of_several_the_longest_common_prefix_is_found(shelf: Shelf) -> None:
    long = shelf.save("thesis", line(200))
    # As two processes may leave it: both saved, neither saw the other.
    kept = shelf.folder / "points" / long.id
    aside = kept.rename(shelf.folder / long.id)
    short = shelf.save("thesis", line(100) + (9999,) * 100)
    aside.rename(kept)
    assert found(shelf.find("thesis", line(300))).id == long.id
    assert found(shelf.find("thesis", line(100) + (9999,) * 300)).id == short.id


def test_every_miss_says_why(shelf: Shelf) -> None:
    assert reason(shelf.find("thesis", line(100))) == "nothing saved yet for this conversation"
    shelf.save("thesis", line(100))
    assert reason(shelf.find("letter", line(100))) == "nothing saved yet for this conversation"
    other_model = replace(FINGERPRINT, model="qwen:1", kv_type_k="q8_0")
    assert reason(shelf.find("thesis", line(100), other_model)) == "saved with another model"
    other_types = replace(FINGERPRINT, kv_type_k="q8_0", streams=2)
    assert (
        reason(shelf.find("thesis", line(100), other_types))
        == "saved with other engine settings (KV type of K, number of KV streams)"
    )
    assert (
        reason(shelf.find("thesis", line(5) + line(95, start=500)))
        == "what is saved begins differently (5 tokens in common)"
    )


@pytest.mark.parametrize(
    ("shared", "saved", "prompt", "worth"),
    [
        (0, 0, 0, False),
        (0, 500, 0, False),
        (31, 5000, 5000, False),
        (32, 5000, 5000, True),
        (20, 24, 60, True),  # "Hi", answered with "Hello!"
        (20, 5000, 30, True),
        (9, 20, 60, False),
    ],
)
def test_what_is_worth_restoring(shared: int, saved: int, prompt: int, worth: bool) -> None:
    assert worth_restoring(shared, saved, prompt) is worth


def test_a_save_point_beyond_the_shared_prefix_is_still_found(shelf: Shelf) -> None:
    saved = shelf.save("thesis", line(200))
    assert found(shelf.find("thesis", line(120))).id == saved.id


def test_staging_counts_as_use_and_finding_does_not(shelf: Shelf) -> None:
    saved = shelf.save("thesis", line(100))
    assert found(shelf.find("thesis", line(100))).last_used_at == saved.last_used_at
    assert isinstance(shelf.find_and_stage("thesis", line(100)), StagedFile)
    assert found(shelf.find("thesis", line(100))).last_used_at > saved.last_used_at


def test_a_folder_where_links_are_impossible_gets_a_copy(shelf: Shelf, tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs /dev/shm as a second file system")
    staged = shelf.store.stage(shelf.save("thesis", line(100)), elsewhere)
    assert isinstance(staged, StagedFile)
    try:
        assert staged.path.read_bytes() == slot_file_bytes(line(100))
        assert stat.S_IMODE(staged.path.stat().st_mode) == 0o600
        # And the other way: a file saved there is copied in and deleted.
        saved = shelf.store.absorb(staged.path, "letter", FINGERPRINT, line(100))
        assert not staged.path.exists()
        assert shelf.slot_file(saved).read_bytes() == slot_file_bytes(line(100))
    finally:
        shelf.store.unstage(staged)
    assert not staged.path.exists()


def test_folders_are_private_and_so_are_files(shelf: Shelf) -> None:
    bad = shelf.save("letter", line(100))
    shelf.save("thesis", line(100))
    shelf.store.set_aside(bad, "hollow restore")
    shelf.find_and_stage("thesis", line(100))
    entries = [shelf.folder, *shelf.folder.rglob("*")]
    assert len([entry for entry in entries if entry.is_file()]) >= 6
    for entry in entries:
        assert stat.S_IMODE(entry.stat().st_mode) == (0o700 if entry.is_dir() else 0o600), entry


def test_a_folder_that_was_open_to_all_is_closed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o755)
    shelf = Shelf(tmp_path / "store")
    assert stat.S_IMODE(shelf.folder.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_used_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreRefused, match="cannot be used"):
        Shelf(tmp_path / "store")


def test_usage_and_deleting_one(shelf: Shelf) -> None:
    shelf.save("thesis", line(200))
    shelf.save("thesis", line(100), replace(FINGERPRINT, streams=2))
    letter = shelf.save("letter", line(100))
    usage = shelf.store.usage()
    assert [(one.conversation_id, one.save_points) for one in usage.conversations] == [("thesis", 2), ("letter", 1)]
    assert usage.total_bytes == sum(one.bytes for one in usage.conversations)
    on_disk = sum(entry.stat().st_size for entry in (shelf.folder / "points").rglob("*") if entry.is_file())
    assert usage.total_bytes == on_disk
    assert (usage.quota_bytes, usage.free_floor_bytes, usage.free_bytes) == (shelf.quota, shelf.floor, shelf.free)
    thesis = usage.conversations[0].bytes
    assert shelf.store.delete_conversation("thesis") == thesis
    assert {entry.name for entry in (shelf.folder / "points").iterdir()} == {letter.id}


def test_deleting_a_conversation_leaves_no_trace_of_it(shelf: Shelf) -> None:
    aside = shelf.save("thesis", line(100))
    shelf.store.set_aside(aside, "hollow restore")
    shelf.save("thesis", line(100), replace(FINGERPRINT, streams=2))
    shelf.store.set_aside(shelf.save("letter", line(100)), "hollow restore")
    assert shelf.store.delete_conversation("thesis") > 2 * aside.size
    left = [entry for entry in shelf.folder.rglob("*") if entry.is_file()]
    assert all(b"thesis" not in entry.read_bytes() for entry in left)
    assert len(left) == 4  # the letter's slot file, manifest, reason and note


def test_deleting_all_frees_all(shelf: Shelf) -> None:
    shelf.store.set_aside(shelf.save("letter", line(100)), "hollow restore")
    shelf.save("thesis", line(100))
    usage = shelf.store.usage()
    assert usage.set_aside_bytes > 0
    assert shelf.store.delete_all() == usage.total_bytes + usage.set_aside_bytes
    assert [entry for entry in shelf.folder.rglob("*") if entry.is_file()] == []


def test_over_quota_the_least_recently_used_go_first(shelf: Shelf) -> None:
    for name in ("a", "b", "c"):
        shelf.save(name, line(100))
    assert isinstance(shelf.find_and_stage("a", line(100)), StagedFile)
    shelf.store.set_bounds(shelf.store.usage().total_bytes + 100, shelf.floor)
    shelf.save("d", line(100))
    assert {one.conversation_id for one in shelf.store.usage().conversations} == {"a", "c", "d"}
    assert reason(shelf.find("b", line(100))) == "its save point was deleted to stay within the disk quota"
    assert reason(shelf.open().find("b", FINGERPRINT, line(100))) != "nothing saved yet for this conversation"


def test_a_smaller_quota_prunes_at_once(shelf: Shelf) -> None:
    for name in ("a", "b", "c"):
        shelf.save(name, line(100))
    shelf.store.set_bounds(shelf.store.usage().total_bytes - 1, shelf.floor)
    assert {one.conversation_id for one in shelf.store.usage().conversations} == {"b", "c"}


def test_what_is_set_aside_goes_before_anything_good(shelf: Shelf) -> None:
    shelf.store.set_aside(shelf.save("bad", line(100)), "hollow restore")
    for name in ("a", "b"):
        shelf.save(name, line(100))
    shelf.store.set_bounds(shelf.store.usage().total_bytes + 100, shelf.floor)
    usage = shelf.store.usage()
    assert {one.conversation_id for one in usage.conversations} == {"a", "b"}
    assert usage.set_aside_bytes == 0


def test_one_that_exceeds_the_quota_alone_is_refused_and_the_rest_kept(shelf: Shelf) -> None:
    kept = shelf.save("thesis", line(100))
    shelf.store.set_bounds(50_000, shelf.floor)
    with pytest.raises(StoreRefused, match="larger than the disk quota"):
        shelf.save("letter", line(2000))
    assert found(shelf.find("thesis", line(100))).id == kept.id
    assert list(shelf.slots.iterdir()) == []
    with pytest.raises(StoreRefused, match="larger than the disk quota"):
        shelf.store.check_room(50_001)


def test_below_the_floor_nothing_is_saved_and_the_old_one_stays(shelf: Shelf) -> None:
    kept = shelf.save("thesis", line(100))
    shelf.free = shelf.floor + 5_000
    shelf.store.check_room(5_000)
    with pytest.raises(StoreRefused, match="nearly full"):
        shelf.store.check_room(5_001)
    shelf.free = shelf.floor - 1
    with pytest.raises(StoreRefused, match="nearly full") as refusal:
        shelf.save("thesis", line(200))
    assert refusal.value.advice
    assert list(shelf.slots.iterdir()) == []
    assert found(shelf.find("thesis", line(200))).id == kept.id


def test_the_free_space_is_the_disks_own(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "store")
    store = type(shelf.store)(shelf.folder, shelf.quota, 0)
    assert store.usage().free_bytes > 0
    store.set_bounds(shelf.quota, 10**18)
    with pytest.raises(StoreRefused, match="nearly full"):
        store.check_room(1)


def test_slot_folders_are_separate_and_go_at_the_end(shelf: Shelf) -> None:
    second = shelf.store.staging_folder()
    write_slot_file(second / "saved.slot", line(10))
    assert second != shelf.slots
    shelf.store.close()
    assert list((shelf.folder / "staging").iterdir()) == []
