"""Links and files that kvchat is asked to open, and the quick window, with the staged runtime."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from kvchat import __main__
from kvchat.chat.events import QuestionNotStored, TurnFailed
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.cli.options import parse
from kvchat.errors import KvchatError
from kvchat.system.owner import StartRequest
from kvchat.system.session_bus import SessionBus
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.app.start_requests import QuickWindow, StartRequestHandler
from kvchat.ui.base.theme import Look
from kvchat.ui.models.models_window import ModelsWindow
from kvchat.ui.settings.mcp_bundles import InstallBundleDialog
from kvchat.ui.transcript.footer import MessageRequest, RequestKind
from kvchat.ui.transcript.reply_view import ReplyView
from tests.library.gguf_files import write_gguf
from tests.tools.mcp.test_bundles import write_bundle
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child

pytestmark = pytest.mark.slow


@pytest.fixture
def start_requests(furnished: StagedRuntime, window: MainWindow, look: Look) -> Iterator[StartRequestHandler]:
    start_requests = StartRequestHandler(furnished, window, look, SessionBus())
    yield start_requests
    start_requests.close()


async def test_a_link_shows_a_chat_and_writes_without_sending(
    furnished: StagedRuntime, window: MainWindow, start_requests: StartRequestHandler
) -> None:
    window.hide()
    start_requests.handle(StartRequest(("kvchat://chat/b",)))
    assert (window.isVisible(), window.chat.current) == (True, "b")
    start_requests.handle(StartRequest(("kvchat://new?text=Why%20is%0Ait%20blue%3F",)))
    assert (window.chat.current, window.composer.draft) == (None, "Why is\nit blue?")
    start_requests.open("kvchat://new?text=%20So%3F")
    assert window.composer.draft == "Why is\nit blue? So?", "what was written is not overwritten"
    assert not furnished.chat.answering_chats


async def test_a_link_that_leads_nowhere_is_told(
    furnished: StagedRuntime, window: MainWindow, start_requests: StartRequestHandler
) -> None:
    for link in ("kvchat://chat/gone", "kvchat://delete/b", "kvchat:"):
        start_requests.open(link)
        assert window.notices.visible_notices[-1].texts == ("The link target was not found", link)
    assert window.chat.current == "d"


@pytest.mark.parametrize(
    "link",
    [
        "kvchat://[",
        "kvchat://new?text=" + "x" * 3_000_000,
        "kvchat://new?" + "text=a&" * 100_000,
        "kvchat://new?text=%00%1b[2J%ff",
        "kvchat://chat/" + "../" * 50_000,
        "kvchat://model/" + "x" * 1_000_000,
        "kvchat://\u202e<img src=http://192.0.2.1/>" + "y" * 100_000,
        "file:///tmp/a%00b.txt",
        "file:///" + "z" * 100_000,
        "/tmp/a\0b.kvchat",
        "/tmp/a\0b.gguf",
    ],
    ids=lambda link: ascii(link)[:30],
)
async def test_a_hostile_link_does_no_harm(
    furnished: StagedRuntime,
    window: MainWindow,
    start_requests: StartRequestHandler,
    monkeypatch: pytest.MonkeyPatch,
    link: str,
) -> None:
    bugs: list[BaseException] = []
    monkeypatch.setattr(window.runner, "_on_bug", bugs.append)
    start_requests.open(link)
    await until(lambda: not window.runner._tasks)
    assert not bugs
    assert len(window.composer.draft) < 30_000
    assert all(len(notice.texts[1]) < 500 for notice in window.notices.visible_notices)
    assert not furnished.chat.answering_chats


async def test_a_link_to_a_model_asks_nothing_of_the_network(
    window: MainWindow, start_requests: StartRequestHandler
) -> None:
    start_requests.open("kvchat://model/ggml-org/gemma-3-4b-it-GGUF")
    models = child(window, ModelsWindow)
    assert models.hub.field.text() == "ggml-org/gemma-3-4b-it-GGUF"
    await until(lambda: models.hub.list.rows)  # suggestions, which are known here
    assert models.hub.heading.text().startswith("Suggestions")


async def test_a_document_is_attached_to_a_new_chat(
    furnished: StagedRuntime, window: MainWindow, start_requests: StartRequestHandler, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("The heron stands.")
    start_requests.handle(StartRequest((str(tmp_path / "notes.txt"),)))
    await until(lambda: window.composer.chips.attachments)
    assert window.chat.current is None
    assert window.composer.chips.attachments[0].text == "The heron stands."


async def test_a_model_answers_from_now_on(
    furnished: StagedRuntime, window: MainWindow, start_requests: StartRequestHandler, tmp_path: Path
) -> None:
    model = write_gguf(tmp_path / "other.gguf")
    start_requests.open(model.as_uri())
    await until(lambda: ("load_model", model) in furnished.calls)
    await until(lambda: furnished.chat.by_id["d"].model == str(model))


async def test_a_chat_that_travels_is_taken_in(
    furnished: StagedRuntime, window: MainWindow, start_requests: StartRequestHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[list[Path]] = []
    monkeypatch.setattr(window.transfer, "import_files", taken.append)
    start_requests.open("/home/a/Lakes.kvchat")
    assert taken == [[Path("/home/a/Lakes.kvchat")]]


async def test_an_mcp_bundle_is_offered(
    window: MainWindow, start_requests: StartRequestHandler, tmp_path: Path
) -> None:
    start_requests.handle(StartRequest((str(write_bundle(tmp_path / "demo.MCPB")),)))
    await until(lambda: window.findChild(InstallBundleDialog))
    child(window, InstallBundleDialog).close()


def test_files_and_links_need_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, ...]] = []
    monkeypatch.setattr(__main__, "_prepare_window", lambda targets, **_: lambda: opened.append(targets))
    file = tmp_path / "chat.kvchat"
    file.touch()
    for target in (str(file), "kvchat://chat/a"):
        __main__.main([target])
    assert opened == [(str(file),), ("kvchat://chat/a",)]
    with pytest.raises(SystemExit):
        __main__.main([str(tmp_path)])
    assert parse(["open", "a", "b"])[1].targets == ("a", "b")
    assert parse(["quick"])[0].name == "quick"


@pytest.fixture
def quick(start_requests: StartRequestHandler) -> QuickWindow:
    start_requests.handle(StartRequest(quick=True))
    return start_requests.quick_window


async def test_a_quick_question_is_answered_in_its_window(
    furnished: StagedRuntime, window: MainWindow, quick: QuickWindow, qtbot: QtBot
) -> None:
    assert quick.isVisible()
    assert quick.transcript.isHidden()
    small = quick.height()
    qtbot.keyClicks(quick.composer.editor, "How high?")
    qtbot.keyClick(quick.composer.editor, Qt.Key.Key_Return)
    await until(lambda: furnished.chat.answering_chats)
    chat = furnished.chat.answering_chats[0]
    assert quick.height() > small
    furnished.chat.say("Eight metres.")
    await until(lambda: any(isinstance(v, ReplyView) and v.text for v in quick.transcript.views.values()))
    furnished.chat.finish()
    await until(lambda: not furnished.chat.is_answering(chat))
    assert window.chat.current == "d", "the main window stays where it was"
    reply = await furnished.chat.messages(chat)
    quick.transcript.message_requested.emit(MessageRequest(RequestKind.REGENERATE, reply[-1]))
    await until(lambda: furnished.chat.is_answering(chat))
    furnished.chat.finish()
    await until(lambda: not furnished.chat.is_answering(chat))
    quick.open_in_main_button.click()
    assert (quick.isVisible(), window.chat.current) == (False, chat)
    quick.toggle()
    assert quick.transcript.isHidden(), "the next one is another question"


async def test_an_edit_of_a_quick_reply_that_cannot_be_stored_stays_in_its_editor(
    furnished: StagedRuntime, window: MainWindow, quick: QuickWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageFailed("Your chats could not be read or written", "The disk is full.")

    qtbot.keyClicks(quick.composer.editor, "How high?")
    qtbot.keyClick(quick.composer.editor, Qt.Key.Key_Return)
    await until(lambda: furnished.chat.answering_chats)
    furnished.chat.say("Eight metres.")
    furnished.chat.finish()
    await until(lambda: not furnished.chat.answering_chats)
    await until(lambda: len(quick.transcript.messages) == 2 and quick.transcript.messages[1].content)
    reply = quick.transcript.messages[1].id
    quick.transcript.edit(reply)
    editor = quick.transcript.views[reply].editor
    assert editor is not None
    qtbot.keyClicks(editor.field, " Or nine.")
    with monkeypatch.context() as patch:
        patch.setattr(Database, "append", fail)
        qtbot.keyClick(editor.field, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: window.notices.visible_notices)
    assert quick.transcript.views[reply].editor is editor
    qtbot.keyClick(editor.field, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    await until(lambda: quick.transcript.messages[-1].content.endswith("Or nine."))
    assert quick.transcript.views[quick.transcript.messages[-1].id].editor is None


async def test_on_wayland_it_grows_no_further_than_the_screen(
    furnished: StagedRuntime, quick: QuickWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot move itself up; desktops center small windows."""
    monkeypatch.setattr(QGuiApplication, "platformName", staticmethod(lambda: "wayland"))
    room, small = quick.screen().availableGeometry(), quick.height()
    for _ in range(2):
        quick.composer.set_draft("How high?")
        quick.composer.send_button.click()
        await until(lambda: furnished.chat.answering_chats)
        assert small < quick.height() < (room.height() + small) // 2
        furnished.chat.finish()
        await until(lambda: quick.composer.send_button.accessibleName() == "Send")


async def test_esc_leaves_a_reply_running_and_coming_back_shows_it(
    furnished: StagedRuntime, quick: QuickWindow, qtbot: QtBot
) -> None:
    quick.composer.set_draft("How high?")
    quick.composer.send_button.click()
    await until(lambda: furnished.chat.answering_chats)
    chat = furnished.chat.answering_chats[0]
    qtbot.keyClick(quick.composer.editor, Qt.Key.Key_Escape)
    assert not quick.isVisible()
    assert furnished.chat.is_answering(chat)
    quick.toggle()
    assert quick.transcript.isVisible()
    furnished.chat.say("Eight metres.")
    await until(lambda: any(isinstance(v, ReplyView) and v.text for v in quick.transcript.views.values()))
    quick.composer.send_button.click()  # it is Stop now
    await until(lambda: not furnished.chat.is_answering(chat))


async def test_a_failure_that_came_while_it_was_away_is_told_when_it_comes_back(
    furnished: StagedRuntime, quick: QuickWindow
) -> None:
    quick.composer.set_draft("How high?")
    quick.composer.send_button.click()
    await until(lambda: furnished.chat.answering_chats)
    quick.close()
    furnished.events.publish(
        TurnFailed(furnished.chat.answering_chats[0], KvchatError("The engine stopped responding", "It was stopped."))
    )
    quick.toggle()
    await until(lambda: not quick.transcript.tail.failure_card.isHidden())


@pytest.mark.parametrize("stored", ["no chat", "no message"])
async def test_quick_words_that_were_not_stored_come_back_before_what_was_written_since(
    furnished: StagedRuntime, quick: QuickWindow, qtbot: QtBot, stored: str
) -> None:
    error = KvchatError("Your chats could not be read or written", "The disk is full.")
    furnished.chat.refuse = error if stored == "no chat" else None
    quick.composer.set_draft("How high?")
    quick.composer.send_button.click()
    quick.composer.set_draft("And how wide?")
    if stored == "no message":
        await until(lambda: furnished.chat.answering_chats)
        furnished.events.publish(QuestionNotStored(furnished.chat.answering_chats[0], "How high?", error))
    await until(lambda: quick.composer.draft == "How high?\nAnd how wide?")


async def test_without_a_model_the_main_window_comes(runtime: StagedRuntime, window: MainWindow, look: Look) -> None:
    runtime.settings = type(runtime.settings)()
    start_requests = StartRequestHandler(runtime, window, look, SessionBus())
    window.hide()
    start_requests.handle(StartRequest(quick=True))
    assert window.isVisible()
    assert not start_requests.quick_window.isVisible()
    start_requests.close()


FINDER = """
from PySide6.QtCore import QCoreApplication, QTimer, QUrl
from PySide6.QtGui import QDesktopServices, QFileOpenEvent
from kvchat.app import KvchatApplication
qt = KvchatApplication([])
qt.open_requested.connect(lambda request: print(*request.targets))
qt.quit_requested.connect(lambda: print("quit") or qt.exit())
QDesktopServices.openUrl(QUrl("kvchat://chat/a"))
QCoreApplication.sendEvent(qt, QFileOpenEvent(QUrl.fromLocalFile("/a b/c.kvchat")))
QTimer.singleShot(0, qt.quit)
qt.exec()
"""


def test_macos_asks_to_open_links_and_files_and_to_quit() -> None:
    environment = os.environ | {"QT_QPA_PLATFORM": "offscreen"}
    command = [sys.executable, "-c", FINDER]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.splitlines() == ["kvchat://chat/a", "file:///a b/c.kvchat", "quit"]
