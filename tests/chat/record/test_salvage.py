"""A damaged database: reported, repaired with the backups, and never deleted."""

import json
import os
import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.chat.record import tree
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import ChatsDamaged, damage_marker
from kvchat.chat.record.messages import Role
from kvchat.chat.record.recovery import back_up, list_backups
from kvchat.chat.search import find, index_batch
from kvchat.errors import KvchatError
from kvchat.system.paths import Paths
from kvchat.transfer.backup import repair
from tests.chat import mutating
from tests.e2e.home import Home
from tests.systems import has_mode


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return mutating.library(tmp_path / "home")


def message_counts(paths: Paths) -> dict[str, int]:
    with closing(Database(paths.database)) as database:
        return {chat.title: len(tree.current_branch(database, chat.id)) for chat in database.conversations()}


def execute(paths: Paths, *statements: str) -> None:
    with closing(Database(paths.database)) as database:
        for statement in statements:
            database.write(statement, ())


def add_chat(paths: Paths, title: str) -> None:
    with closing(Database(paths.database)) as database:
        database.create_conversation(title)


def change_bytes(paths: Paths, change: Callable[[bytearray], None]) -> bytes:
    data = bytearray(paths.database.read_bytes())
    change(data)
    paths.database.write_bytes(data)
    return bytes(data)


def erase_page(paths: Paths) -> None:
    def erase(data: bytearray) -> None:
        at = data.index(b"Rivers are 7. Rivers are 7.") // 4096 * 4096
        data[at : at + 4096] = bytes(4096)

    change_bytes(paths, erase)


@pytest.mark.slow
def test_thirty_random_damages() -> None:
    assert mutating.run(30) == []


def test_flipped_bytes_are_repaired_from_the_backup(paths: Paths) -> None:
    back_up(paths.database, replace_todays=True)
    whole = message_counts(paths)
    random_bytes = random.Random(7)

    def flip(data: bytearray) -> None:
        for _ in range(200):
            data[random_bytes.randrange(4096, len(data))] = random_bytes.randrange(256)

    data = change_bytes(paths, flip)
    with pytest.raises(ChatsDamaged, match="damaged") as caught, closing(Database(paths.database)) as database:
        database.check()
    assert "kvchat repair" in caught.value.advice
    repaired = repair(paths)
    assert (repaired.previous_data / "data" / "conversations.db").read_bytes()[4096:] == data[4096:]
    assert whole.items() <= message_counts(paths).items()
    assert repair(paths) is None


def test_rows_around_a_damaged_page_are_recovered(paths: Paths) -> None:
    for backup in list_backups(paths.database):
        backup.unlink()
    whole = message_counts(paths)
    erase_page(paths)
    repaired = repair(paths)
    assert repaired is not None
    left = message_counts(paths)
    assert 20 < left["Rivers"] < whole["Rivers"], "one page of messages is lost, not all that came after it"
    assert left | {"Rivers": whole["Rivers"]} == whole
    ((title, lost),) = repaired.salvaged.lost_messages
    assert (title, left["Rivers"]) == ("Rivers", 40 - lost)
    assert "“Rivers” (" in repaired.text


@pytest.mark.parametrize("damage", ["emptied", "gone"])
def test_empty_or_missing_file_counts_as_damaged(paths: Paths, damage: str) -> None:
    paths.database.write_bytes(b"") if damage == "emptied" else paths.database.unlink()
    with pytest.raises(ChatsDamaged):
        Database(paths.database)
    repaired = repair(paths)
    assert "Nothing could be recovered from the damaged file." in repaired.text
    assert message_counts(paths) == {"Mountains": 41, "Lakes": 40}  # as of the backup


def test_cycle_of_parents_is_cut(paths: Paths) -> None:
    with closing(Database(paths.database)) as database:
        chat = next(c.id for c in database.conversations() if c.title == "Lakes")
        branch = database.branch(chat)
        database.write("UPDATE messages SET parent_id = ? WHERE id = ?", (branch[-1].id, branch[0].id))
        assert len(database.branch(chat)) == 40
        assert tree.current_branch(database, chat)
        removed = tree.remove(database, branch[10])
        tree.restore_messages(database, removed.id)
    assert repair(paths) is not None
    assert message_counts(paths)["Lakes"] == 40


def test_dangling_leaf_and_broken_values_affect_only_themselves(paths: Paths) -> None:
    execute(
        paths,
        "UPDATE conversations SET leaf_id = 'nobody', options = '{', updated_at = 'soon'",
        "UPDATE messages SET receipt = '{\"source\": \"moon\"}', role = 'x' WHERE role = 'assistant'",
        "UPDATE attachments SET size = 'large', data = 7",
        "UPDATE drafts SET text = x'ff'",
    )
    assert message_counts(paths) == {"Seas": 41, "Rivers": 40, "Mountains": 41, "Lakes": 40}
    with closing(Database(paths.database)) as database:
        chat = database.conversations()[0].id
        roles = {message.role for message in database.branch(chat)}
        assert roles == {Role.SYSTEM, Role.USER, Role.ASSISTANT}
        assert database.append_question(chat, "Continue").parent_id is not None
        assert all(message.receipt is None for message in database.branch(chat))


def test_chat_with_a_changed_id_stays_together(paths: Paths) -> None:
    with closing(Database(paths.database)) as database:
        database._connection.execute("PRAGMA foreign_keys = OFF")
        database.write("UPDATE conversations SET id = 'nonsense' WHERE title = 'Rivers'", ())
        database.append_question("nonsense", "And now?")  # after its last message, which has the old id
    assert repair(paths) is not None
    assert sorted(message_counts(paths).values()) == [1, 40, 40, 41, 41]


def test_invalid_text_is_restored_from_the_backup(paths: Paths) -> None:
    execute(paths, "UPDATE messages SET content = x'fffe80' WHERE content LIKE 'Lakes are 7%'")
    assert repair(paths) is not None
    with closing(Database(paths.database)) as database:
        (lakes,) = [chat for chat in database.conversations() if chat.title == "Lakes"]
        assert all(message.content.startswith("Lakes") for message in tree.current_branch(database, lakes.id))


def test_damaged_index_is_an_expected_error(paths: Paths) -> None:
    with closing(Database(paths.database)) as database:
        chat = database.conversations()[0].id
        query = "SELECT rootpage - 1 FROM sqlite_master WHERE name = 'sqlite_autoindex_messages_1'"
        start = 4096 * database.rows(query)[0][0]
    empty_page = bytes((10, 0, 0, 0, 0, 16, 0, 0))  # of an index
    change_bytes(paths, lambda data: data.__setitem__(slice(start, start + 8), empty_page))
    with closing(Database(paths.database)) as database:
        assert len(find(database, "rivers")) == 1
        with pytest.raises(KvchatError):
            database.append_question(chat, "And now?")


def test_invalid_deletion_record_deletes_nothing(paths: Paths) -> None:
    execute(paths, "UPDATE removed SET rows = replace(rows, '\"id\"', '\"ie\"') WHERE title = 'Lakes'")
    erase_page(paths)  # later rows are found page by page, and in the backup
    assert repair(paths) is not None
    counts = message_counts(paths)
    assert counts.pop("Rivers") > 30
    assert counts == {"Seas": 41, "Mountains": 41, "Lakes": 40}


def test_damaged_search_index_is_rebuilt(paths: Paths) -> None:
    with closing(Database(paths.database)) as database:
        assert find(database, "rivers")
        database.write("UPDATE searched_words_data SET block = x'00ff' WHERE id > 1", ())
        database.write("UPDATE searched SET stale = 1 WHERE number < 5", ())
        while index_batch(database):
            pass
        assert len(find(database, "rivers")) == 1


def test_backups_are_private_few_and_only_made_after_changes(paths: Paths) -> None:
    assert not back_up(paths.database, replace_todays=False)  # today has one
    assert back_up(paths.database, replace_todays=True)
    assert not back_up(paths.database, replace_todays=True)  # nothing has changed
    (today,) = list_backups(paths.database)
    for day in range(1, 6):
        today.with_name(f"chats-2026-01-0{day}.db").write_bytes(today.read_bytes())
    add_chat(paths, "New")
    assert back_up(paths.database, replace_todays=True)
    kept = list_backups(paths.database)
    assert [file.name for file in kept[1:]] == ["chats-2026-01-05.db", "chats-2026-01-04.db"]
    assert has_mode(today, 0o600)
    assert has_mode(today.parent, 0o700)


def test_backup_dated_in_the_future_does_not_stop_backups(paths: Paths) -> None:
    (today,) = list_backups(paths.database)
    ahead = today.with_name("chats-2031-01-01.db")
    later = time.time() + 5 * 365 * 86_400
    today.rename(ahead)
    os.utime(ahead, (later, later))
    add_chat(paths, "New")
    assert back_up(paths.database, replace_todays=False)
    assert list_backups(paths.database) == [today, ahead]
    for day in range(1, 4):
        today.with_name(f"chats-2026-01-0{day}.db").write_bytes(today.read_bytes())
    add_chat(paths, "Newer")
    assert back_up(paths.database, replace_todays=True)
    assert ahead not in list_backups(paths.database)


def test_damaged_file_does_not_replace_a_good_backup(paths: Paths) -> None:
    (before,) = list_backups(paths.database)
    good = before.read_bytes()
    change_bytes(paths, lambda data: data.__setitem__(slice(8192, None), bytes(len(data) - 8192)))
    with pytest.raises(ChatsDamaged):
        back_up(paths.database, replace_todays=True)
    assert [file.read_bytes() for file in list_backups(paths.database)] == [good]


def test_detected_damage_is_checked_at_the_next_start(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvchat.chat.record.database_file.SMALL_FILE_BYTES", 0)
    with closing(Database(paths.database)) as database:
        database.check()  # closed cleanly and large: not checked
    erase_page(paths)
    with closing(Database(paths.database)) as database:
        database.check()
        with pytest.raises(ChatsDamaged):
            [database.branch(c.id) for c in database.conversations()]
    assert damage_marker(paths.database).exists()
    with closing(Database(paths.database)) as database, pytest.raises(ChatsDamaged):
        database.check()
    assert repair(paths) is not None
    assert not damage_marker(paths.database).exists()


@pytest.mark.slow
def test_repair_command(tmp_path: Path) -> None:
    paths = mutating.library(tmp_path / "home")
    home = Home(tmp_path / "home")
    assert "is intact" in home.run("repair").stdout
    paths.database.write_bytes(b"")
    exported = home.run("export", str(tmp_path / "out.json"))
    assert exported.returncode == 1
    assert "kvchat repair" in exported.stderr
    assert "Traceback" not in exported.stderr
    done = home.run("repair")
    assert done.returncode == 0, done.stderr
    assert "2 chats with 81 messages" in done.stdout
    assert home.run("export", str(tmp_path / "out.json")).returncode == 0
    assert len(json.loads((tmp_path / "out.json").read_text("utf-8"))["conversations"]) == 2
