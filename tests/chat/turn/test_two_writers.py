"""Several processes in one chat: one answers at a time, and each prompt is made of all that was said before it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.chat.record.chat_locks import ChatLocks
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Message, MessageState, Role
from kvchat.chat.record.tree import current_branch
from kvchat.chat.turn import opening
from kvchat.chat.turn.receipts import receipt_line
from kvchat.session.proof import Source
from tests.chat.stage import Stage
from tests.e2e.home import Home
from tests.e2e.waiting import wait_until
from tests.engine_fixtures import FakeEngine

WAITING = "This chat is being answered by another kvchat; waiting..."
HOLD = (
    "import sys; from pathlib import Path; from kvchat.chat.record.chat_locks import ChatLocks\n"
    "locks = ChatLocks(Path(sys.argv[1])); print(locks.acquire('chat'), flush=True); sys.stdin.read()"
)


@pytest.fixture
def home(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path) -> Home:
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2), engine_path=str(fake_engine.path), context_size=8192)
    return home


class Asking:
    """`kvchat ask` in a process of its own."""

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

    def ends(self) -> str:
        out, _ = self.process.communicate()
        assert self.process.returncode == 0, self.words.read_text("utf-8")
        return out.decode()


def said(home: Home) -> list[tuple[str, str]]:
    """The branch on show."""
    with closing(Database(home.folder / "data" / "conversations.db")) as database:
        (chat,) = database.conversations()
        return [(message.role.value, message.content) for message in current_branch(database, chat.id)]


def prompts(fake: FakeEngine) -> dict[str, list[str]]:
    """What the model was shown, by the question it was asked last."""
    asked = [request["body"]["messages"] for request in fake.requests() if request["path"] == "/v1/chat/completions"]
    return {messages[-1]["content"]: [message["content"] for message in messages] for messages in asked}


def test_the_second_waits_says_so_and_is_asked_with_the_whole_history(home: Home, fake_engine: FakeEngine) -> None:
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
    assert not list((home.folder / "data" / "answering").iterdir())


@pytest.mark.slow
def test_of_many_at_once_each_is_asked_with_all_that_was_said_before(home: Home, fake_engine: FakeEngine) -> None:
    Asking(home, "--new", "Zero").ends()
    asking = [Asking(home, word) for word in ("One", "Two", "Three", "Four")]
    for one in asking:
        one.ends()
    branch = said(home)
    assert len(branch) == 10
    for at, (_, words) in enumerate(branch):
        if at % 2:
            question = branch[at - 1][1]
            assert words.strip() == f"You said: {question}"
            assert prompts(fake_engine)[question] == [content.strip() for _, content in branch[:at]]


def test_who_waits_for_a_chat_keeps_the_engine_from_nobody(home: Home, fake_engine: FakeEngine) -> None:
    """Else two would wait for each other: one has the chat and no engine, one the engine and no chat."""
    Asking(home, "--new", "Zero").ends()
    locks = ChatLocks(home.folder / "data" / "answering")
    with closing(Database(home.folder / "data" / "conversations.db")) as database:
        (chat,) = database.conversations()
    assert locks.acquire(chat.id)
    waiting = Asking(home, "One")
    waiting.says(WAITING)
    assert Asking(home, "--new", "Elsewhere").ends().strip() == "You said: Elsewhere"
    locks.release(chat.id)
    assert waiting.ends().strip() == "You said: One"


def test_the_lock_dies_with_its_process_and_leaves_no_file(tmp_path: Path) -> None:
    locks = ChatLocks(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        assert not locks.acquire("chat")
        assert locks.held_elsewhere("chat")
        assert not locks.held_elsewhere("another")
        other.kill()
        other.wait()
    assert list(tmp_path.iterdir())
    locks.sweep()
    assert not list(tmp_path.iterdir())
    assert locks.acquire("chat")
    assert locks.acquire("chat")  # the next message, while the reply before it is being saved
    locks.release("chat")
    locks.sweep()
    assert list(tmp_path.iterdir())
    locks.release("chat")
    assert not list(tmp_path.iterdir())


def test_where_there_can_be_no_lock_chats_go_on(tmp_path: Path) -> None:
    (tmp_path / "answering").write_text("no folder")
    locks = ChatLocks(tmp_path / "answering")
    assert locks.acquire("chat")
    locks.release("chat")


async def test_stop_ends_the_waiting_and_keeps_the_words(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = await stage.chat()
    await stage.answered(chat)
    monkeypatch.setattr(ChatLocks, "acquire", lambda self, id: False)
    waiting = stage.runtime.chat.send(chat, "Two")
    await stage.until(lambda: any(type(event).__name__ == "WaitingForWriter" for event in stage.events))
    stage.runtime.chat.stop(chat)
    assert await waiting is None
    assert (await stage.runtime.chat.messages(chat))[-1].content == "Two"
    monkeypatch.undo()
    await stage.runtime.chat.retry(chat)
    assert (await stage.runtime.chat.messages(chat))[-1].content.strip() == "You said: Two"


async def test_the_wait_for_another_process_is_no_part_of_the_time_to_the_first_token(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await stage.chat()
    await stage.answered(chat)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(ChatLocks, "acquire", lambda self, id: False)
        waiting = stage.runtime.chat.send(chat, "Two")
        await stage.until(lambda: any(type(event).__name__ == "WaitingForWriter" for event in stage.events))
        await asyncio.sleep(0.6)  # the receipt names no wait that is shorter than 0.5 s
    reply = await waiting
    assert reply is not None
    assert reply.receipt is not None
    assert reply.receipt.queue_wait_ms > 500
    assert "for another reply" in receipt_line(reply.receipt).text


def test_an_empty_reply_that_is_taken_back_takes_no_words_along(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "chats.db")) as database:
        chat = database.create_conversation("x").id
        first = database.append_question(chat, "One")
        reply = database.append(chat, first.id, Role.ASSISTANT, "", MessageState.STREAMING)
        second = database.append_question(chat, "Two")
        database.remove_leaf(reply)
        assert [message.content for message in database.branch(chat)] == ["One", "Two"]
        assert database.path(second.id)[0].id == first.id


def others(database: Database, question: Message) -> None:
    """The question is another living process's."""
    with database.transaction() as db:
        db.execute("UPDATE messages SET writer = ? WHERE id = ?", (_SOMEBODY, question.id))


_SOMEBODY = "1:0.00"


@pytest.mark.parametrize("answered_now", [False, True])
def test_a_question_that_waited_moves_behind_what_was_said_meanwhile(tmp_path: Path, answered_now: bool) -> None:
    with closing(Database(tmp_path / "chats.db")) as database:
        chat = database.create_conversation("x").id
        first = database.append_question(chat, "One")
        mine = database.append_question(chat, "Mine")
        database.append(chat, first.id, Role.ASSISTANT, "Reply", MessageState.STREAMING)
        assert opening.stand_last(database, mine.id, answered_now=answered_now)
        assert [message.content for message in database.branch(chat)] == ["One", "Reply", "Mine"]
        assert not opening.stand_last(database, mine.id, answered_now=answered_now)


def test_the_one_that_is_answered_first_stands_before_others_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "is_alive", lambda writer: writer == _SOMEBODY)
    with closing(Database(tmp_path / "chats.db")) as database:
        chat = database.create_conversation("x").id
        first = database.append_question(chat, "One")
        database.append(chat, first.id, Role.ASSISTANT, "Reply", MessageState.COMPLETE)
        theirs = database.append_question(chat, "Theirs")
        others(database, theirs)
        mine = database.append_question(chat, "Mine")
        assert opening.stand_last(database, mine.id, answered_now=True)
        assert [message.content for message in database.branch(chat)] == ["One", "Reply", "Mine"]
        reply = database.append(chat, mine.id, Role.ASSISTANT, "Mine too", MessageState.COMPLETE)
        monkeypatch.setattr(opening, "is_alive", lambda writer: False)
        assert opening.stand_last(database, theirs.id, answered_now=True)
        assert [message.content for message in database.path(theirs.id)][-2:] == [reply.content, "Theirs"]


async def test_one_that_need_not_wait_stands_before_those_that_do(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the chat, and while it is being put on disk others put theirs there."""
    chat = await stage.chat()
    await stage.answered(chat)
    monkeypatch.setattr(opening, "is_alive", lambda writer: writer == _SOMEBODY)
    with closing(Database(stage.home / "data" / "conversations.db")) as database:
        others(database, database.append_question(chat, "Theirs"))
    assert await stage.runtime.chat.send(chat, "Mine") is not None
    shown = [message.content.strip() for message in await stage.runtime.chat.messages(chat)]
    assert shown[-2:] == ["Mine", "You said: Mine"]
    assert "Theirs" not in shown, "it is asked when this one is answered, and with the answer"


def test_a_question_stays_on_its_branch_where_the_user_has_gone_to_another(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "chats.db")) as database:
        chat = database.create_conversation("x").id
        first = database.append_question(chat, "One")
        left = database.append(chat, first.id, Role.ASSISTANT, "Left", MessageState.COMPLETE)
        mine = database.append_question(chat, "Mine")
        database.append(chat, first.id, Role.ASSISTANT, "Right", MessageState.COMPLETE)
        assert not opening.stand_last(database, mine.id, answered_now=True)
        assert [message.id for message in database.path(mine.id)] == [first.id, left.id, mine.id]


async def test_a_chat_that_a_command_asks_is_foretold_as_one_of_the_window(
    home: Home, fake_engine: FakeEngine, smollm2: Path
) -> None:
    """It comes in by the door; what was kept of it once stood under no message, and was to be read again."""
    async with Stage(home.folder, fake_engine, smollm2, is_window=True) as stage:
        runtime, forecasts = stage.runtime, stage.runtime.chat.forecasts
        await stage.answered(await stage.chat())
        await runtime.door.let_commands_in()
        asking = await asyncio.to_thread(Asking, home, "--new", "A long story of the river and the garden. " * 20)
        await asyncio.to_thread(asking.ends)
        await runtime.door.idle()
        (chat,) = [one.id for one in await runtime.chat.conversations() if one.title.startswith("A long story")]
        assert (await forecasts.of_chats({chat: None}))[chat].source is Source.HOT
        await stage.answered(await stage.chat(), "Something else altogether. " * 20)
        forecast = (await forecasts.of_chats({chat: None}))[chat]
        assert (forecast.source, forecast.to_read < 20) == (Source.WARM, True)
        receipt = await stage.answered(chat, "Go on.")
        assert (receipt.source, receipt.prompt_tokens - receipt.cached_tokens < 60) == (Source.WARM, True)
