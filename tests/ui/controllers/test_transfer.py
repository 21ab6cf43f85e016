"""Export, import, backup and restore from the menus, over a real database."""

import asyncio
import json
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QDesktopServices, QGuiApplication
from PySide6.QtWidgets import QDialog, QFileDialog, QLabel, QLineEdit, QMenu, QProgressDialog, QPushButton
from pytestqt.qtbot import QtBot

from kvchat.chat.record.database import Database
from kvchat.chat.turn.imported_memory import ImportTestResult
from kvchat.settings import Settings, load_settings, save_settings
from kvchat.system.concurrency import OnProgress, Worker
from kvchat.transfer.backup import SETTINGS, BackupFacts, finish_restore, make_backup
from kvchat.transfer.importing import ImportReport
from kvchat.transfer.memory_file import MAGIC
from kvchat.transfer.service import TransferService
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.controllers import transfer as transfer_module
from kvchat.ui.dialogs.confirm import ConfirmDialog, PassphraseDialog
from kvchat.ui.dialogs.panel import ImportReportDialog
from kvchat.ui.sidebar.conversation_list import Arrangement
from tests.kvstore.store_bench import Bench
from tests.transfer.library import quick_keys
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child

D = TypeVar("D", bound=QDialog)


@pytest.fixture
def kept(runtime: StagedRuntime) -> StagedRuntime:
    for title in ("Trip to Jeju", "Thesis: chapter 3/4"):
        runtime.chat.add(title, id=uuid4().hex)
    context = runtime.chat.turn_context
    runtime.transfer = TransferService(runtime.paths, context.database, context.worker, runtime.events)
    return runtime


def choose(window: MainWindow, words: str) -> None:
    """Click an entry of the header's menus."""
    window.header.chat_menu.aboutToShow.emit()
    menus = [window.header.chat_menu, window.header.menu, *window.header.menu.findChildren(QMenu)]
    next(action for menu in menus for action in menu.actions() if action.text() == words).trigger()


def pick(window: MainWindow, *paths: Path) -> QFileDialog:
    """Choose files in the dialog that is open."""
    [dialog] = shown(window, QFileDialog)
    if len(paths) == 1:
        dialog.fileSelected.emit(str(paths[0]))
    dialog.filesSelected.emit([str(path) for path in paths])
    dialog.close()
    return dialog


def write_export(file: Path, chats: int) -> None:
    """Write an export of another program."""
    message = {"uuid": "m", "sender": "human", "text": "Hello", "created_at": "2025-05-01T10:00:00Z"}
    theirs = [{"uuid": str(n), "name": f"Chat {n}", "chat_messages": [message]} for n in range(chats)]
    file.write_text(json.dumps(theirs), "utf-8")


def notices(window: MainWindow) -> list[str]:
    return [notice.texts[0] for notice in window.notices.visible_notices]


def shown(window: MainWindow, kind: type[D], title: str = "") -> list[D]:
    """Return the visible dialogs of a kind whose accessible name begins with the title."""
    found = window.findChildren(kind)
    return [dialog for dialog in found if dialog.isVisible() and dialog.accessibleName().startswith(title)]


async def question(window: MainWindow, title: str = "") -> ConfirmDialog:
    await until(lambda: shown(window, ConfirmDialog, title), title)
    return shown(window, ConfirmDialog, title)[0]


async def test_one_chat_is_exported_in_the_form_its_name_asks_for(
    kept: StagedRuntime, window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(window, "Export…")
    [dialog] = shown(window, QFileDialog)
    assert Path(dialog.selectedFiles()[0]).name == "Thesis chapter 3 4.json"
    pick(window, tmp_path / "one.md")
    await until(lambda: notices(window) == ["Exported 1 chat"])
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toLocalFile()))
    next(b for b in window.notices.findChildren(QPushButton) if b.text() == "Open folder").click()
    assert [Path(folder) for folder in opened] == [tmp_path]
    assert "Thesis: chapter 3/4" in (tmp_path / "one.md").read_text("utf-8")


async def test_all_chats_go_out_and_come_in_again(kept: StagedRuntime, window: MainWindow, tmp_path: Path) -> None:
    choose(window, "Export all chats…")
    pick(window, tmp_path / "all.json")
    await until(lambda: notices(window) == ["Exported 2 chats"])
    choose(window, "Import chats…")
    pick(window, tmp_path / "all.json")
    await until(lambda: "Imported 0 chats" in notices(window))
    assert window.notices.visible_notices[-1].texts[1] == "2 chats already exist."


async def test_imported_chats_are_shown_whatever_was_looked_at(
    kept: StagedRuntime, window: MainWindow, tmp_path: Path
) -> None:
    write_export(tmp_path / "theirs.json", 3)
    window.sidebar.arrange(Arrangement(archive=True))
    window.sidebar.search_panel.field.setText("Jeju")
    if window.sidebar.isVisible():
        window.window_layout.toggle_sidebar()
    choose(window, "Import chats…")
    pick(window, tmp_path / "theirs.json")
    await until(lambda: "Imported 3 chats" in notices(window))
    await until(lambda: len(window.sidebar.chosen) == 3)
    assert {kept.chat.by_id[id].title for id in window.sidebar.chosen} == {"Chat 0", "Chat 1", "Chat 2"}
    assert window.chat.current in window.sidebar.chosen
    assert window.sidebar.list.isVisible()
    assert window.sidebar.arrangement == Arrangement()


async def agree(window: MainWindow) -> None:
    """Confirm the question that asks before importing."""
    asked = await question(window)
    assert "cannot tell whether memory from others is genuine" in asked.findChildren(QLabel)[1].text()
    asked.confirm_button.click()


async def test_a_chat_goes_out_with_its_memory_and_comes_in_with_its_passphrase(
    kept: StagedRuntime, window: MainWindow, tmp_path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_keys(monkeypatch)
    bench = Bench(tmp_path / "store")
    chat = window.chat.current or ""
    bench.save(chat, tuple(range(1, 301)))
    with closing(Database(kept.paths.database)) as database, closing(Worker("memory")) as worker:
        tried: list[str] = []

        async def try_out(id: str, *_: object) -> ImportTestResult:
            tried.append(id)
            return ImportTestResult(298, 300)

        kept.transfer = TransferService(kept.paths, database, worker, kept.events, bench.store, try_out)
        choose(window, "Export with memory…")
        await until(lambda: shown(window, PassphraseDialog), "the question")
        dialog = shown(window, PassphraseDialog)[0]
        assert "The memory of this chat takes 40 KB" in dialog.findChildren(QLabel)[1].text()
        qtbot.keyClicks(dialog.field, "correct horse")
        assert dialog.field.displayText() != "correct horse"
        assert not dialog.confirm_button.isEnabled(), "typed once only"
        qtbot.keyClicks(dialog.repeat_field, "correct hose")
        assert not dialog.confirm_button.isEnabled()
        assert dialog.mismatch_label.text() == "The passphrases do not match."
        dialog.repeat_field.clear()
        qtbot.keyClicks(dialog.repeat_field, "correct horse")
        assert (dialog.repeat_field.echoMode(), dialog.mismatch_label.text()) == (QLineEdit.EchoMode.Password, "")
        qtbot.keyClick(dialog.repeat_field, Qt.Key.Key_Return)
        await until(lambda: shown(window, QFileDialog), "the file dialog")
        pick(window, tmp_path / "chat.kvchat")
        await until(lambda: any("encrypted with your passphrase" in words for words in notices(window)))
        await worker.run(database.delete, chat)
        bench.inventory.delete_all()
        choose(window, "Import chats…")
        pick(window, tmp_path / "chat.kvchat")
        await agree(window)
        for words, given in (("This file requires a passphrase", "wrong"), ("Wrong passphrase", "correct horse")):
            await until(lambda words=words: shown(window, PassphraseDialog, words), words)
            dialog = shown(window, PassphraseDialog)[0]
            assert not dialog.confirm_button.isEnabled()
            qtbot.keyClicks(dialog.field, given)
            qtbot.mouseClick(dialog.confirm_button, Qt.MouseButton.LeftButton)
            await until(lambda dialog=dialog: dialog not in shown(window, PassphraseDialog))
        await until(lambda: "Imported 1 chat" in notices(window))
        assert "A test on this computer succeeded: 298 of 300 tokens" in window.notices.visible_notices[-1].texts[1]
        assert "so only this chat uses it" in window.notices.visible_notices[-1].texts[1]
        assert tried == [chat]
        assert bench.inventory.usage().save_points == 1
    bench.store.close()


async def test_a_double_click_imports_no_memory_unasked(
    kept: StagedRuntime, window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []

    async def take_in(paths: list[Path], *_: object, **__: object) -> ImportReport:
        taken.extend(paths)
        return ImportReport()

    monkeypatch.setattr(kept.transfer, "import_files", take_in)
    file = tmp_path / "chat.kvchat"
    file.write_bytes(MAGIC + bytes(600))
    window.transfer.import_files([file])
    asked = await question(window)
    assert asked.keep_button.isDefault()
    asked.keep_button.click()
    await until(lambda: not shown(window, ConfirmDialog))
    assert taken == []
    window.transfer.import_files([file])
    await agree(window)
    await until(lambda: taken == [file])


async def test_a_chat_that_was_deleted_is_back_where_it_is_imported_again(
    kept: StagedRuntime, window: MainWindow, tmp_path: Path
) -> None:
    write_export(tmp_path / "theirs.json", 1)
    [id] = (await kept.transfer.import_files([tmp_path / "theirs.json"], lambda done, total: None)).imported
    await kept.chat.recently_deleted.delete([id])
    await until(lambda: id not in window.chat.conversations.titles)
    choose(window, "Import chats…")
    pick(window, tmp_path / "theirs.json")
    told = "1 chat already exists. It was restored from Recently deleted."
    await until(lambda: told in [notice.texts[1] for notice in window.notices.visible_notices])
    await until(lambda: window.chat.current == id)


async def test_what_cannot_be_imported_is_told_line_by_line(
    kept: StagedRuntime, window: MainWindow, tmp_path: Path, qtbot: QtBot
) -> None:
    (tmp_path / "a.json").write_text("{", "utf-8")
    (tmp_path / "b.json").write_text(json.dumps([{"no": "chat"}]), "utf-8")
    choose(window, "Import chats…")
    pick(window, tmp_path / "a.json", tmp_path / "b.json")
    await until(lambda: window.findChildren(ImportReportDialog), "the report")
    report = child(window, ImportReportDialog)
    qtbot.mouseClick(report.copy_button, Qt.MouseButton.LeftButton)
    lines = QGuiApplication.clipboard().text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["a.json", "b.json"]
    report.close()


async def test_a_backup_is_made_checked_and_laid_ready(kept: StagedRuntime, window: MainWindow, tmp_path: Path) -> None:
    restarts: list[bool] = []
    window.transfer.restart_requested.connect(lambda: restarts.append(True))
    choose(window, "Back up…")
    pick(window, tmp_path / "backup.zip")
    await until(lambda: any(words.startswith("Backed up 2 chats") for words in notices(window)))
    choose(window, "Restore from a backup…")
    pick(window, tmp_path / "backup.zip")
    (await question(window, "Restore the backup of")).confirm_button.click()
    (await question(window, "Restart kvchat to finish restoring?")).confirm_button.click()
    assert restarts == [True]
    assert (kept.paths.data / "restore" / "ready").exists()


@pytest.mark.parametrize("confirmed", [False, True])
async def test_the_engine_that_a_backup_names_is_taken_only_if_confirmed(
    kept: StagedRuntime, window: MainWindow, tmp_path: Path, qtbot: QtBot, confirmed: bool
) -> None:
    save_settings(kept.paths.settings_file, Settings(engine_path="/tmp/theirs", engine_arguments="-lv 5"))
    make_backup(kept.paths, tmp_path / "backup.zip")
    save_settings(kept.paths.settings_file, Settings(engine_path="/opt/own"))

    choose(window, "Restore from a backup…")
    pick(window, tmp_path / "backup.zip")
    qtbot.mouseClick((await question(window, "Restore the backup of")).confirm_button, Qt.MouseButton.LeftButton)
    asked = await question(window, "Use the engine settings from the backup?")
    assert any("/tmp/theirs -lv 5" in label.text() for label in asked.findChildren(QLabel))
    qtbot.mouseClick(asked.confirm_button if confirmed else asked.keep_button, Qt.MouseButton.LeftButton)
    await question(window, "Restart kvchat to finish restoring?")
    laid_ready = load_settings(kept.paths.data / "restore" / SETTINGS)
    assert laid_ready.engine_path == ("/tmp/theirs" if confirmed else "/opt/own")


async def test_cancel_ends_an_import_and_leaves_nothing_of_it(
    kept: StagedRuntime, window: MainWindow, tmp_path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_module, "_PATIENCE_MS", 0)
    write_export(tmp_path / "theirs.json", 3)
    held, go = threading.Event(), threading.Event()

    def hold(done: int, total: int) -> None:
        held.set()
        assert go.wait(240)

    take_in = kept.transfer.import_files
    monkeypatch.setattr(kept.transfer, "import_files", lambda paths, _report, **more: take_in(paths, hold, **more))
    choose(window, "Import chats…")
    pick(window, tmp_path / "theirs.json")
    await until(lambda: held.is_set() and shown(window, QProgressDialog), "the progress")
    qtbot.mouseClick(shown(window, QProgressDialog)[0].findChild(QPushButton), Qt.MouseButton.LeftButton)
    for _ in range(10):  # until the thread has been asked to stop
        await asyncio.sleep(0)
    go.set()
    await until(lambda: notices(window) == ["Import canceled"])
    with closing(Database(kept.paths.database)) as database:
        assert len(database.conversations()) == 2
    assert not shown(window, QProgressDialog)


async def test_it_says_how_far_it_is(kept: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "_PATIENCE_MS", 0)
    monkeypatch.setattr(transfer_module, "_PAUSE_S", 0)
    end = asyncio.Event()

    async def back_up(target: Path, tell: OnProgress) -> BackupFacts:
        tell(1234, 0)
        tell(1, 4)
        await end.wait()
        return BackupFacts(datetime.now(UTC), 2, 4)

    monkeypatch.setattr(kept.transfer, "back_up", back_up)
    choose(window, "Back up…")
    pick(window, Path("backup.zip"))
    await until(
        lambda: shown(window, QProgressDialog) and shown(window, QProgressDialog)[0].value() > 0, "the progress"
    )
    dialog = shown(window, QProgressDialog)[0]
    assert (dialog.labelText(), dialog.value() / dialog.maximum()) == ("Backing up… 1,234 chats", 0.25)
    end.set()
    await until(lambda: not shown(window, QProgressDialog))
    assert [words.partition(",")[0] for words in notices(window)] == ["Backed up 2 chats"]


async def test_what_cannot_be_restored_or_exported_is_told(
    kept: StagedRuntime, window: MainWindow, tmp_path: Path
) -> None:
    (tmp_path / "no.zip").write_text("no", "utf-8")
    choose(window, "Restore from a backup…")
    pick(window, tmp_path / "no.zip")
    await until(lambda: notices(window) == ["This backup cannot be used"])
    assert finish_restore(kept.paths) is None
    choose(window, "Export with memory…")
    await until(lambda: "This chat has no saved memory to export" in notices(window))
