"""Everything that can be wrong with a save point: it is set aside with its reason, and the chat is told why."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.kvstore.savepoint import Miss, SavePoint, StagedFile
from kvchat.kvstore.store import StoreRefused
from tests.kvstore.slot_files import FINGERPRINT, Shelf, line, slot_file_bytes, write_slot_file


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "store")


def flip_one_bit(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    ("its file is missing", Path.unlink),
    ("its file was damaged (truncated: 0 bytes of", lambda path: os.truncate(path, 0)),
    ("its file was damaged (truncated:", lambda path: os.truncate(path, path.stat().st_size - 1)),
    ("its file was damaged (longer than it was)", lambda path: path.write_bytes(path.read_bytes() + b"x")),
    ("its file was damaged (hash differs)", lambda path: flip_one_bit(path, path.stat().st_size - 7)),
    ("its file was damaged (it holds other tokens)", lambda path: flip_one_bit(path, 40)),
    ("its file was damaged (it holds other tokens)", lambda path: write_slot_file(path, line(100, start=7))),
    (
        "its file was damaged (not a slot file)",
        lambda path: path.write_bytes(b"\x89PNG" + bytes(path.stat().st_size - 4)),
    ),
]


@pytest.mark.parametrize(("words", "damage"), DAMAGE)
def test_a_bad_file_is_set_aside_and_the_reason_told(
    shelf: Shelf, words: str, damage: Callable[[Path], object]
) -> None:
    saved = shelf.save("thesis", line(100))
    damage(shelf.slot_file(saved))
    result = shelf.find_and_stage("thesis", line(100))
    assert isinstance(result, Miss)
    assert words in result.reason
    assert list(shelf.slots.iterdir()) == []
    aside = shelf.folder / "set-aside" / saved.id
    assert words in json.loads((aside / "reason.json").read_text())["reason"]
    assert list((shelf.folder / "points").iterdir()) == []
    # The next turn, and the next start of the app, know it too; a new save point makes it forgotten.
    assert shelf.open().find("thesis", FINGERPRINT, line(100)) == result
    shelf.save("thesis", line(120))
    assert isinstance(shelf.find_and_stage("thesis", line(120)), StagedFile)
    assert list((shelf.folder / "notes").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "damage"),
    [
        ("its manifest is missing", Path.unlink),
        ("its manifest is not readable", lambda path: path.write_bytes(b"")),
        ("its manifest is not readable", lambda path: os.truncate(path, 40)),
        ("its manifest was changed", lambda path: path.write_text(path.read_text().replace("thesis", "chesis"))),
        ("its manifest has an unknown form", lambda path: path.write_text("[]")),
    ],
)
def test_a_bad_manifest_is_set_aside_and_the_reason_told(
    shelf: Shelf, words: str, damage: Callable[[Path], object]
) -> None:
    saved = shelf.save("thesis", line(100))
    letter = shelf.save("letter", line(100))
    damage(shelf.manifest_file(saved))
    result = shelf.open().find("thesis", FINGERPRINT, line(100))
    assert result == Miss(f"its save point was set aside: {words}")
    assert [entry.name for entry in (shelf.folder / "points").iterdir()] == [letter.id]
    assert (shelf.folder / "set-aside" / saved.id / "reason.json").is_file()


def test_a_manifest_under_another_name_is_not_believed(shelf: Shelf) -> None:
    thesis, letter = shelf.save("thesis", line(100)), shelf.save("letter", line(100))
    shutil.copy(shelf.manifest_file(letter), shelf.manifest_file(thesis))
    result = shelf.open().find("thesis", FINGERPRINT, line(100))
    assert result == Miss("its save point was set aside: its manifest belongs to another save point")


def test_a_hollow_restore_is_set_aside_with_the_turns_own_words(shelf: Shelf) -> None:
    saved = shelf.save("thesis", line(100))
    shelf.store.set_aside(saved, "hollow restore: 0 of 100 tokens were reused")
    expected = Miss("its save point was set aside: hollow restore: 0 of 100 tokens were reused")
    assert shelf.find("thesis", line(100)) == expected
    assert shelf.store.stage(saved, shelf.slots) == expected


def test_at_most_three_are_kept_aside_the_newest(shelf: Shelf) -> None:
    saved = [shelf.save(name, line(100)) for name in "abcde"]
    for one in saved:
        shelf.store.set_aside(one, "hollow restore")
    assert {entry.name for entry in (shelf.folder / "set-aside").iterdir()} == {one.id for one in saved[2:]}
    assert isinstance(shelf.find("a", line(100)), Miss)


def test_what_is_set_aside_takes_a_tenth_of_the_quota_at_most(shelf: Shelf) -> None:
    saved = [shelf.save(name, line(100)) for name in "abc"]
    shelf.store.set_bounds(15 * shelf.store.usage().conversations[0].bytes, shelf.floor)
    for one in saved:
        shelf.store.set_aside(one, "hollow restore")
    usage = shelf.store.usage()
    assert 0 < usage.set_aside_bytes <= usage.quota_bytes // 10


def absorb(shelf: Shelf, data: bytes | None, expected_size: int | None = None) -> SavePoint:
    path = shelf.slots / "saved.slot"
    if data is not None:
        path.write_bytes(data)
    return shelf.store.absorb(path, "thesis", FINGERPRINT, line(100), expected_size)


@pytest.mark.parametrize(
    ("words", "data", "expected_size"),
    [
        ("there is no file", None, None),
        ("empty", b"", None),
        ("not a slot file", b"GGUF" + bytes(500), None),
        ("the slot was empty", slot_file_bytes(()), None),
        ("the slot was empty", slot_file_bytes((), wrapped=False, body=bytes(12)), None),
        ("truncated", slot_file_bytes(line(100))[:200], None),
        ("not whole", slot_file_bytes(line(100))[:-1], len(slot_file_bytes(line(100)))),
        ("50 of them this conversation's", slot_file_bytes(line(50) + line(50, start=900)), None),
        ("100 of them this conversation's", slot_file_bytes(line(101)), None),
        ("99 of them this conversation's", slot_file_bytes(line(99)), None),
    ],
)
def test_what_is_not_this_conversation_whole_is_never_kept(
    shelf: Shelf, words: str, data: bytes | None, expected_size: int | None
) -> None:
    kept = shelf.save("thesis", line(60))
    with pytest.raises(StoreRefused) as refusal:
        absorb(shelf, data, expected_size)
    assert words in str(refusal.value)
    assert list(shelf.slots.iterdir()) == []
    assert list((shelf.folder / "temporary").iterdir()) == []
    assert [entry.name for entry in (shelf.folder / "points").iterdir()] == [kept.id]


def test_staging_what_was_deleted_meanwhile_is_no_damage(shelf: Shelf) -> None:
    saved = shelf.save("thesis", line(100))
    shelf.open().delete_conversation("thesis")
    assert shelf.store.stage(saved, shelf.slots) == Miss("its save point was deleted meanwhile")
    assert list((shelf.folder / "set-aside").iterdir()) == []


def test_an_engine_folder_that_is_gone_does_not_cost_the_save_point(shelf: Shelf) -> None:
    saved = shelf.save("thesis", line(100))
    result = shelf.store.stage(saved, shelf.slots / "gone")
    assert isinstance(result, Miss)
    assert "could not be put into the engine's slot folder" in result.reason
    assert isinstance(shelf.find_and_stage("thesis", line(100)), StagedFile)


def test_a_verified_file_stays_whole_though_the_store_is_emptied(shelf: Shelf) -> None:
    shelf.save("thesis", line(100))
    staged = shelf.find_and_stage("thesis", line(100))
    assert isinstance(staged, StagedFile)
    shelf.store.delete_all()
    assert staged.path.read_bytes() == slot_file_bytes(line(100))


def test_a_cache_emptied_by_the_user_is_begun_again(shelf: Shelf) -> None:
    shelf.save("thesis", line(100))
    shutil.rmtree(shelf.folder)
    assert shelf.find("thesis", line(100)) == Miss("nothing saved yet for this conversation")
    assert shelf.store.usage().total_bytes == 0
    shelf.slots = shelf.store.staging_folder()
    saved = shelf.save("thesis", line(100))
    shelf.store.set_aside(saved, "hollow restore")
    assert "hollow restore" in getattr(shelf.find("thesis", line(100)), "reason", "")
    assert shelf.store.delete_all() > saved.size


def test_foreign_things_in_the_folder_are_left_alone(shelf: Shelf) -> None:
    (shelf.folder / "points" / "holiday").mkdir()
    (shelf.folder / "points" / ".DS_Store").write_bytes(b"x")
    saved = shelf.save("thesis", line(100))
    assert shelf.find("thesis", line(100)) == saved
    assert (shelf.folder / "points" / "holiday").is_dir()
