"""Screenshots of every window: python -m tests.ui.pictures FOLDER --language de --theme dark --text 200.

Without a folder it lists cut-off text by window. Languages: kvchat's own, and `pseudo`, which is written from right to
left.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import qasync
from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QApplication, QDialog, QMenu, QProgressDialog, QScrollArea, QScrollBar, QWidget

from kvchat.chat.attachments import document_from_text
from kvchat.chat.options import Preset
from kvchat.chat.prepared.library import Estimate
from kvchat.chat.record.messages import Conversation, MessageState, Role
from kvchat.engine.api import vitals
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.vitals import SlotState, Vitals
from kvchat.engine.discovery.graphics import GpuVendor, Graphics
from kvchat.engine_host.choice import start_failure
from kvchat.library.gguf.parser import ModelFileMissing
from kvchat.library.model_files import Source as Place
from kvchat.library.model_library import FoundModel
from kvchat.session.exchange import PromptTooLong
from kvchat.session.slots import PendingSave
from kvchat.settings import GB
from kvchat.system.concurrency import OnProgress
from kvchat.text import language
from kvchat.text.formatting import TimeRange
from kvchat.text.search import parse_query
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.app.start_requests import QuickWindow
from kvchat.ui.app.tray import ShutdownDialog, Tray
from kvchat.ui.attachments.chips import AttachmentView
from kvchat.ui.base.accessibility import set_ui_language
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import BugReportDialog, ImportReportDialog
from kvchat.ui.rendering.text_page import LinkDialog
from kvchat.ui.settings.api_server import ApiServerPage
from kvchat.ui.settings.presets import ChatSettingsWindow, PresetsPage
from kvchat.ui.sidebar.library_window import AddDocumentsDialog
from kvchat.ui.transcript.footer import ReceiptView
from kvchat.ui.widgets.layouts import ScrollPage, max_window_size
from tests.ui.cut_off import cut_off
from tests.ui.every_window import furnish
from tests.ui.programs.made_up import fill as programs_made_up
from tests.ui.pseudo import speak_pseudo
from tests.ui.staged_runtime import NOW, StagedRuntime, a_model, a_receipt
from tests.ui.waiting import until
from tests.ui.windows import engine_hangs, on_show

TITLE = "A very long title about 量子力学入门 and 🍜 ramen, which does not end where it should, & more"
HEBREW = "אילו אגמים הם העמוקים ביותר?"
REPLY = """Here is what I know, *briefly*:

> A lake is a body of water that is surrounded by land.

1. **Baikal**, 1,642 m
2. **Tanganyika**, 1,470 m

| Lake | Depth | Where |
|---|---:|---|
| Baikal | 1,642 m | Russia |
| 洞爺湖 | 179 m | 日本 |

```python
def deepest(lakes: list[tuple[str, int]]) -> str:
    return max(lakes, key=lambda lake: lake[1])[0]
```

The volume is $V = \\int_A h\\,dA$; see [the list](https://example.org/lakes).
"""
ANSWER = """אגם בייקל הוא העמוק ביותר, **1,642 מ׳**:

> אגם הוא גוף מים המוקף ביבשה.

- בייקל
- טנגניקה

```python
if True:
    print("שלום")
```
"""


def prepared(folder: Path) -> StagedRuntime:
    """Return a runtime with data for every window."""
    runtime = StagedRuntime(folder, model="Qwen3-Coder-30B-A3B-Instruct-1M-UD-Q4_K_XL")
    furnish(runtime)
    chat = runtime.chat
    for id, title in (("long", TITLE), ("he", HEBREW), ("ja", "晩ご飯のレシピ 🍅")):
        chat.add(title, id=id)
        runtime.kept[id] = 1_136_000_000 if id == "long" else 0
    chat.write("long", Role.USER, "Which lakes are the deepest, and how deep are they? Please make a table.")
    chat.write("long", Role.ASSISTANT, REPLY, thinking="The user asks about lakes.", receipt=a_receipt())
    chat.write("long", Role.USER, "And the smallest?", attachments=(document_from_text("湖.txt", "A lake.\n" * 900),))
    chat.write("long", Role.ASSISTANT, "That is Benxi", state=MessageState.STOPPED)
    chat.write("he", Role.USER, HEBREW)
    chat.write("he", Role.ASSISTANT, ANSWER, receipt=a_receipt())
    chat.keep(Preset("A preset with a name that is rather long 量子 🍜", "x"))
    runtime.engine.log_lines = ["0.00.100.000 I build: 11434", "0.00.300.000 W a warning", "0.00.300.001 E an error"]
    runtime.engine.seen = Vitals(4711, 2_000_000_000, None, SlotState(False, 512, 2048), vitals.Speed(800.0, 41.4))
    runtime.models.there = [
        FoundModel(folder / "b.gguf", "Qwen3-Coder-30B-A3B-Instruct-1M-UD-Q4_K_XL", Place.LM_STUDIO, 20 * GB, None),
        a_model(folder, "Apple-8B", 5 * GB),
        a_model(folder, "Zebra-70B", 40 * GB),
    ]
    for name, tokens in (("Manual of the machine", 28_000), ("料理の本", 12_000), ("Not read yet", 0)):
        chat.put(name, tokens=tokens)
    return runtime


PARTS = "first", "main", "beside", "dialogs", "empty"


async def scenes(
    runtime: StagedRuntime, look: Look, parts: Sequence[str] = PARTS
) -> AsyncIterator[tuple[str, QWidget]]:
    """Yield every window in each of its states, with a name; each is closed before the next."""
    if "first" in parts:
        async for name, shown in _first(runtime, look):
            yield name, shown
    async with on_show(runtime, look) as window:
        window.resize(QSize(look.px(1000), look.px(720)).boundedTo(max_window_size()))
        for part, made in (("main", _main), ("beside", _beside), ("dialogs", _dialogs)):
            if part in parts:
                async for name, shown in made(runtime, window):
                    yield name, shown
                    if shown is not window:
                        shown.close()
    if "empty" in parts:
        nothing = StagedRuntime(runtime.paths.data.parent / "nothing", model=None)
        async with on_show(nothing, look) as window:
            window.resize(QSize(look.px(1000), look.px(720)).boundedTo(max_window_size()))
            async for name, shown in _empty(nothing, window):
                yield name, shown
                if shown is not window:
                    shown.close()


async def _first(runtime: StagedRuntime, look: Look) -> AsyncIterator[tuple[str, QWidget]]:
    first = MainWindow(look, runtime.paths.config / "first")
    first.show_initial_chats([Conversation("a", TITLE, False, NOW, NOW, None)], {})
    yield "first picture", first
    first.deleteLater()


async def _empty(runtime: StagedRuntime, window: MainWindow) -> AsyncIterator[tuple[str, QWidget]]:
    side = window.side_windows
    window.new_conversation()
    yield "no chat", window
    yield "storage, empty", side.open_storage()
    yield "saved, empty", side.open_time_saved()
    yield "programs, empty", side.open_programs()
    yield "library, empty", side.open_library()
    yield "deleted, empty", side.open_deleted()
    yield "models, empty", side.open_models()
    window.show_first_start()
    async for name, shown in _first_run(runtime, window):
        yield name, shown


async def _main(runtime: StagedRuntime, window: MainWindow) -> AsyncIterator[tuple[str, QWidget]]:
    for id in ("long", "he", "thesis"):
        window.chat.open(id)
        await until(lambda: window.transcript.views and all(v.is_complete for v in window.transcript.views.values()))
        if id == "thesis":
            for receipt in window.findChildren(ReceiptView)[-2:]:
                receipt.toggle()
        yield f"chat {id}", window
    window.chat.open("long")
    await until(lambda: window.transcript.views)
    window.find_bar.start_search("lake")
    yield "find", window
    window.find_bar.close_bar()
    window.window_layout.show_sidebar()
    window.sidebar.search_panel.field.setText("lake")
    await until(lambda: window.sidebar.search_panel.results.isVisible())
    yield "search", window
    window.sidebar.search_panel.field.clear()
    window.window_layout.show_page()
    window.composer.set_attachments([document_from_text("notes 📓.txt", "A line of words.\n" * 10_000)])
    window.composer.set_draft("What do you make of this?")
    await until(window.context_card.isVisible)
    window.notices.notify_file_saved("Exported", Path("/home/somebody/a folder/Chats.json"))
    window.notices.show_error(PromptTooLong(40_000, 32_768))
    yield "notices", window
    for notice in window.notices.visible_notices:
        notice.dismiss()
    window.composer.set_attachments([])
    window.composer.set_draft("Go on.")
    await until(lambda: window.context_card.isHidden() and window.composer.send_button.isEnabled())
    window.composer.send_button.click()
    await until(lambda: runtime.chat.is_answering("long"))
    yield "waiting", window
    runtime.chat.say("Some words of the reply", "It was asked to go on.")
    yield "streaming", window
    runtime.chat.stop("long")
    runtime.set_engine(EngineState.FAILED, failure=engine_hangs())
    yield "engine failed", window
    runtime.set_engine(EngineState.FAILED, failure=start_failure(ModelFileMissing(Path("/models/Qwen3-Coder.gguf"))))
    yield "model missing", window
    for state in (EngineState.STOPPED, EngineState.LOADING):
        runtime.set_engine(state)
        yield f"engine {state.value}", window
    runtime.set_engine(EngineState.READY)
    for name, menu in (
        ("menu of the chat", window.header.chat_menu),
        ("menu of kvchat", window.header.menu),
        ("menu of models", window.header.model_menu),
        ("menu of the list", window.sidebar.view_menu),
        ("menu of the tray", Tray(runtime, window).menu),
    ):
        menu.aboutToShow.emit()
        yield name, menu
    window.sidebar._show_menu(window.sidebar.list.visualRect(window.sidebar.model.index(1)).center())
    for menu in [popup for popup in window.sidebar.list.findChildren(QMenu) if popup.isVisible()][:1]:
        yield "menu of a chat in the list", menu
        menu.close()


async def _beside(runtime: StagedRuntime, window: MainWindow) -> AsyncIterator[tuple[str, QWidget]]:
    side = window.side_windows
    settings = side.open_settings(ApiServerPage.name)
    settings.page(ApiServerPage).change("api_server", True)
    await until(lambda: settings.page(ApiServerPage).key_field.text())
    for page in settings.pages:
        settings.show_page(page.name)
        yield f"settings {page.name}", settings
        bar = settings.page(page).verticalScrollBar()
        for part in range(1, 4):
            if bar.value() < bar.maximum():
                bar.setValue(bar.maximum() if part == 3 else bar.value() + settings.height() // 2)
                yield f"settings {page.name} {part + 1}", settings
    settings.close()
    settings = side.open_settings()
    preset = settings.page(PresetsPage).open_dialog((await runtime.chat.options.presets())[0])
    assert preset is not None
    await until(preset.save_button.isEnabled)
    yield "preset", preset
    settings.close()
    window.open_chat_settings()
    (chat,) = window.findChildren(ChatSettingsWindow)
    await until(chat.save_button.isEnabled)
    yield "chat settings", chat
    storage = side.open_storage()
    await until(lambda: storage.list.usage.rows)
    yield "storage", storage
    storage = side.open_storage()
    storage.prune_card.slider.setValue(storage.prune_card.slider.maximum() // 3)
    await until(lambda: storage.prune_card.plan is not None)
    yield "storage, to be shrunk", storage
    saved = side.open_time_saved()
    await until(lambda: saved.statistics)
    yield "time saved", saved
    programs_made_up(runtime)
    programs = side.open_programs()
    programs.requests.list.select(1)
    yield "programs", programs
    for area in _scrolled(side.open_programs()):
        area.setValue(area.maximum() // 2)
        yield "programs, middle", programs
        area.setValue(area.maximum())
        yield "programs, end", programs
    yield "engine", side.open_engine()
    yield "engine log", side.open_engine(show_log=True)
    models = side.open_models()
    await until(lambda: len(models.local.list.rows) == 3)
    models.local.list.setCurrentIndex(models.local.list.model().index(1, 0))
    yield "models", models
    models = side.open_models()
    models.tabs.button(1).click()
    await until(lambda: models.hub.list.rows)
    yield "models to be had", models
    token = side.open_models().open_access_token()
    await until(token.location_label.text)
    yield "token", token
    models.close()
    yield "manual", side.open_manual()
    await runtime.chat.recently_deleted.delete(["tax"])
    deleted = side.open_deleted()
    yield "deleted", deleted
    library = side.open_library()
    await until(lambda: library.list.rows)
    library.list.setCurrentIndex(library.list.model().index(0, 0))
    yield "library", library
    library = side.open_library()
    yield (
        "library, adding",
        _opened(AddDocumentsDialog(library, "Documents 量子", Estimate(12, 78_000, TimeRange(60, 180)))),
    )
    library.close()
    yield "shortcuts", window.keyboard.open_sheet()
    yield "palette", window.keyboard.open_palette()
    quick = QuickWindow(runtime, window.look, window.runner, window.chat)
    quick.toggle()
    yield "quick question", quick
    quick.toggle()
    quick.composer.set_draft("Which lake is the deepest?")
    quick.composer.send_button.click()
    await until(lambda: runtime.chat.answering_chats)
    (asked,) = runtime.chat.answering_chats
    runtime.chat.say("Lake Baikal, with 1,642 m.")
    runtime.chat.finish()
    await until(lambda: not runtime.chat.answering_chats)
    runtime.chat.set_receipt(runtime.chat.said(asked)[-1], a_receipt())
    yield "quick question, answered", quick


def _scrolled(window: QWidget) -> list[QScrollBar]:
    bars = [area.verticalScrollBar() for area in window.findChildren(QScrollArea) if area.isVisible()]
    return [bar for bar in bars if bar.maximum() > 0][:1]


def _opened(dialog: QDialog) -> QDialog:
    dialog.open()
    return dialog


async def _dialogs(runtime: StagedRuntime, window: MainWindow) -> AsyncIterator[tuple[str, QWidget]]:
    import kvchat.ui.controllers.transfer as transfer
    import kvchat.ui.dialogs.confirm as metered
    from kvchat.text.formatting import format_size
    from kvchat.text.language import _
    from kvchat.ui.dialogs.confirm import ConfirmDialog, ask_passphrase

    look = window.look
    window.side_windows.open_storage()._ask_delete_all()
    yield "question", window.side_windows.open_storage().findChildren(ConfirmDialog)[-1]
    window.side_windows.open_storage().close()
    yield "link", _opened(LinkDialog(window, "https://example.org/" + "a-long-path/" * 12))
    about = _(transfer._ABOUT_MEMORY, size=format_size(1_136_000_000))
    title, action = _("Export with memory?"), _("Choose a file…")
    yield "passphrase", ask_passphrase(window, title, about, action, lambda _: None, optional=True)
    yield "bug", _opened(BugReportDialog(look, "Traceback (most recent call last):\n  ValueError: 7", window))
    problems = ["a.json: it contains no chats", "チャット.json: it is incomplete or damaged"]
    yield "import", _opened(ImportReportDialog(look, "Imported 2 chats", "", problems, window))
    document = document_from_text("notes.txt", "A line about a lake.\n" * 40)
    yield "document", _opened(AttachmentView(look, document, parse_query("lake"), window))

    async def export(report: OnProgress) -> None:
        report(1, 3)
        await asyncio.sleep(30)

    async def yes() -> bool:
        return True

    with patch.object(transfer, "_PATIENCE_MS", 0), patch.object(metered, "is_metered", yes):
        task = asyncio.create_task(window.transfer.with_progress(_("Exporting…"), export, ""))
        await until(lambda: window.findChildren(QProgressDialog))
        yield "progress", window.findChildren(QProgressDialog)[0]
        task.cancel()
        metered.ask_if_metered(window, window.runner.start, "Qwen3", "20 GB", lambda: None)
        await until(lambda: window.findChildren(ConfirmDialog))
        yield "metered", window.findChildren(ConfirmDialog)[-1]
    box = ShutdownDialog()
    box.show_progress(PendingSave(2_100_000_000, 12.3))
    box.show()
    yield "finishing", box


async def _first_run(runtime: StagedRuntime, window: MainWindow) -> AsyncIterator[tuple[str, QWidget]]:
    import kvchat.engine_host.setup as setup
    from kvchat.engine.discovery.engines import EngineLocation

    yield "first run, nothing", window
    runtime.models.there = [a_model(runtime.paths.data, "Apple-8B", 5 * GB), a_model(runtime.paths.data, "Fig-1B", GB)]
    page, inside = window.first_start, [EngineLocation()]
    card = Graphics("linux", (GpuVendor.AMD,))
    with (
        patch.object(setup, "detect_graphics", lambda: card),
        patch.object(setup, "installed_engines", lambda: inside),
    ):
        window.show_first_start()
        await until(lambda: page.local_model_buttons and page.engine_offer.isVisible())
    yield "first run", window
    page.show_progress(49_000_000, 98_000_000)
    yield "first run, fetching", window
    page.show_error(PromptTooLong(40_000, 32_768))
    yield "first run, error", window


async def settle(times: int = 40) -> None:
    """Let layouts and pending requests finish."""
    for _ in range(times):
        await asyncio.sleep(0.005)


async def take(folder: Path, look: Look, runtime: StagedRuntime, parts: Sequence[str], least: bool) -> None:
    """Save a screenshot of every window; `least`: at its minimum size."""
    number = 0
    async for name, shown in scenes(runtime, look, parts):
        if isinstance(shown, QMenu):
            shown.ensurePolished()
            shown.resize(shown.sizeHint())
        before = shown.size()
        if least and _has_frame(shown):
            shown.resize(0, 0)
        await settle()
        shown.grab().save(str(folder / f"{number:02}-{name.replace(' ', '-').replace(',', '')}.png"))
        number += 1
        shown.resize(before)


async def check(look: Look, runtime: StagedRuntime, parts: Sequence[str]) -> list[str]:
    """Return the cut-off texts by window, at default and minimum size."""
    found = []
    async for name, shown in scenes(runtime, look, parts):
        found += [f"{name}: {fault}" for fault in await _lacking(shown)]
        if _has_frame(shown):
            before = shown.size()
            shown.resize(0, 0)  # as small as it can be made
            at = f"{name} at {shown.width()}x{shown.height()}"
            found += [f"{at}: {fault}" for fault in await _lacking(shown)]
            shown.resize(before)
    return found


def _has_frame(shown: QWidget) -> bool:
    """Return True if the user can resize the window."""
    drawn_alone = shown.windowFlags() & Qt.WindowType.FramelessWindowHint or isinstance(shown, QMenu)
    return shown.isVisible() and shown.isWindow() and not drawn_alone


async def _lacking(shown: QWidget) -> list[str]:
    for _ in range(50):
        await settle(15)
        if not (lacking := [*cut_off(shown), *_sideways(shown)]):
            break
    return lacking


def _sideways(shown: QWidget) -> Iterator[str]:
    """Yield the visible pages that scroll sideways."""
    for page in shown.findChildren(ScrollPage):
        if page.isVisible() and (hidden := page.horizontalScrollBar().maximum()):
            yield f"{page.objectName()} scrolls sideways by {hidden} pixels"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="without one: say what is cut off")
    parser.add_argument("--language", default="en")
    parser.add_argument("--catalogues", type=Path, default=language.CATALOGUES, help="where they are compiled")
    parser.add_argument("--theme", default="light")
    parser.add_argument("--text", type=int, default=100, help="percent")
    parser.add_argument("--screen", default="1600x1000", help="pixels")
    parser.add_argument("--least", action="store_true", help="each as small as it can be made")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS, help="of the windows")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvchat-pictures-") as scratch:
        home = Path(scratch)
        width, height = map(int, asked.screen.split("x"))
        screen = {"name": "screen", "x": 0, "y": 0, "width": width, "height": height, "logicalDpi": 96, "dpr": 1}
        (home / "screens.json").write_text(json.dumps({"screens": [screen]}))
        os.environ["QT_QPA_PLATFORM"] = f"offscreen:configfile={home / 'screens.json'}"
        os.environ["HOME"] = os.environ["XDG_CONFIG_HOME"] = str(home)
        app = QApplication(sys.argv[:1])
        if asked.language == "pseudo":
            speak_pseudo(app)
        else:
            language.CATALOGUES = asked.catalogues
            set_ui_language(asked.language)
        look, runtime = Look(app, asked.theme), prepared(home / "home")
        runtime.settings = replace(runtime.settings, zoom=asked.text, theme=asked.theme)
        look.apply_settings(runtime.settings)
        if asked.folder is None:
            sys.exit("\n".join(qasync.run(check(look, runtime, asked.only))) or 0)
        asked.folder.mkdir(parents=True, exist_ok=True)
        qasync.run(take(asked.folder, look, runtime, asked.only, asked.least))


if __name__ == "__main__":
    main()
