"""Several processes in one chat: one answers at a time, each with the whole history."""

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
from tests.systems import needs_signals

WAITING = "Another reply is being generated; waiting…"


@pytest.fixture
def home(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path) -> Home:
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2), engine_path=str(fake_engine.path), context_size=8192)
    return home


class AskCommand:
    def __init__(self, home: Home, *arguments: str) -> None:
        self.stderr = home.folder / f"{arguments[-1][:40]}.stderr"
        with self.stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvchat", "ask", *arguments],
                env=os.environ | {"KVCHAT_HOME": str(home.folder)},
                stdout=subprocess.PIPE,
                stderr=stderr,
            )

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text.encode() in self.stderr.read_bytes(), what=text)

    def exit_status(self) -> int:
        self.process.communicate()
        return self.process.returncode

    def output(self) -> str:
        out, _ = self.process.communicate()
        assert self.process.returncode == 0, self.stderr.read_text("utf-8")
        return out.decode().strip()


def start_reply(home: Home, engine: FakeEngine, *arguments: str) -> AskCommand:
    """Start a command and hold the engine in its reply."""
    engine.set(FAKE_HOLD_DURING="stream")
    command = AskCommand(home, *arguments)
    wait_until(lambda: home.replies("streaming"), what="the beginning of the reply")
    return command


def start_waiting(home: Home, question: str) -> AskCommand:
    command = AskCommand(home, question)
    command.wait_for(WAITING)
    wait_until(lambda: question in {message["content"] for message in home.messages()}, what="the stored question")
    return command


def prompts(engine: FakeEngine) -> dict[str, list[str]]:
    """Map each question to the messages sent to the engine with it."""
    bodies = [request["body"] for request in engine.requests() if request["path"] == "/v1/chat/completions"]
    texts = [[message["content"] for message in body["messages"]] for body in bodies]
    return {prompt[-1]: prompt for prompt in texts}


def questions(home: Home) -> list[str]:
    with closing(Database(home.folder / "data" / "conversations.db")) as database:
        (chat,) = database.conversations()
        return [message.content for message in current_branch(database, chat.id) if message.role is Role.USER]


def test_second_command_waits_and_gets_the_whole_history(home: Home, fake_engine: FakeEngine) -> None:
    first = start_reply(home, fake_engine, "--new", "One")
    second = start_waiting(home, "Two")
    assert [message["content"] for message in home.messages() if message["role"] == "user"] == ["One", "Two"]
    assert second.process.poll() is None
    fake_engine.set(FAKE_HOLD_DURING=None)
    assert [first.output(), second.output()] == ["You said: One", "You said: Two"]
    assert prompts(fake_engine)["Two"] == ["One", "You said: One", "Two"]
    with closing(Database(home.folder / "data" / "conversations.db")) as database:
        (chat,) = database.conversations()
        branch = [message.content for message in current_branch(database, chat.id)]
    assert branch[-4:] == ["One", "You said: One", "Two", "You said: Two"]


def test_command_takes_over_from_a_killed_one(home: Home, fake_engine: FakeEngine) -> None:
    first = start_reply(home, fake_engine, "--new", "One")
    guest = start_waiting(home, "Two")
    first.process.kill()
    first.exit_status()
    assert guest.exit_status() == 1
    assert "ended unexpectedly" in guest.stderr.read_text("utf-8")
    fake_engine.set(FAKE_HOLD_DURING=None)
    assert AskCommand(home, "Three").output().endswith("Three")
    assert questions(home) == ["One", "Two", "Three"]
    assert not home.replies("streaming")


@needs_signals
def test_ctrl_c_ends_only_its_own_command(home: Home, fake_engine: FakeEngine) -> None:
    AskCommand(home, "--new", "Zero").output()
    first = start_reply(home, fake_engine, "One")
    stopped, other = start_waiting(home, "Two"), start_waiting(home, "Three")
    stopped.process.send_signal(signal.SIGINT)
    assert stopped.exit_status() == 130
    assert first.process.poll() is None
    first.process.send_signal(signal.SIGINT)
    fake_engine.set(FAKE_HOLD_DURING=None)
    assert other.output().endswith("Three")
    assert first.exit_status() == 130
    assert questions(home)[-1] == "Three"


async def test_stop_ends_waiting_and_keeps_the_question(stage: Stage, fake_engine: FakeEngine) -> None:
    chat = await stage.answered_chat()
    fake_engine.set(FAKE_HOLD_DURING="stream")
    first = stage.service.send(chat, "One")
    await stage.until(lambda: stage.service.answering_chats)
    starts: list[bool] = []
    waiting = stage.service.send(chat, "Two", on_start=lambda: starts.append(True))
    await stage.until(lambda: b"Two" in (stage.home / "data" / "conversations.db-wal").read_bytes())
    waiting.cancel()
    fake_engine.set(FAKE_HOLD_DURING=None)
    assert await first is not None
    await stage.idle()
    assert not starts
    assert stage.database.rows("SELECT 1 FROM messages WHERE content = 'Two'")


def test_removing_an_empty_reply_keeps_messages_below(database: Database) -> None:
    chat = database.create_conversation("x").id
    first = database.append_question(chat, "One")
    reply = database.append(chat, first.id, Role.ASSISTANT, "", MessageState.STREAMING)
    second = database.append_question(chat, "Two")
    database.remove_empty_reply(reply)
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
    texts = [message.content for message in database.branch(chat)]
    assert texts == ["One", "Reply", "Mine", "To mine", "Later"]


def test_question_stays_on_its_branch(database: Database) -> None:
    chat = database.create_conversation("x").id
    first = database.append_question(chat, "One")
    left = database.append(chat, first.id, Role.ASSISTANT, "Left", MessageState.COMPLETE)
    mine = database.append_question(chat, "Mine")
    database.append(chat, first.id, Role.ASSISTANT, "Right", MessageState.COMPLETE)
    assert not database.move_to_end(mine.id)
    assert [message.id for message in database.path(mine.id)] == [first.id, left.id, mine.id]
