"""Text typed and sent while kvchat starts is neither lost nor duplicated, even if the process is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvchat.chat.record.database import Database
from kvchat.library.model_files import name_from_path
from kvchat.settings import Settings, save_settings
from kvchat.system.paths import Paths, resolve_paths
from tests.e2e.desktop import Desktop
from tests.e2e.waiting import wait_until
from tests.e2e.window import KVCHAT
from tests.engine_fixtures import FakeEngine
from tests.systems import not_on_windows

pytestmark = [pytest.mark.e2e, not_on_windows("kills as POSIX does")]

# Types as soon as the first window lists the chats ("\n" is Enter), and kills itself at the given moment.
_DRIVER = """
import asyncio, os, signal, sys
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from kvchat import app, startup
from kvchat.chat.turn import turns

words, moment = os.environ["WORDS"], os.environ["MOMENT"]
show = app.MainWindow.show_initial_chats

def show_and_type(window, *first):
    show(window, *first)
    for letter in words:
        if letter == "\\n":
            QTest.keyClick(window.composer.editor, Qt.Key.Key_Return)
        else:
            QTest.keyClick(window.composer.editor, letter)

app.MainWindow.show_initial_chats = show_and_type

def dies(function, *, after):
    def dying(*given, **more):
        if after:
            function(*given, **more)
        os.kill(os.getpid(), signal.SIGKILL)
    return dying

if moment == "imports":  # never
    async def hang(*_):
        await asyncio.Event().wait()
    startup.asyncio.to_thread = hang
elif moment == "before it is stored":
    turns.store_question = dies(turns.store_question, after=False)
elif moment in ("while it is stored", "before the commit"):
    def store_question(*given, store=turns.store_question, **more):  # drafts are also stored by themselves
        turns.Database.store_drafts = dies(turns.Database.store_drafts, after=moment == "before the commit")
        return store(*given, **more)
    turns.store_question = store_question
elif moment == "after the commit":
    turns.ConversationsChanged = dies(turns.ConversationsChanged, after=False)  # told first after it
sys.exit(app.run(starter=False, hidden=False))
"""


@pytest.fixture
def home(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path) -> Paths:
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")}).ensure()
    settings = Settings(model_path=str(smollm2), engine_path=str(fake_engine.path), context_size=4096)
    save_settings(paths.settings_file, settings)
    with closing(Database(paths.database)) as database:
        chat = database.create_conversation("Earlier")
        database.write("INSERT INTO drafts VALUES (?, ?)", (chat.id, "Dear "))
    return paths


@contextmanager
def started(home: Paths, words: str, moment: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {
        "KVCHAT_HOME": str(home.data.parent),
        "QT_QPA_PLATFORM": "offscreen",
        "WORDS": words,
        "MOMENT": moment,
    }
    with subprocess.Popen((sys.executable, "-c", _DRIVER), env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def on_disk(home: Paths) -> tuple[list[str], list[str]]:
    with closing(Database(home.database)) as database:
        drafts = [row["text"] for row in database.rows("SELECT text FROM drafts WHERE text <> ''")]
        said = [row["content"] for row in database.rows("SELECT content FROM messages WHERE role = 'user'")]
    return drafts, said


@pytest.mark.parametrize(("words", "draft"), [("Ada", "Dear Ada"), ("Ada\n", "Dear Ada")])
def test_text_typed_during_startup_is_stored(home, words, draft):
    with started(home, words, "imports"):
        wait_until(lambda: on_disk(home)[0] == [draft], what="the draft")
    assert on_disk(home) == ([draft], [])


@pytest.mark.parametrize(
    "moment", ["before it is stored", "while it is stored", "before the commit", "after the commit"]
)
def test_after_a_kill_the_text_is_a_draft_or_a_message(home, moment):
    with started(home, "Ada\n", moment) as process:
        assert process.wait(240) == -signal.SIGKILL
    assert on_disk(home) == (([], ["Dear Ada"]) if moment == "after the commit" else (["Dear Ada"], []))


def test_a_message_sent_during_startup_is_answered(home, smollm2):
    def answered() -> list[str]:
        with closing(Database(home.database)) as database:
            query = "SELECT content FROM messages WHERE role = 'assistant' AND state = 'complete' ORDER BY rowid"
            return [row["content"] for row in database.rows(query)]

    with started(home, "Ada\n", "") as process:
        wait_until(lambda: answered(), seconds=240, what="the reply")
        process.terminate()
        assert process.wait(240) == 0
    assert answered() == ["You said: Dear Ada"]
    with closing(Database(home.database)) as database:
        receipts = database.rows("SELECT receipt FROM messages WHERE role = 'assistant'")
        assert {json.loads(row["receipt"])["model_name"] for row in receipts} == {name_from_path(smollm2)}
    assert on_disk(home) == ([], ["Dear Ada"])


def test_the_draft_is_stored_and_one_line_printed_when_the_display_is_lost(home, tmp_path):
    said = tmp_path / "said.txt"
    with (
        Desktop(tray=False) as desktop,
        desktop.application(*KVCHAT, output=said, KVCHAT_HOME=str(home.data.parent)) as kvchat,
    ):
        composer = desktop.find("text", "Message")
        wait_until(lambda: composer.text == "Dear ", what="the draft")
        composer.set_text("Dear Ada")
        wait_until(lambda: composer.text == "Dear Ada", what="the words")
        desktop.display.server.kill()
        assert kvchat.wait(180) == 1
    lines = said.read_text("utf-8").splitlines()
    assert lines[-1] == "The connection to the display was lost; kvchat is saving your chats and quitting."
    assert len(lines) == 2, "and one by Qt"
    with closing(Database(home.database)) as database:
        assert [row["text"] for row in database.rows("SELECT text FROM drafts")] == ["Dear Ada"]
