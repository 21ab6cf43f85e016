"""The window beside `kvchat ask`: it shows the other's messages, and waits for its reply before its own."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from PySide6.QtCore import Qt
from PySide6.QtGui import QTextCursor
from PySide6.QtTest import QTest

from kvchat.chat.record.messages import Role
from kvchat.cli.owned import CommandRunner
from kvchat.settings import load_settings
from kvchat.system.owner import InstanceLock
from kvchat.system.paths import resolve_paths
from kvchat.ui.base.theme import Look
from tests.chat.turn.test_two_writers import AskCommand, home, prompts
from tests.e2e.home import Home
from tests.engine_fixtures import FakeEngine
from tests.ui.windows import Open, begun

__all__ = ["home"]  # the fixture

LONG = "\n\n".join(f"Paragraph {number} of many." for number in range(40))


@pytest_asyncio.fixture
async def opened(home: Home, look: Look) -> AsyncIterator[Open]:
    paths = resolve_paths({"KVCHAT_HOME": str(home.folder)})
    async with begun(home.folder, load_settings(paths.settings_file), look) as window:
        await window.runtime.engine.ready()
        ownership, runner = InstanceLock(paths.data, "the kvchat window"), CommandRunner(paths, "the kvchat window")
        assert ownership.claim()
        runner.open_runtime = window.runtime
        ownership.listen(runner.serve_connection)
        yield window
        ownership.stop_listening()
        await runner.close()
        ownership.release()


async def test_the_window_shows_what_a_command_asks_and_queues_what_is_sent_meanwhile(
    opened: Open, home: Home, fake_engine: FakeEngine
) -> None:
    opened.send("Zero")
    await opened.until(lambda: opened.shown() == ["Zero", "You said: Zero"])
    await opened.runtime.chat.wait_until_idle()
    fake_engine.set(FAKE_HOLD_DURING="stream", FAKE_REPLY=LONG)
    other = AskCommand(home, "One")
    await opened.until(lambda: opened.shown()[2:3] == ["One"])
    opened.window.composer.set_draft("Two")
    QTest.keyClick(opened.window.composer.editor, Qt.Key.Key_Return)
    fake_engine.set(FAKE_HOLD_DURING=None, FAKE_TOKEN_DELAY=0.05)
    await opened.until(lambda: any("Paragraph 3" in text for text in opened.shown()[3:4]))  # as it comes
    fake_engine.set(FAKE_TOKEN_DELAY=None, FAKE_REPLY=None)
    await opened.until(lambda: opened.shown()[4:] == ["Two", "You said: Two"])
    assert opened.shown()[3] == LONG
    assert await asyncio.to_thread(other.output)
    assert prompts(fake_engine)["Two"][-3:] == ["One", LONG, "Two"]
    new = AskCommand(home, "--new", "Something else")
    await opened.until(lambda: "Something else" in opened.titles())
    await asyncio.to_thread(new.output)


async def test_what_another_writes_moves_neither_the_page_nor_an_edit(
    opened: Open, home: Home, fake_engine: FakeEngine
) -> None:
    fake_engine.set(FAKE_REPLY=LONG)
    opened.send("Zero")
    await opened.until(lambda: opened.shown() == ["Zero", LONG])
    await opened.runtime.chat.wait_until_idle()
    page = opened.window.transcript
    bar = page.verticalScrollBar()
    await opened.until(lambda: bar.maximum() > 0)
    question = next(message for message in page.messages if message.role is Role.USER)
    page.edit(question.id)
    editor = page.views[question.id].editor
    assert editor is not None
    editor.field.moveCursor(QTextCursor.MoveOperation.End)
    editor.field.insertPlainText(" and more")
    bar.setValue(0)
    other = AskCommand(home, "One")
    await asyncio.to_thread(other.output)
    await opened.until(lambda: len(page.messages) == 4)
    assert bar.value() == 0
    assert page.views[question.id].editor is editor
    assert editor.field.toPlainText() == "Zero and more"
