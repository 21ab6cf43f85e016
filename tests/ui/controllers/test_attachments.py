"""Attaching files by button, drop and paste, and their display on the page."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QMimeData, QPoint, QPointF, QRect, QSize, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QImage
from PySide6.QtWidgets import QApplication, QFileDialog, QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from kvchat.chat.attachments import document_from_bytes, document_from_text
from kvchat.chat.events import QuestionNotStored
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Attachment
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.pictures import image_size
from kvchat.engine_host.choice import VisionUnsupported
from kvchat.errors import KvchatError
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.app.start_requests import QuickWindow
from kvchat.ui.attachments.chips import AttachmentView, PictureView
from kvchat.ui.attachments.pictures import RegionPicker
from kvchat.ui.base.theme import Look
from kvchat.ui.chat.composer import ATTACHED_FROM, LONG_PASTE
from kvchat.ui.transcript.message_view import UserView
from tests.desktop_bus import session_bus
from tests.pictures import png
from tests.ui.app.test_language import the_app
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child

pytestmark = pytest.mark.slow


def names(window: MainWindow | QuickWindow) -> list[str]:
    return [attachment.name for attachment in window.composer.chips.attachments]


def paste(window: MainWindow | QuickWindow, content: str | Sequence[QUrl] | QImage) -> None:
    pasted = QMimeData()
    match content:
        case str():
            pasted.setText(content)
        case QImage():
            pasted.setImageData(content)
        case _:
            pasted.setUrls(content)
    window.composer.editor.insertFromMimeData(pasted)


async def test_files_are_attached_counted_sent_and_shown(window: MainWindow, tmp_path: Path) -> None:
    file, image = tmp_path / "notes.md", QImage(30, 20, QImage.Format.Format_RGB32)
    file.write_text("word " * 400)
    (tmp_path / "red.png").write_bytes(png(width=80, height=60))
    urls = [QUrl.fromLocalFile(str(path)) for path in (file, file, tmp_path / "red.png")]
    paste(window, urls)
    await until(lambda: names(window) == ["red.png", "notes.md"])
    image.fill(0xFF00FF00)
    paste(window, image)
    attached = ["red.png", "Pasted image.png", "notes.md"]
    await until(lambda: names(window) == attached)
    await until(lambda: window.composer.chips.chips[2].count.text() == "500 tokens")
    await until(lambda: "tokens" in window.composer.chips.chips[1].count.text())
    window.composer.editor.setPlainText("What is in it?")
    window.composer.send_button.click()
    await until(lambda: window.transcript.views)
    view = next(iter(window.transcript.views.values()))
    assert isinstance(view, UserView)
    assert view.chips is not None
    assert [attachment.name for attachment in view.chips.attachments] == attached
    assert not names(window)
    view.chips.chips[2].name.click()
    assert child(window, AttachmentView).text.toPlainText() == file.read_text()
    child(window, AttachmentView).close()
    view.chips.chips[0].name.click()
    assert child(window, PictureView).picture.pixmap().deviceIndependentSize().toSize() == QSize(80, 60)
    child(window, PictureView).close()


async def test_a_guess_takes_no_counts_place_while_the_engine_starts_anew(
    runtime: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attaching a long text restarts the engine; the count went from 16K tokens to "about 4K"."""
    window.composer.set_attachments([document_from_text("numbers.txt", "1 2 3 4 " * 500)])
    chip = window.composer.chips.chips[0]
    await until(lambda: chip.count.text() == "1K tokens")
    guessed = []

    async def guess(attachment: Attachment) -> tuple[int, bool]:
        guessed.append(attachment)
        return 250, False

    monkeypatch.setattr(runtime.chat.context, "count_tokens", guess)
    runtime.set_engine(EngineState.STARTING)
    await until(lambda: guessed)
    await asyncio.sleep(0)
    assert chip.count.text() == "1K tokens"


async def test_what_is_neither_text_nor_a_picture_is_refused_in_words(window: MainWindow, tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(bytes(range(256)))
    (tmp_path / "broken.png").write_bytes(png()[:40])
    window.composer.editor.files_given.emit([tmp_path / "program", tmp_path / "broken.png"])
    await until(lambda: len(window.notices.visible_notices) == 2)
    told = " ".join(word for notice in window.notices.visible_notices for word in notice.texts)
    assert "“program” cannot be attached" in told
    assert "“broken.png” cannot be attached" in told
    assert not names(window)


async def test_a_model_without_sight_refuses_pictures(
    runtime: StagedRuntime, window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise VisionUnsupported("Llama")

    monkeypatch.setattr(runtime.chat.context, "check_vision", refuse)
    (tmp_path / "red.png").write_bytes(png())
    window.composer.editor.files_given.emit([tmp_path / "red.png"])
    await until(lambda: len(window.notices.visible_notices) == 1)
    assert "Llama does not support images" in window.notices.visible_notices[0].texts
    assert not names(window)
    window.notices.visible_notices[0].dismiss()
    window.composer.screenshot_button.click()
    await until(lambda: window.notices.visible_notices)
    assert "Llama does not support images" in window.notices.visible_notices[0].texts
    assert window.isVisible(), "it is said before the picture is taken"


async def test_files_dropped_on_the_page_are_attached(window: MainWindow, tmp_path: Path, qapp: QApplication) -> None:
    file = tmp_path / "river.py"
    file.write_text("print('heron')")
    dragged = QMimeData()
    dragged.setUrls([QUrl.fromLocalFile(str(file))])
    page, place = window.transcript.parentWidget(), QPointF(20, 20)
    assert page is not None
    page = page.parentWidget()
    assert page is not None
    how = (Qt.DropAction.CopyAction, dragged, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    entering = QDragEnterEvent(place.toPoint(), *how)
    qapp.sendEvent(page, entering)
    assert entering.isAccepted()
    qapp.sendEvent(page, QDropEvent(place, *how))
    await until(lambda: names(window) == ["river.py"])


async def test_a_paste_too_long_to_lay_out_is_attached_and_can_be_text_where_that_is_possible(
    window: MainWindow,
) -> None:
    composer = window.composer
    for text, can_be_text in (("some words\n" * 4_000, True), ("x" * 10_000, False), ("words\n" * 20_000, False)):
        paste(window, text)
        await until(lambda: names(window) == ["Pasted text.txt"])
        assert not composer.draft
        assert composer.paste_as_text_button.isVisible() is can_be_text
        if can_be_text:
            composer.paste_as_text_button.click()
            assert composer.draft == text
            assert not names(window)
            assert not composer.paste_as_text_button.isVisible()
        composer.editor.clear()
        composer.set_attachments(())
    composer.set_draft("Before. ")
    paste(window, "line\n" * LONG_PASTE)
    assert composer.attach_paste_button.isVisible()
    composer.attach_paste_button.click()
    await until(lambda: names(window) == ["Pasted text.txt"])
    assert composer.draft == "Before."
    assert not composer.attach_paste_button.isVisible()
    for _ in range(3):
        paste(window, "x" * 3_000)
    assert len(composer.draft) == 6_007, "lines do not grow without end"
    await until(lambda: len(names(window)) == 2)


async def test_a_long_paste_before_all_is_imported_is_attached_then(runtime: StagedRuntime, look: Look) -> None:
    window = MainWindow(look, runtime.paths.config)
    window.composer.insert_text("x" * 50_000)
    assert not window.composer.draft
    window.join(runtime)
    await window.start()
    await until(lambda: names(window) == ["Pasted text.txt"])
    await window.finish()
    window.deleteLater()


async def test_a_draft_too_long_to_lay_out_is_an_attachment_after_a_start(runtime: StagedRuntime, look: Look) -> None:
    chat = runtime.chat.add("One").id
    runtime.chat._do(Database.store_drafts, {chat: "x" * 1_000_000, "": "a usual one"})
    window = MainWindow(look, runtime.paths.config)
    window.join(runtime)
    await window.start()
    window.chat.open(chat)
    assert names(window) == ["Pasted text.txt"]
    assert not window.composer.draft
    assert window.chat.drafts.get(None).text == "a usual one"
    await window.finish()
    assert runtime.chat.draft(chat) == ""
    assert [document.size for document in runtime.chat._do(Database.draft_attachments)[chat]] == [1_000_000]
    window.deleteLater()


async def test_attachments_wait_with_the_draft_and_come_back_with_a_refusal(
    runtime: StagedRuntime, window: MainWindow
) -> None:
    document = document_from_text("notes.md", "words")
    first, second = runtime.chat.add("One").id, runtime.chat.add("Two").id
    window.chat.open(first)
    window.composer.set_attachments([document])
    window.chat.open(second)
    assert not names(window)
    window.chat.open(first)
    assert names(window) == ["notes.md"]
    window.composer.set_attachments(())
    runtime.events.publish(QuestionNotStored(first, "Why?", KvchatError("Too long"), (document,)))
    assert names(window) == ["notes.md"]
    assert window.composer.draft == "Why?"
    assert window.notices.visible_notices


async def test_a_file_belongs_to_the_chat_it_was_attached_in_and_send_waits_for_it(
    runtime: StagedRuntime, window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot
) -> None:
    first, second = runtime.chat.add("One").id, runtime.chat.add("Two").id
    disk = slow_disk(monkeypatch)
    (tmp_path / "notes.md").write_text("words")
    window.chat.open(first)
    window.composer.editor.files_given.emit([tmp_path / "notes.md"])
    assert "Reading notes.md…" in window.composer.notice.text()
    assert window.composer.notice.isVisible()
    window.chat.open(second)
    assert not window.composer.notice.isVisible()
    disk.set()
    await until(lambda: window.chat.drafts.attachments_of(first))
    assert not names(window), "another chat is open"
    window.chat.open(first)
    assert names(window) == ["notes.md"]

    disk.clear()
    (tmp_path / "more.md").write_text("more words")
    window.composer.editor.files_given.emit([tmp_path / "more.md"])
    qtbot.keyClicks(window.composer.editor, "What is in them?")
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Return)
    assert window.composer.draft == "What is in them?"
    assert "will be sent" in window.composer.notice.text()
    disk.set()
    await until(lambda: runtime.chat.said(first))
    assert [a.name for a in runtime.chat.said(first)[0].attachments] == ["notes.md", "more.md"]
    assert not window.composer.draft


async def test_what_could_not_be_read_is_not_sent_without_it(
    runtime: StagedRuntime, window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot
) -> None:
    first, second = runtime.chat.add("One").id, runtime.chat.add("Two").id
    disk = slow_disk(monkeypatch)
    (tmp_path / "bin.dat").write_bytes(bytes(range(256)))
    window.chat.open(first)
    window.composer.editor.files_given.emit([tmp_path / "bin.dat"])
    qtbot.keyClicks(window.composer.editor, "What is it?")
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Return)
    disk.set()
    await until(lambda: window.notices.visible_notices)
    assert "“bin.dat” cannot be attached" in window.notices.visible_notices[0].texts[0]
    assert window.composer.draft == "What is it?"
    assert not runtime.chat.said(first)
    window.chat.open(second)
    assert not window.notices.visible_notices, "it is of the other chat"
    assert not window.composer.notice.isVisible()
    disk.clear()
    window.composer.editor.files_given.emit([tmp_path / "bin.dat"])
    window.chat.open(first)
    disk.set()
    await until(lambda: not window.attachments._reading)
    assert not window.notices.visible_notices
    window.chat.open(second)
    await until(lambda: len(window.notices.visible_notices) == 1)  # shown in the chat that it was to be attached to


def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make reading files wait until the returned event is set."""
    disk = threading.Event()

    def read(path: Path) -> Attachment:
        assert disk.wait(60)
        return document_from_bytes(path.name, path.read_bytes())

    monkeypatch.setattr("kvchat.ui.controllers.attachments._read", read)
    return disk


async def test_two_paths_typed_into_the_dialog_attach_two(window: MainWindow, tmp_path: Path, qtbot: QtBot) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("the same words")
    window.composer.attach_button.click()
    dialog = child(window, QFileDialog)
    field = child(dialog, QLineEdit)
    field.setText(f'"{tmp_path}/a.txt" "{tmp_path}/b.txt"')
    dialog.filesSelected.emit([str(tmp_path / "b.txt")])  # Qt reports only one of several typed names
    dialog.reject()
    await until(lambda: sorted(names(window)) == ["a.txt", "b.txt"])


@pytest.fixture
async def quick(runtime: StagedRuntime, look: Look) -> AsyncIterator[QuickWindow]:
    """Yield the quick window of a running application."""
    async with the_app(runtime, look) as app:
        app.start_requests.quick_window.toggle()
        yield app.start_requests.quick_window


async def test_the_quick_window_attaches_as_the_main_window_does(
    runtime: StagedRuntime, quick: QuickWindow, tmp_path: Path
) -> None:
    (tmp_path / "notes.md").write_text("word " * 400)
    composer = quick.composer
    (tmp_path / "program").write_bytes(bytes(range(256)))
    composer.editor.files_given.emit([tmp_path / "notes.md", tmp_path / "program"])
    await until(lambda: quick.notices.visible_notices)
    assert "“program” cannot be attached" in quick.notices.visible_notices[0].texts
    paste(quick, "words and " * (ATTACHED_FROM // 9))
    await until(lambda: sorted(names(quick)) == ["Pasted text.txt", "notes.md"])
    await until(lambda: all("tokens" in chip.count.text() for chip in composer.chips.chips))
    composer.editor.setPlainText("What is in them?")
    composer.send_button.click()
    await until(lambda: [call for call in runtime.chat.calls if call[0] == "send"])
    await until(lambda: runtime.chat.said(quick.current_chat() or ""))
    question = runtime.chat.said(quick.current_chat() or "")[0]
    assert sorted(a.name for a in question.attachments) == ["Pasted text.txt", "notes.md"]
    assert not composer.chips.attachments
    error = KvchatError("Your chats could not be read or written", "The disk is full.")
    runtime.events.publish(QuestionNotStored(question.conversation_id, question.content, error, question.attachments))
    assert composer.draft == "What is in them?"
    assert composer.chips.attachments == question.attachments


async def picking(window: QWidget) -> RegionPicker:
    """Press the screenshot button; return the region picker that covers the screen."""

    def pickers() -> list[RegionPicker]:
        shown = (widget for widget in QApplication.topLevelWidgets() if isinstance(widget, RegionPicker))
        return [picker for picker in shown if picker.isVisible()]

    window.composer.screenshot_button.click()  # type: ignore[attr-defined]
    await until(pickers)
    assert not window.isVisible(), "it is not on the picture"
    return pickers()[0]


@pytest.mark.parametrize("which", ["main", "quick"])
async def test_a_region_of_the_screen_is_attached(runtime: StagedRuntime, look: Look, qtbot: QtBot, which: str) -> None:
    """Selected by mouse, by keys, the whole screen, or cancelled."""
    async with the_app(runtime, look) as app:
        app.start_requests.quick_window.toggle()
        window = app._window if which == "main" else app.start_requests.quick_window
        sizes = lambda: [image_size(a.data) for a in window.composer.chips.attachments]  # noqa: E731
        chooser = await picking(window)
        screen = chooser.size().toTuple()
        qtbot.mousePress(chooser, Qt.MouseButton.LeftButton, pos=QPoint(110, 60))
        qtbot.mouseMove(chooser, QPoint(60, 40))
        qtbot.mouseMove(chooser, QPoint(10, 20))
        qtbot.mouseRelease(chooser, Qt.MouseButton.LeftButton, pos=QPoint(10, 20))
        await until(lambda: sizes() == [(100, 40)])
        assert window.isVisible()
        assert window.composer.chips.attachments[0].name == "Screenshot.png"
        chooser = await picking(window)
        qtbot.keyClick(chooser, Qt.Key.Key_Escape)
        await until(window.isVisible)
        chooser = await picking(window)
        qtbot.keyClick(chooser, Qt.Key.Key_Return)
        await until(lambda: sizes() == [(100, 40), screen])
        chooser = await picking(window)
        for key, with_shift in ((Qt.Key.Key_Right, False), (Qt.Key.Key_Left, True), (Qt.Key.Key_Up, False)):
            modifier = Qt.KeyboardModifier.ShiftModifier if with_shift else Qt.KeyboardModifier.NoModifier
            qtbot.keyClick(chooser, key, modifier)
        half = QRect(QPoint(screen[0] // 4, screen[1] // 4), QSize(screen[0] // 2 - 10, screen[1] // 2))
        assert abs(chooser.region.top() - (half.top() - 10)) <= 1
        assert chooser.region.size() == half.size()
        qtbot.keyClick(chooser, Qt.Key.Key_Return)
        await until(lambda: sizes()[2:] == [half.size().toTuple()])


@pytest.mark.parametrize("answer", ["a picture", "the user’s no", "no portal"])
async def test_wayland_s_portal_is_asked_for_a_screenshot(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    name, path = "org.freedesktop.portal.Desktop", "/org/freedesktop/portal/desktop"
    taken = tmp_path / "Screenshot from today.png"
    taken.write_bytes(png(width=80, height=60))
    monkeypatch.setenv("XDG_SESSION_TYPE", "wayland")
    with session_bus(tmp_path) as bus:
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", bus.address)

        def respond(method: str, body: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]] | None:
            if answer == "no portal":
                return None
            assert (method, body[0], body[1]["interactive"]) == ("Screenshot", "", ("b", True))
            sender = portal.sender.lstrip(":").replace(".", "_")
            where = f"{path}/request/{sender}/{body[1]['handle_token'][1]}"
            code, results = (0, {"uri": ("s", taken.as_uri())}) if answer == "a picture" else (1, {})
            portal.emit("Response", "ua{sv}", code, results, path=where, interface="org.freedesktop.portal.Request")
            return "o", (where,)

        portal = bus.play(name, path, "org.freedesktop.portal.Screenshot", respond)
        window.composer.screenshot_button.click()
        await until(lambda: portal.asked)
        await until(window.isVisible)
        if answer == "a picture":
            await until(lambda: [image_size(a.data) for a in window.composer.chips.attachments] == [(80, 60)])
        await until(lambda: not window.runner._tasks)
        told = [notice.texts[0] for notice in window.notices.visible_notices]
        assert told == (["The screenshot could not be taken"] if answer == "no portal" else [])
        assert taken.exists(), "the desktop keeps its files itself"
