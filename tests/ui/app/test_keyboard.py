"""Shortcuts, palette, shortcut sheet, zoom and the switch for figures, with the staged runtime."""

from collections import Counter

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QLabel, QMenu, QMenuBar
from pytestqt.qtbot import QtBot

from kvchat.chat.options import Preset
from kvchat.chat.record.messages import Role
from kvchat.text.search import fold
from kvchat.ui.app.keyboard import KeyboardController
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.chat.turn_status import Remark
from kvchat.ui.commands import SHORTCUTS, Palette, ShortcutSheet, best_matches, fill_menu_bar
from kvchat.ui.transcript.reply_view import ReplyView
from tests.ui.staged_runtime import StagedRuntime, a_receipt
from tests.ui.waiting import until
from tests.ui.windows import child

TITLES = ("Trip to Jeju", "Thesis, chapter 3", "Crème brûlée", "量子力学入门", "The thesis itself")


def shown_titles(palette: Palette) -> list[str]:
    return [entry.title for entry in palette.entries]


@pytest.fixture
def furnished(runtime: StagedRuntime) -> StagedRuntime:
    for number, title in enumerate(TITLES):
        runtime.chat.add(title, id=f"c{number}")
        runtime.chat.write(f"c{number}", Role.USER, "Why?")
        runtime.chat.write(f"c{number}", Role.ASSISTANT, "Because.", receipt=a_receipt())
    return runtime


def test_no_key_means_two_things_and_each_is_one_that_qt_knows() -> None:
    keys = Counter(QKeySequence(key).toString() for shortcut in SHORTCUTS for key in shortcut.keys)
    assert all(keys), "a name that Qt does not know"
    assert [key for key, count in keys.items() if count > 1] == []
    assert len({shortcut.action for shortcut in SHORTCUTS}) == len(SHORTCUTS)


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("thesis", "Thesis, chapter 3"),
        ("brulee", "Crème brûlée"),
        ("tj", "Trip to Jeju"),
        ("jeju trip", "Trip to Jeju"),
    ],
)
def test_titles_are_found_by_a_few_letters(typed: str, first: str) -> None:
    assert TITLES[best_matches(typed, [fold(title) for title in TITLES], 3)[0]] == first


def test_what_fits_nothing_finds_nothing() -> None:
    assert best_matches("xyzzy", [fold(title) for title in TITLES], 3) == []
    assert best_matches("  ", [fold(title) for title in TITLES], 3) == [0, 1, 2]


async def test_the_library_s_documents_are_no_chats(runtime: StagedRuntime, window: MainWindow) -> None:
    runtime.chat.put("Manual", tokens=5)
    runtime.chat.add("Thesis", id="thesis")
    conversations = window.chat.conversations
    await until(lambda: len(conversations.owners) == 2)
    assert conversations.titles == {"thesis": "Thesis"}
    palette = window.keyboard.open_palette()
    assert shown_titles(palette)[0] == "Thesis"
    assert not [words for words in shown_titles(palette) if "Manual (" in words]
    palette.close()


async def test_the_palette_switches_chats_and_does_things(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    qtbot.keyClick(window, Qt.Key.Key_K, Qt.KeyboardModifier.ControlModifier)
    palette = child(window, Palette)
    assert shown_titles(palette)[0] != window.header.title.full_text  # the open one comes last
    qtbot.keyClicks(palette.field, "jeju")
    assert shown_titles(palette) == ["Trip to Jeju"]
    qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    assert window.chat.current == "c0"
    palette = window.keyboard.open_palette()
    qtbot.keyClicks(palette.field, "thesis")
    qtbot.keyClick(palette.field, Qt.Key.Key_Down)
    qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    assert window.chat.current == "c4"
    palette = window.keyboard.open_palette()
    qtbot.keyClicks(palette.field, "new chat")
    qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    assert window.chat.current is None
    palette = window.keyboard.open_palette()
    qtbot.keyClicks(palette.field, "dark thx")
    assert palette.empty_label.isVisible()
    qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    assert palette.isVisible()
    qtbot.keyClick(palette.field, Qt.Key.Key_Backspace)
    qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    await until(lambda: furnished.settings.theme == "dark")


async def test_the_sheet_names_every_key(runtime: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    qtbot.keyClick(window, Qt.Key.Key_Slash, Qt.KeyboardModifier.ControlModifier)
    sheet = child(window, ShortcutSheet)
    words = {label.text() for label in sheet.findChildren(QLabel)}
    assert {part for shortcut in SHORTCUTS if shortcut.keys for part in (shortcut.title, shortcut.key_text)} <= words
    sheet.close()


async def test_menu_bar_of_macos(window: MainWindow) -> None:
    bar = QMenuBar()
    fill_menu_bar(bar, window.keyboard.actions)
    (menu,) = bar.findChildren(QMenu)
    roles = {action.text(): action.menuRole() for action in menu.actions()}
    assert roles["Settings…"] is QAction.MenuRole.PreferencesRole
    assert roles["Quit"] is QAction.MenuRole.QuitRole


async def test_up_in_an_empty_field_edits_the_last_question(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await until(lambda: len(window.transcript.views) == 2, "the messages")
    question = window.transcript.messages[0].id
    qtbot.keyClicks(window.composer.editor, "x")
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Up)
    assert window.transcript.views[question].editor is None
    window.composer.set_draft("")
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Up)
    assert window.transcript.views[question].editor is not None


async def test_zoom_scales_the_type_and_is_kept(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    keyboard: KeyboardController = window.keyboard
    before = window.composer.editor.font().pointSizeF()
    keyboard.actions["larger"].trigger()
    await until(lambda: furnished.settings.zoom == 110, "the larger text")
    assert window.composer.editor.font().pointSizeF() == pytest.approx(before * 1.1, abs=0.06)
    for _ in range(20):
        keyboard.actions["smaller"].trigger()
        await until(lambda: not window.runner._tasks)
    assert furnished.settings.zoom == 70
    keyboard.actions["normal"].trigger()
    await until(lambda: window.composer.editor.font().pointSizeF() == before, "the size it had")


async def test_the_numbers_go_and_come_back(furnished: StagedRuntime, window: MainWindow) -> None:
    await until(lambda: len(window.transcript.views) == 2, "the messages")
    reply = window.transcript.messages[1].id

    def receipt() -> object:
        view = window.transcript.views[reply]
        return view.receipt if isinstance(view, ReplyView) else None

    window.status_strip.show_turn((Remark("first token 0.3 s"), Remark("not saved: no room", "warn")), None)
    assert receipt() is not None
    window.keyboard.actions["numbers"].trigger()
    await until(lambda: receipt() is None, "a reply without its receipt")
    assert window.status_strip.remarks.text == "not saved: no room"  # what went wrong is no number
    assert window.status_strip.context.isHidden()
    window.keyboard.actions["numbers"].trigger()
    await until(lambda: receipt() is not None, "the receipt")
    assert window.status_strip.remarks.text.startswith("first token")


async def test_the_palette_offers_only_what_does_something_now(furnished: StagedRuntime, window: MainWindow) -> None:
    def offered() -> set[str]:
        palette = window.keyboard.open_palette()
        try:
            return {entry.title for entry in palette.commands}
        finally:
            palette.close()

    chat = window.chat.current or ""
    await until(lambda: len(window.transcript.views) == 2, "the messages")
    assert not {"Stop the reply", "Undo deletion", "System theme"} & offered()
    assert {"Regenerate reply", "Edit my last message", "Rename this chat"} <= offered()
    window.chat.send_controller.send("And now?")
    await until(lambda: furnished.chat.is_answering(chat))
    assert "Stop the reply" in offered()
    assert not {"Regenerate reply", "Edit my last message"} & offered()
    furnished.chat.stop(chat)
    window.sidebar.delete_requested.emit(["c0"])
    await until(lambda: "Undo deletion" in offered())
    window.new_conversation()
    assert not {"Rename this chat", "Delete this chat", "Find in this chat", "Export this chat…"} & offered()
    assert {"New chat", "Settings…", "Previous chat"} <= offered()


async def test_a_slash_begins_a_chat_with_a_preset(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    editor = window.composer.editor

    def palette() -> Palette | None:
        return next((palette_ for palette_ in window.findChildren(Palette) if palette_.isVisible()), None)

    editor.setFocus()
    qtbot.keyClicks(editor, "/")
    await until(lambda: not window.runner._tasks)
    assert (window.composer.draft, palette()) == ("/", None), "without presets it is a slash"
    editor.clear()
    for name in ("Editor", "Translator"):
        await furnished.chat.options.store_preset(Preset(name, f"You are a {name}."))
    qtbot.keyClicks(editor, "1/")
    await until(lambda: not window.runner._tasks)
    assert palette() is None, "only at the beginning"
    editor.clear()
    qtbot.keyClicks(editor, "/")
    await until(lambda: palette() is not None)
    shown = palette()
    assert shown is not None
    assert shown_titles(shown) == ["Editor", "Translator"]
    qtbot.keyClicks(shown.field, "etc")
    await until(lambda: palette() is None)
    assert window.composer.draft == "/etc", "what is no preset goes on as a message"
    editor.clear()
    qtbot.keyClicks(editor, "/")
    await until(lambda: palette() is not None)
    shown = palette()
    assert shown is not None
    qtbot.keyClicks(shown.field, "tra")
    qtbot.keyClick(shown.field, Qt.Key.Key_Return)
    await until(lambda: furnished.chat.system(window.chat.current or ""))
    assert furnished.chat.system(window.chat.current or "") == "You are a Translator."
    assert window.composer.draft == ""
