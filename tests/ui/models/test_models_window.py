"""The models window: local models, Hugging Face, downloads and the access token."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractButton, QFileDialog, QLabel, QLineEdit, QMenu
from pytestqt.qtbot import QtBot

from kvchat.library.gguf.parser import NotAModel
from kvchat.library.memory.demand import MemoryFacts
from kvchat.library.model_files import Source
from kvchat.library.model_library import FoundModel, UnreadableFolder
from kvchat.library.remote.downloads import DownloadState
from kvchat.library.remote.starter import is_starter_downloaded
from kvchat.settings import GB
from kvchat.text.language import set_language
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.dialogs.confirm import ConfirmDialog
from kvchat.ui.models.first_start import starter_title
from kvchat.ui.models.models_window import DownloadView, ModelsWindow
from tests.library import fake_hub
from tests.library.fake_hub import TOKEN, FakeHub
from tests.library.gguf_files import write_gguf
from tests.ui.staged_runtime import StagedRuntime, a_model
from tests.ui.waiting import until
from tests.ui.windows import button, child, question

LEFT = Qt.MouseButton.LeftButton
REPOSITORY = "org/Thing-7B-GGUF"


@pytest.fixture(autouse=True)
def without_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    content = write_gguf(tmp_path / "thing.gguf", weights=500_000).read_bytes()
    with fake_hub.serving() as hub:
        hub.repositories[REPOSITORY] = {f"Thing-7B-{kind}.gguf": content for kind in ("Q4_K_M", "Q8_0")}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield hub


@pytest.fixture
def runtime(tmp_path: Path) -> StagedRuntime:
    runtime = StagedRuntime(tmp_path / "kvchat")
    runtime.models.there = [
        a_model(tmp_path, "Zebra-70B", 40 * GB),
        a_model(tmp_path, "Apple-8B", 5 * GB),
        FoundModel(tmp_path / "half.gguf", "Half", Source.CHOSEN, 9, None, NotAModel("The model file is incomplete")),
    ]
    return runtime


@pytest_asyncio.fixture
async def models(window: MainWindow) -> ModelsWindow:
    return window.side_windows.open_models()


def titles(models: ModelsWindow) -> list[str]:
    return [row.title for row in models.local.list.rows]


def chips(models: ModelsWindow) -> list[str]:
    return [row.chip for row in models.local.list.rows]


def only_download(models: ModelsWindow) -> DownloadView:
    (view,) = models.downloads.views.values()
    return view


@pytest.mark.usefixtures("catalogues")
async def test_models_on_this_computer_whether_they_fit_and_those_that_pass_the_filter(
    runtime: StagedRuntime, models: ModelsWindow, qtbot: QtBot
) -> None:
    await until(lambda: len(models.local.list.rows) == 3)
    assert titles(models) == ["Apple-8B-Q4_K_M", "Zebra-70B-Q4_K_M", "Half"]
    assert chips(models) == ["fits", "does not fit", "cannot be used"]
    assert models.local.list.rows[0].detail == "5 GB · 4K context · LM Studio"
    assert models.local.list.rows[2].detail == "The model file is incomplete."
    assert models.local.status.text() == "3 models"
    for kind in (QAbstractButton, QLineEdit):
        for control in models.findChildren(kind):
            assert control.accessibleName() or isinstance(control.parent(), QLineEdit), control
    runtime.engine.memory = MemoryFacts(64 * GB)
    models.local.search()
    await until(lambda: chips(models)[:2] == ["fits", "fits"])
    qtbot.keyClicks(models.local.filter, "lm studio zeb")
    assert titles(models) == ["Zebra-70B-Q4_K_M"]
    models.local.filter.clear()
    set_language("de")
    models.local.search()
    await until(lambda: len(models.local.list.rows) == 3 and chips(models)[2] != "cannot be used")
    models.local.list.select(models.local.list.rows[2].value)
    assert not models.local.use_button.isEnabled()
    qtbot.keyClick(models.local.list, Qt.Key.Key_Return)
    assert not [call for call in runtime.calls if call[0] == "use_model"]


async def test_a_model_is_used_by_enter_and_folders_are_added_and_dropped(
    runtime: StagedRuntime, models: ModelsWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    await until(lambda: models.local.list.rows)
    assert not models.local.use_button.isEnabled()
    qtbot.keyClick(models.local.list, Qt.Key.Key_Down)
    assert models.local.use_button.isEnabled()
    runtime.refuse = NotAModel("This is an embedding model")
    models.local.list.row_activated.emit(models.local.list.rows[0])
    await until(lambda: models.notices.visible_notices)
    assert models.isVisible()
    runtime.refuse = None
    assert "8B" in models.local.list.current.title  # type: ignore[union-attr]
    qtbot.keyClick(models.local.list, Qt.Key.Key_Return)
    await until(lambda: not models.isVisible())
    assert ("use_model", tmp_path / "Apple-8B.gguf") in runtime.calls
    models.show()
    await until(lambda: "in use" in chips(models))
    runtime.models.there = []
    runtime.models.locked = (UnreadableFolder(Path("/locked"), "Permission denied"),)
    models.local.set_folders([str(tmp_path)])
    await until(lambda: not models.local.list.rows)
    assert runtime.settings.model_folders == (str(tmp_path),)
    await until(lambda: models.local.status.text() == f"{Path('/locked')} cannot be read.")
    assert models.local.empty_card.isVisible()
    menu = models.local.open_folders()
    stop = next(action for action in menu.actions() if action.text().startswith("Stop scanning"))
    stop.trigger()
    menu.close()
    await until(lambda: runtime.settings.model_folders == ())
    await until(lambda: not models.local.findChildren(QMenu), ("the menu to go: each opening has exclusive"))


async def test_suggestions_suit_the_memory_and_ask_nobody_and_no_network_is_told(
    runtime: StagedRuntime, served: FakeHub, models: ModelsWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    qtbot.mouseClick(models.tabs.button(1), LEFT)
    await until(lambda: models.hub.list.rows)
    assert "without a large GPU" in models.hub.heading.text()
    assert {row.chip for row in models.hub.list.rows} <= {"fits", "tight"}
    assert served.requests == []
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    qtbot.keyClicks(models.hub.field, "thing")
    qtbot.mouseClick(models.hub.search_button, LEFT)
    await until(lambda: models.notices.visible_notices)
    assert models.notices.visible_notices[0].texts[0] == "Hugging Face cannot be reached"
    assert "rrno" not in models.notices.visible_notices[0].texts[1]
    assert models.hub.heading.text() != "Searching…"


async def test_searched_listed_downloaded_and_used(
    runtime: StagedRuntime, served: FakeHub, models: ModelsWindow, qtbot: QtBot
) -> None:
    qtbot.mouseClick(models.tabs.button(1), LEFT)
    qtbot.keyClicks(models.hub.field, "thing")
    qtbot.keyClick(models.hub.field, Qt.Key.Key_Return)
    await until(lambda: models.hub.heading.text() == "Results for “thing”")
    assert [row.title for row in models.hub.list.rows] == [REPOSITORY]
    models.hub.list.select(models.hub.list.rows[0].value)
    qtbot.mouseClick(models.hub.show_files_button, LEFT)
    await until(lambda: models.hub.heading.text() == REPOSITORY)
    assert models.hub.show_files_button.text() == "Download"
    assert models.hub.list.current is not None
    assert models.hub.list.current.title == "Thing-7B-Q4_K_M", "the usual one is chosen"
    served.hold_at = 1_000_000
    qtbot.mouseClick(models.hub.show_files_button, LEFT)
    await until(lambda: models.downloads.views and only_download(models).download.downloaded_bytes > 0)  # type: ignore[union-attr]
    view = only_download(models)
    qtbot.mouseClick(view.pause_button, LEFT)
    await until(lambda: view.download.state is DownloadState.PAUSED)  # type: ignore[union-attr]
    assert "paused" in view.progress.text()
    served.go_on.set()
    qtbot.mouseClick(view.resume_button, LEFT)
    await until(lambda: view.use_button.isVisible())
    assert "complete" in view.progress.text()
    qtbot.mouseClick(view.use_button, LEFT)
    path = runtime.paths.models / REPOSITORY / "Thing-7B-Q4_K_M.gguf"
    await until(lambda: ("use_model", path) in runtime.calls)
    qtbot.mouseClick(models.hub.back_button, LEFT)
    assert models.hub.heading.text() == "Results for “thing”"
    models.open_repository(REPOSITORY)
    await until(lambda: [row.chip for row in models.hub.list.rows] == ["on this computer", "fits"])
    await runtime.models.downloads.close()


async def test_a_gated_model_can_be_removed_or_asks_for_a_token_and_comes_with_it(
    runtime: StagedRuntime, served: FakeHub, models: ModelsWindow, qtbot: QtBot
) -> None:
    served.gated.add(REPOSITORY)
    models.open_repository(REPOSITORY)
    await until(lambda: models.hub.show_files_button.text() == "Download")
    qtbot.mouseClick(models.hub.show_files_button, LEFT)
    await until(lambda: models.downloads.views and only_download(models).retry_button.isVisible())
    qtbot.mouseClick(only_download(models).remove_button, LEFT)
    await until(lambda: not models.downloads.views)
    assert not models.downloads.isVisible()
    qtbot.mouseClick(models.hub.show_files_button, LEFT)
    await until(lambda: models.downloads.views and only_download(models).token_button.isVisible())
    view = only_download(models)
    assert "must accept the terms" in view.progress.text()
    qtbot.mouseClick(view.token_button, LEFT)
    dialog = models.open_access_token()
    await until(lambda: dialog.location_label.text() == "No access token is saved.")
    assert dialog.field.echoMode() is QLineEdit.EchoMode.Password
    qtbot.keyClicks(dialog.field, "no token")
    qtbot.keyClick(dialog.field, Qt.Key.Key_Return)
    await until(lambda: dialog.notices.visible_notices)
    dialog.field.clear()
    qtbot.keyClicks(dialog.field, TOKEN)
    qtbot.mouseClick(dialog.save_button, LEFT)
    await until(lambda: "only you can read" in dialog.location_label.text())
    assert dialog.field.text() == ""
    dialog.close()
    qtbot.mouseClick(view.retry_button, LEFT)
    await until(lambda: view.use_button.isVisible())
    await runtime.models.downloads.close()


async def test_a_page_without_models_says_what_to_do(
    runtime: StagedRuntime, window: MainWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    async def fetch(folder: Path, tell: object) -> Path:
        asked.append(folder)
        return await asyncio.Future()

    monkeypatch.setattr("kvchat.ui.models.first_start.fetch_starter", fetch)
    runtime.models.there = []
    models = window.side_windows.open_models()
    await until(models.local.empty_card.isVisible)
    assert models.local.use_button.isHidden()
    qtbot.mouseClick(button(models.local.empty_card, "Download another…"), LEFT)
    assert models.hub.isVisible()
    models.tabs.button(0).click()
    qtbot.mouseClick(button(models.local.empty_card, "Choose a folder…"), LEFT)
    child(models, QFileDialog).close()
    assert models.local.starter_button.text() == starter_title(
        is_downloaded=is_starter_downloaded(runtime.paths.models)
    )
    qtbot.mouseClick(models.local.starter_button, LEFT)
    await until(lambda: asked)
    assert not models.isVisible()
    assert window.first_start.is_fetching


async def test_a_model_is_deleted_with_all_its_files_once_its_size_was_said(
    runtime: StagedRuntime, window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = runtime.models.there[0].facts
    tmp_path = tmp_path / "own"
    tmp_path.mkdir()
    parts = [tmp_path / f"Own-0000{number}-of-00002.gguf" for number in (1, 2)]
    own = FoundModel(parts[0], "Own", Source.KVCHAT, 5 * GB, facts, projector=tmp_path / "mmproj-Own.gguf")
    for file in own.files:
        file.touch()
    assert own.files == (*parts, own.projector)
    other = tmp_path / "Other.gguf"
    other.touch()
    assert own.files == tuple(parts), "the other may see with it"
    other.unlink()
    runtime.models.there = [own, a_model(tmp_path.parent, "Zebra", GB, Source.LM_STUDIO)]
    models = window.side_windows.open_models()
    await until(lambda: len(models.local.list.rows) == 2)
    models.local.list.select(tmp_path.parent / "Zebra.gguf")
    assert not models.local.delete_button.isEnabled(), "it is LM Studio's"
    models.local.list.select(own.path)
    gone: list[str] = []

    def no_trash(file: str) -> bool:
        gone.append(file)
        return False

    monkeypatch.setattr("kvchat.ui.models.models_window.QFile", SimpleNamespace(moveToTrash=no_trash))
    models.local.delete_button.click()
    assert "moves 5 GB to the trash" in " ".join(label.text() for label in question(models).findChildren(QLabel))
    question(models).confirm_button.click()
    await until(lambda: len(gone) == 3)
    await until(lambda: any(dialog.isVisible() for dialog in models.findChildren(ConfirmDialog)))
    assert all(file.exists() for file in parts)
    question(models).confirm_button.click()
    await until(lambda: not any(file.exists() for file in (*parts, tmp_path / "mmproj-Own.gguf")))
    runtime.settings = replace(runtime.settings, model_path=str(own.path))
    models.local.refresh()
    models.local.list.select(own.path)
    assert not models.local.delete_button.isEnabled(), "it answers"
