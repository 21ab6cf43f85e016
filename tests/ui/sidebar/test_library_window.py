"""The library's window: what is added is read in spare time, chats begin on it, what has changed is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from kvchat.chat.events import LibraryChanged
from kvchat.chat.prepared.documents import FileChanges
from kvchat.chat.prepared.library import ChatDocuments, Estimate
from kvchat.errors import KvchatError
from kvchat.text.formatting import TimeRange
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.dialogs.confirm import ConfirmDialog
from kvchat.ui.sidebar.library_window import AddDialog, LibraryWindow, name_for
from tests.ui.fake_runtime import FakeRuntime
from tests.ui.waiting import until
from tests.ui.windows import child

LEFT = Qt.MouseButton.LeftButton


async def opened(window: MainWindow, qtbot: QtBot) -> LibraryWindow:
    qtbot.mouseClick(window.sidebar.library_button, LEFT)
    panel = window.side_windows.open_library()
    await until(lambda: panel.list.isVisible() != panel.empty.isVisible())
    return panel


async def test_what_is_added_is_read_with_a_bar_and_a_chat_begins_on_it(
    furnished: FakeRuntime, window: MainWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    furnished.chat.library.put("another", tokens=5_000)
    panel = await opened(window, qtbot)
    folder = tmp_path / "manual"
    folder.mkdir()
    await panel.ask_to_add([folder])
    await until(lambda: panel.findChild(AddDialog) is not None)
    dialog = child(panel, AddDialog)
    assert "about 36 s" in dialog.estimate.text()
    assert dialog.name == "manual"
    dialog.field.setText("  ")
    assert not dialog.add.isEnabled()
    dialog.field.setText("The manual")
    qtbot.mouseClick(dialog.add, LEFT)
    await until(panel.bar.isVisible)
    row = panel.list.current
    assert row is not None
    assert (row.title, row.chip) == ("The manual", "processing 25 %")
    assert "20,000 of 78,000 tokens processed, about 20 s left" in panel.details.text()
    assert panel.cancel.isVisible()
    assert not panel.begin.isEnabled()
    furnished.chat.library.go_on.set()
    await until(lambda: panel.list.rows[0].chip == "ready")
    assert panel.list.rows[0].detail == "3 files · 78K tokens · 1.8 GB · saves about 36 s · SmolLM2-135M-Instruct"
    qtbot.mouseClick(panel.begin, LEFT)
    await until(lambda: not panel.isVisible())
    await until(lambda: window.chat.current is not None and window.header.title.text() == "The manual")


async def test_what_is_longer_than_the_context_is_said_before_it_is_read(
    furnished: FakeRuntime, window: MainWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    assert name_for([Path("a.md"), Path("b.md")], {"a and 1 more"}) == "a and 1 more 2"
    furnished.chat.library.expected = Estimate(412, 90_000, TimeRange(36, 36), available=6_144, counted=True)
    panel = await opened(window, qtbot)
    assert panel.empty.isVisible()
    assert not any(part.isVisible() for part in (panel.begin, panel.again, panel.remove, panel.cancel, panel.bar))
    await panel.ask_to_add([tmp_path])
    await until(lambda: panel.findChild(AddDialog) is not None)
    dialog = child(panel, AddDialog)
    assert "about 90K tokens, but only 6,144 fit" in dialog.estimate.text()
    assert not dialog.add.isEnabled()
    dialog.field.setText("Another name")
    assert not dialog.add.isEnabled()


async def test_what_changed_or_is_not_ready_is_said_and_read_again_or_removed(
    furnished: FakeRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    library = furnished.chat.library
    library.put("a changed one", tokens=5_000, changes=FileChanges(2, 1))
    library.put("b of another model", tokens=5_000, reprocess_reason="it was processed with another model")
    library.put("c that was too long")
    panel = await opened(window, qtbot)
    assert [row.chip for row in panel.list.rows] == ["files changed", "needs processing", "not processed"]
    panel.list.select("p2")
    assert "no chat can start with these documents yet" in panel.details.text()
    assert not panel.begin.isEnabled()
    panel.list.select("p0")
    assert "2 files changed, 1 added since then" in panel.details.text()
    panel.list.select("p1")
    assert "process them first, which takes about 36 s: it was processed with another model." in panel.details.text()
    library.refusal = KvchatError("This is too long for the model's context")
    qtbot.mouseClick(panel.again, LEFT)
    await until(lambda: panel.notices.on_show)
    library.refusal = None
    library.go_on.set()
    qtbot.mouseClick(panel.again, LEFT)
    await until(lambda: panel.list.rows[1].chip == "ready")
    furnished.events.publish(LibraryChanged(progress=True))
    assert panel.list.current is not None
    assert panel.list.current.value == "p1"
    qtbot.mouseClick(panel.remove, LEFT)
    question = child(panel, ConfirmDialog)
    qtbot.mouseClick(question.yes, LEFT)
    await until(lambda: [row.title for row in panel.list.rows] == ["a changed one", "c that was too long"])
    assert not panel.notices.on_show, "the warning about an entry goes with the entry"


async def test_a_chat_says_what_it_stands_on_and_leads_there(
    furnished: FakeRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    library, line = furnished.chat.library, window.documents
    library.put("another", tokens=5_000)
    manual = library.put("桥梁 🌉", tokens=5_000).prepared
    library.grounds["a"] = ChatDocuments(("a.md", "b.md"), manual, is_current=True)
    window.chat.open("a")
    await until(line.isVisible)
    assert line.text().strip() == "桥梁 🌉 · 2 documents"
    qtbot.mouseClick(line, LEFT)
    panel = window.side_windows.open_library()
    await until(lambda: panel.list.current is not None and panel.list.current.title == "桥梁 🌉")
    for known, words in (
        ({"changes": FileChanges(2)}, "2 files changed since it was processed"),
        (
            {"reprocess_reason": "it was processed with another model"},
            "needs processing: it was processed with another model",
        ),
    ):
        library.standing[manual.id] = replace(library.standing[manual.id], **{"changes": FileChanges(), **known})
        furnished.events.publish(LibraryChanged())
        await until(lambda words=words: line.accessibleName() == f"Documents: 桥梁 🌉 · 2 documents, {words}")
    library.grounds["a"] = ChatDocuments(("a.md", "b.md"), manual, is_current=False)
    furnished.events.publish(LibraryChanged())
    await until(lambda: line.accessibleName().endswith("updated since; this chat keeps the version it started with"))
    library.grounds["a"] = ChatDocuments(("a.md", "b.md"), None, is_current=False)
    furnished.events.publish(LibraryChanged())
    await until(lambda: line.accessibleName() == "Documents: 2 documents, no longer in the library")
    window.chat.open("b")
    await until(lambda: not line.isVisible())
