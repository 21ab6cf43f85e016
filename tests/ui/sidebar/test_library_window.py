"""The library window: documents are processed when idle, chats start from them, and changes are reported."""

from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from kvchat.chat.events import LibraryChanged
from kvchat.chat.prepared.documents import PreparedSet
from kvchat.system.files import retry_while_open
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.dialogs.confirm import ConfirmDialog
from kvchat.ui.sidebar.library_window import AddDocumentsDialog, LibraryWindow, unused_name
from tests.ui.fake_engine import FINGERPRINT
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child

LEFT = Qt.MouseButton.LeftButton


async def opened(window: MainWindow, qtbot: QtBot) -> LibraryWindow:
    qtbot.mouseClick(window.sidebar.library_button, LEFT)
    panel = window.side_windows.open_library()
    await until(lambda: panel.list.isVisible() != panel.empty_label.isVisible())
    return panel


async def test_what_is_added_is_read_with_a_bar_and_a_chat_begins_on_it(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    furnished.chat.put("another", tokens=5_000)
    may_read = furnished.engine.server.may_read
    panel = await opened(window, qtbot)
    folder = tmp_path / "manual"
    folder.mkdir()
    (folder / "a.md").write_text("word " * 4_000)
    await panel.ask_to_add([folder])
    await until(lambda: panel.findChild(AddDocumentsDialog) is not None)
    dialog = child(panel, AddDocumentsDialog)
    assert "about 5,000 tokens" in dialog.estimate.text()
    assert dialog.name == "manual"
    dialog.field.setText("  ")
    assert not dialog.add_button.isEnabled()
    dialog.field.setText("The manual")
    may_read.clear()
    qtbot.mouseClick(dialog.add_button, LEFT)
    await until(panel.bar.isVisible)
    row = panel.list.current
    assert row is not None
    assert (row.title, row.chip) == ("The manual", "processing …")
    assert panel.stop_button.isVisible()
    assert not panel.start_chat_button.isEnabled()
    may_read.set()
    await until(lambda: panel.list.rows[1].chip == "ready")
    assert panel.list.rows[1].detail.startswith("1 file · 5K tokens · ")
    assert panel.list.rows[1].detail.endswith(" · saves about 3 s · SmolLM2-135M-Instruct")
    qtbot.mouseClick(panel.start_chat_button, LEFT)
    await until(lambda: not panel.isVisible())
    await until(lambda: window.chat.current is not None and window.header.title.text() == "The manual")


async def test_what_is_longer_than_the_context_is_said_before_it_is_read(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    assert unused_name([Path("a.md"), Path("b.md")], {"a and 1 more"}) == "a and 1 more 2"
    panel = await opened(window, qtbot)
    assert panel.empty_label.isVisible()
    assert not any(
        part.isVisible()
        for part in (panel.start_chat_button, panel.reprocess_button, panel.remove_button, panel.stop_button, panel.bar)
    )
    (tmp_path / "long.md").write_text("word " * 72_000)
    await panel.ask_to_add([tmp_path / "long.md"])
    await until(lambda: panel.findChild(AddDocumentsDialog) is not None)
    dialog = child(panel, AddDocumentsDialog)
    assert "about 90K tokens, but only 30,720 fit" in dialog.estimate.text()
    assert not dialog.add_button.isEnabled()
    dialog.field.setText("Another name")
    assert not dialog.add_button.isEnabled()


def change_files(one: PreparedSet, *, added: int = 0) -> None:
    folder = Path(one.paths[0])
    for number in range(2):
        (folder / f"{number}.md").write_text("other words, and more of them")
    for number in range(added):
        (folder / f"new {number}.md").write_text("more")


async def test_what_changed_or_is_not_ready_is_said_and_read_again_or_removed(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    changed = furnished.chat.put("a changed one", tokens=5_000)
    change_files(changed, added=1)
    other = furnished.chat.put("b of another model", tokens=5_000, model="another")
    unread = furnished.chat.put("c that was never read")
    panel = await opened(window, qtbot)
    assert [row.chip for row in panel.list.rows] == ["files changed", "needs processing", "not processed"]
    panel.list.select(unread.id)
    assert "no chat can start with these documents yet" in panel.details.text()
    assert not panel.start_chat_button.isEnabled()
    panel.list.select(changed.id)
    assert "2 files changed, 1 added since then" in panel.details.text()
    panel.list.select(other.id)
    assert "it was processed with another model." in panel.details.text()
    long = Path(other.paths[0]) / "long.md"
    long.write_text("word " * 72_000)
    qtbot.mouseClick(panel.reprocess_button, LEFT)
    await until(lambda: panel.notices.visible_notices)
    retry_while_open(long.unlink)
    await until(panel.reprocess_button.isEnabled)
    qtbot.mouseClick(panel.reprocess_button, LEFT)
    await until(lambda: panel.list.rows[1].chip == "ready")
    furnished.events.publish(LibraryChanged(progress_only=True))
    assert panel.list.current is not None
    assert panel.list.current.value == other.id
    qtbot.mouseClick(panel.remove_button, LEFT)
    question = child(panel, ConfirmDialog)
    qtbot.mouseClick(question.confirm_button, LEFT)
    await until(lambda: [row.title for row in panel.list.rows] == ["a changed one", "c that was never read"])
    await until(lambda: not panel.notices.visible_notices, "the warning about an entry to go with the entry")


async def test_a_chat_says_what_it_stands_on_and_leads_there(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    library, line = furnished.chat.library, window.documents
    furnished.chat.put("another", tokens=5_000)
    manual = furnished.chat.put("桥梁 🌉", tokens=5_000)
    chat = await furnished.chat.create(await library.new_chat(manual))
    window.chat.open(chat.id)
    await until(line.isVisible)
    assert line.text().strip() == "桥梁 🌉 · 3 documents"
    qtbot.mouseClick(line, LEFT)
    panel = window.side_windows.open_library()
    await until(lambda: panel.list.current is not None and panel.list.current.title == "桥梁 🌉")
    furnished.engine.fingerprint = replace(FINGERPRINT, model="another")
    furnished.events.publish(LibraryChanged())
    told = "needs processing: it was processed with another model"
    await until(lambda: line.accessibleName() == f"Documents: 桥梁 🌉 · 3 documents, {told}")
    furnished.engine.fingerprint = FINGERPRINT
    change_files(manual)
    furnished.events.publish(LibraryChanged())
    told = "changes since processing: 2 files changed"
    await until(lambda: line.accessibleName() == f"Documents: 桥梁 🌉 · 3 documents, {told}")
    await library.process(manual)
    await until(lambda: line.accessibleName().endswith("updated since; this chat keeps the version it started with"))
    await library.remove(manual)
    await until(lambda: line.accessibleName() == "Documents: 3 documents, no longer in the library")
    window.chat.open("b")
    await until(lambda: not line.isVisible())
