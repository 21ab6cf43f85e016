"""Several processes in one chat: one answers at a time, and each prompt is made of all that was said before it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import MessageState, Role
from kvchat.chat.record.tree import current_branch
from tests.chat.stage import Stage
from tests.e2e.home import Home
from tests.e2e.waiting import wait_until
from tests.engine_fixtures import FakeEngine

WAITING = "Another reply is being generated; waiting…"


@pytest.fixture
def home(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path) -> Home:
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2), engine_path=str(fake_engine.path), context_size=8192)
    return home


class Asking:
    def __init__(self, home: Home, *arguments: str) -> None:
        self.words = home.folder / f"{arguments[-1][:40]}.said"
        with self.words.open("wb") as words:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvchat", "ask", *arguments],
                env=os.environ | {"KVCHAT_HOME": str(home.folder)},
                stdout=subprocess.PIPE,
                stderr=words,
            )

    def says(self, words: str) -> None:
        wait_until(lambda: words.encode() in self.words.read_bytes(), what=words)

    def code(self) -> int:
        self.process.communicate()
        return self.process.returncode

    def ends(self) -> str:
        out, _ = self.process.communicate()
        assert self.process.returncode == 0, self.words.read_text("utf-8")
        return out.decode()


def said(home: Home) -> list[tuple[str, str]]:
    with closing(Database(home.folder / "data" / "conversations.db")) as database:
        (chat,) = database.conversations()
        return [(message.role.value, message.content) for message in current_branch(database, chat.id)]


def prompts(fake: FakeEngine) -> dict[str, list[str]]:
    asked = [request["body"]["messages"] for request in fake.requests() if request["path"] == "/v1/chat/completions"]
    return {messages[-1]["content"]: [message["content"] for message in messages] for messages in asked}


def test_second_command_waits_and_gets_the_whole_history(home: Home, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_HOLD_DURING="stream")
    first = Asking(home, "--new", "One")
    wait_until(lambda: home.replies("streaming"), what="the first reply's beginning")
    second = Asking(home, "Two")
    second.says(WAITING)
    assert [message["content"] for message in home.messages() if message["role"] == "user"] == ["One", "Two"]
    assert second.process.poll() is None
    fake_engine.set(FAKE_HOLD_DURING=None)
    assert [first.ends().strip(), second.ends().strip()] == ["You said: One", "You said: Two"]
    assert prompts(fake_engine)["Two"] == ["One", "You said: One", "Two"]
    assert said(home)[-4:] == [
        ("user", "One"),
        ("assistant", "You said: One"),
        ("user", "Two"),
        ("assistant", "You said: Two"),
    ]


def test_command_takes_over_from_a_killed_one(home: Home, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_HOLD_DURING="stream")
    first = Asking(home, "--new", "One")
    wait_until(lambda: home.replies("streaming"), what="the first reply's beginning")
    guest = Asking(home, "Two")
    guest.says(WAITING)
    first.process.kill()
    first.code()
    assert guest.code() == 1
    assert "ended unexpectedly" in guest.words.read_text("utf-8")
    fake_engine.set(FAKE_HOLD_DURING=None)
    assert Asking(home, "Three").ends().strip().endswith("Three")
    assert [words for role, words in said(home) if role == "user"] == ["One", "Two", "Three"]
    assert not home.replies("streaming")


def test_ctrl_c_ends_only_its_own_command(home: Home, fake_engine: FakeEngine) -> None:
    Asking(home, "--new", "Zero").ends()
    fake_engine.set(FAKE_HOLD_DURING="stream")
    first = Asking(home, "One")
    wait_until(lambda: home.replies("streaming"), what="the first reply's beginning")
    stopped = Asking(home, "Two")
    stopped.says(WAITING)
    other = Asking(home, "Three")
    other.says(WAITING)
    stopped.process.send_signal(signal.SIGINT)
    assert stopped.code() == 130
    assert first.process.poll() is None
    first.process.send_signal(signal.SIGINT)
    fake_engine.set(FAKE_HOLD_DURING=None)
    assert other.ends().strip().endswith("Three")
    assert first.code() == 130
    assert [words for role, words in said(home) if role == "user"][-1] == "Three"


async def test_stop_ends_waiting_and_keeps_the_question(stage: Stage, fake_engine: FakeEngine) -> None:
    chat = await stage.answered_chat()
    fake_engine.set(FAKE_HOLD_DURING="stream")
    first = stage.service.send(chat, "One")
    await stage.until(lambda: stage.service.answering_chats)
    begun: list[bool] = []
    waiting = stage.service.send(chat, "Two", on_start=lambda: begun.append(True))
    await stage.until(
        lambda: "Two" in stage.home.joinpath("data", "conversations.db-wal").read_bytes().decode("latin-1")
    )
    waiting.cancel()
    fake_engine.set(FAKE_HOLD_DURING=None)
    assert await first is not None
    await stage.idle()
    assert not begun
    with closing(Database(stage.home / "data" / "conversations.db")) as database:
        assert database.rows("SELECT 1 FROM messages WHERE content = 'Two'")


def test_removing_an_empty_reply_keeps_messages_below(database: Database) -> None:
    chat = database.create_conversation("x").id
    first = database.append_question(chat, "One")
    reply = database.append(chat, first.id, Role.ASSISTANT, "", MessageState.STREAMING)
    second = database.append_question(chat, "Two")
    database.remove_leaf(reply)
    assert [message.content for message in database.branch(chat)] == ["One", "Two"]
    assert database.path(second.id)[0].id == first.id


def test_waiting_question_moves_to_the_end(database: Database) -> None:
    chat = database.create_conversation("x").id
    first = database.append_question(chat, "One")
    mine, later = database.append_question(chat, "Mine"), database.append_question(chat, "Later")
    assert not database.move_to_end(mine.id, {later.id}), "nothing was said meanwhile"
    database.append(chat, first.id, Role.ASSISTANT, "Reply", MessageState.COMPLETE)
    assert database.move_to_end(mine.id, {later.id})
    assert [message.content for message in database.branch(chat)] == ["One", "Reply", "Mine"]
    assert not database.move_to_end(mine.id)
    database.append(chat, mine.id, Role.ASSISTANT, "To mine", MessageState.COMPLETE)
    assert database.move_to_end(later.id)
    told = ["One", "Reply", "Mine", "To mine", "Later"]
    assert [message.content for message in database.branch(chat)] == told


def test_question_stays_on_its_branch(database: Database) -> None:
    chat = database.create_conversation("x").id
    first = database.append_question(chat, "One")
    left = database.append(chat, first.id, Role.ASSISTANT, "Left", MessageState.COMPLETE)
    mine = database.append_question(chat, "Mine")
    database.append(chat, first.id, Role.ASSISTANT, "Right", MessageState.COMPLETE)
    assert not database.move_to_end(mine.id)
    assert [message.id for message in database.path(mine.id)] == [first.id, left.id, mine.id]
