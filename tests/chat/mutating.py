"""Damage a real chat database in many seeded ways and use it as users do: `run(rounds, seed)`.

Only documented errors may occur, nothing may hang, intact parts stay readable, and a repair succeeds.
    python -m tests.chat.mutating ROUNDS [SEED]
"""

import json
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from kvchat.chat.deletion import entries
from kvchat.chat.options import ChatOptions, NewChat, answer_settings, presets, store_chat
from kvchat.chat.record import tree
from kvchat.chat.record.database import INTERRUPT_ABANDONED, Database
from kvchat.chat.record.messages import Attachment, MessageState, Receipt, Role, prompt_messages
from kvchat.chat.record.recovery import back_up
from kvchat.chat.search import find, index_batch
from kvchat.chat.turn import turns
from kvchat.engine.api.wire import Sampling
from kvchat.errors import KvchatError
from kvchat.session.proof import Source
from kvchat.system.paths import Paths, resolve_paths
from kvchat.transfer.backup import repair
from kvchat.transfer.exporting import ExportForm, export_file

TIMEOUT_S = 60.0  # far more than a round takes on a busy machine
_NAMES = ("Lakes", "Mountains", "Rivers", "Seas")
_COLUMNS = {  # columns that get invalid values
    "messages": ("role", "content", "thinking", "state", "created_at", "receipt", "parent_id", "conversation_id", "id"),
    "conversations": ("title", "created_at", "updated_at", "leaf_id", "options", "model", "folder", "id"),
    "attachments": ("name", "size", "hash", "text", "data", "message_id"),
    "drafts": ("text", "conversation_id"),
    "removed": ("rows", "removed_at", "leaf_id", "title"),
    "presets": ("name", "system", "options"),
}
_INVALID_VALUES = (
    b"\xff\xfe\x80",
    "{",
    "[]",
    '{"source": "moon"}',
    "",
    0,
    -1,
    1e300,
    2**62,
    "null",
    "\ud7ff\uffff",
    "☃" * 300,
)


def library(folder: Path) -> Paths:
    """Create chats with every kind of content, and a backup of an earlier state."""
    paths = resolve_paths({"KVCHAT_HOME": str(folder)})
    paths.ensure()
    receipt = Receipt(1.0, 0.0, 1.0, 0.0, 10, 5, 5, 30.0, Source.COLD)
    with closing(Database(paths.database)) as database:
        for number, name in enumerate(_NAMES):
            system, options = "Be brief." if number % 2 else "", ChatOptions(Sampling(temperature=0.5))
            chat = store_chat(database, NewChat(name, system, options=options)).id
            for at in range(20):
                document = Attachment("notes.txt", 9, "h", f"{name} notes. " * 50)
                question = database.append_question(chat, f"{name} {at}? " * 20, [document] if at % 5 == 0 else [])
                reply = database.append(chat, question.id, Role.ASSISTANT, "", MessageState.STREAMING)
                text, complete = f"{name} are {at}. " * 60, MessageState.COMPLETE
                database.update_reply(replace(reply, content=text, thinking="Hm.", state=complete, receipt=receipt))
            if number == 1:
                back_up(paths.database, replace_todays=True)
            tree.remove(database, database.append_question(chat, f"Gone from {name}"))
            with database.transaction() as db:
                db.execute("INSERT INTO drafts VALUES (?, ?)", (chat, f"A draft about {name}"))
        while index_batch(database):
            pass
    return paths


def mutate(paths: Paths, rng: random.Random) -> str:
    """Damage the file in one way and return a description."""
    way = rng.choice(("flip", "flip", "page", "cut", "empty", "rows", "rows", "rows", "circle", "leaf", "index"))
    file = paths.database
    if way in ("rows", "circle", "leaf", "index"):
        return f"{way}: {_damage_rows(file, way, rng)}"
    data = bytearray(file.read_bytes())
    if way == "flip":
        for _ in range(rng.choice((1, 20, 200))):
            data[rng.randrange(4096, len(data))] = rng.randrange(256)
    elif way == "page":
        at = rng.randrange(0, len(data) // 4096) * 4096
        data[at : at + 4096] = rng.choice((bytes(4096), rng.randbytes(4096)))
    else:
        del data[0 if way == "empty" else rng.randrange(1, len(data)) :]
    file.write_bytes(data)
    return way


def _damage_rows(file: Path, way: str, rng: random.Random) -> str:
    with closing(sqlite3.connect(file)) as db, db:
        if way == "index":
            db.execute("UPDATE searched_words_data SET block = x'00ff' WHERE id > 1")
            return "search index"
        if way == "leaf":
            db.execute("UPDATE conversations SET leaf_id = 'nobody' WHERE rowid = ?", (rng.randint(1, 4),))
            return "dangling"
        if way == "circle":
            (chat,) = db.execute("SELECT id FROM conversations WHERE rowid = ?", (rng.randint(1, 4),)).fetchone()
            query = "SELECT id FROM messages WHERE conversation_id = ? ORDER BY created_at, rowid"
            ids = [row[0] for row in db.execute(query, (chat,))]
            first, last = sorted(rng.choices(range(len(ids)), k=2))
            db.execute("UPDATE messages SET parent_id = ? WHERE id = ?", (ids[last], ids[first]))
            return "parents"
        done = []
        for _ in range(rng.randint(1, 6)):
            table = rng.choice(list(_COLUMNS))
            column, value = rng.choice(_COLUMNS[table]), rng.choice(_INVALID_VALUES)
            with suppress(sqlite3.Error):
                db.execute(
                    f"UPDATE {table} SET {column} = ? WHERE rowid ="
                    f" (SELECT rowid FROM {table} ORDER BY random() LIMIT 1)",
                    (value,),
                )
                done.append(f"{table}.{column} = {value!r:.20}")
        return ", ".join(done)


def use(paths: Paths) -> set[str]:
    """Do all that users do without an engine; return the names of fully readable chats."""
    whole: set[str] = set()
    with suppress(KvchatError), closing(Database(paths.database)) as database:
        _try(database.check)
        _try(lambda: database.write(INTERRUPT_ABANDONED, ()))
        for read in (entries, tree.removed_messages, presets):
            _try(lambda read=read: read(database, 0.0) if read is entries else read(database))  # type: ignore[misc]
        _try(database.draft_texts)
        _try(database.draft_attachments)
        _try(lambda: [index_batch(database) for _ in range(20)])
        _try(lambda: find(database, "notes lakes"))
        for conversation in _try(database.conversations) or []:
            branch = _try(lambda id=conversation.id: tree.current_branch(database, id)) or []  # type: ignore[misc]
            prompt_messages(branch)
            if len(branch) >= 40 and all("\ufffd" not in message.content for message in branch):
                whole |= {name for name in _NAMES if any(message.content.startswith(name) for message in branch)}
            _try(lambda id=conversation.id: answer_settings(database, id))  # type: ignore[misc]
            for form in ExportForm:
                target = paths.data / f"out.{form.value}"
                _try(lambda id=conversation.id, form=form, to=target: export_file(database, [id], form, to))  # type: ignore[misc]
            _try(lambda id=conversation.id: _ask(database, id))  # type: ignore[misc]
    return whole


def _ask(database: Database, conversation_id: str) -> None:
    beginning = turns.store_question(database, conversation_id, "And now?")
    database.move_to_end(beginning.question_id)
    path = database.path(beginning.question_id)
    assert path[-1].content == "And now?", "the question was lost"
    reply = database.append(conversation_id, beginning.question_id, Role.ASSISTANT, "So.", MessageState.COMPLETE)
    removed = tree.remove(database, path[-1])
    assert {row["id"] for row in removed.rows} >= {beginning.question_id, reply.id}
    tree.restore_messages(database, removed.id)


def _try(work: Callable[[], object]) -> object:
    try:
        return work()
    except KvchatError:
        return None


def one_round(paths: Paths, seed: int) -> None:
    """Damage the chats and use them, before and after a repair. Raises AssertionError for other than KvchatErrors."""
    damage = mutate(paths, random.Random(seed))
    try:
        before = use(paths)
        repair(paths)
        after = use(paths)
        assert before <= after, f"the repair lost {before - after}"
        assert after >= set(_NAMES[:2]) or not before, f"only {after} of {_NAMES} can be read after the repair"
        with closing(Database(paths.database)) as database:
            database.check()
            assert database.conversations()
    except Exception as error:
        raise AssertionError(f"seed {seed}, {damage}: {error!r}") from error


def run(rounds: int, seed: int = 1) -> list[str]:
    """Run rounds from this seed on; return descriptions of the faults."""
    faults = []
    with tempfile.TemporaryDirectory(prefix="kvchat-mutating-") as folder:
        library(Path(folder) / "good")
        for number in range(seed, seed + rounds):
            home = Path(folder) / str(number)
            shutil.copytree(Path(folder) / "good", home)
            fault: list[str] = []

            def work(home: Path = home, number: int = number, fault: list[str] = fault) -> None:
                try:
                    one_round(resolve_paths({"KVCHAT_HOME": str(home)}), number)
                except AssertionError:
                    fault.append(traceback.format_exc())

            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(TIMEOUT_S)
            faults += [f"seed {number} hangs"] if thread.is_alive() else fault
            shutil.rmtree(home, ignore_errors=True)
    return faults


if __name__ == "__main__":
    found = run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print("\n".join(found))
    print(json.dumps({"rounds": int(sys.argv[1]), "faults": len(found)}))
    sys.exit(1 if found else 0)
