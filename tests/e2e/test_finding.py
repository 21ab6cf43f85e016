"""The real window with the keyboard only; a second start passes its request to the window."""

import json
import subprocess
from contextlib import closing

import pytest

from kvchat.chat.attachments import document_from_text
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import MessageState, Role
from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home
from tests.e2e.waiting import wait_until
from tests.e2e.window import KVCHAT, LONG, Window, open_window

pytestmark = pytest.mark.e2e

ZOO = document_from_text("zoo.txt", "The gate is open.\n" * 200 + "A platypus sleeps here.\n")


def add_chats(home: Home) -> None:
    with closing(Database(home.folder / "data" / "conversations.db")) as database:
        for title, question in (
            ("Zoo", "What sleeps?"),
            ("Birds", "Where does the heron stand?"),
            ("食べ物", "烤鸭？"),
        ):
            chat = database.create_conversation(title)
            database.append_question(chat.id, question, [ZOO] if title == "Zoo" else [])
            leaf = database.conversation(chat.id)
            assert leaf is not None
            database.append(chat.id, leaf.leaf_id, Role.ASSISTANT, f"About {title}.", MessageState.COMPLETE)


def type_into(window: Window, keys: str, field: str, text: str) -> None:
    window.desktop.key(keys)
    node = window.desktop.find("text", field)
    wait_until(lambda: node.focused, what=f"the focus in {field!r}")
    window.desktop.type(text)


def wait_for(window: Window, name: str) -> None:
    wait_until(
        lambda: any(visible.startswith(name) for visible in window.names()), pause=0.3, what=f"{name!r} on screen"
    )


def choose_a_context_size(window: Window) -> None:
    desktop = window.desktop

    def in_front() -> str:
        return desktop.xdotool("getactivewindow", "getwindowname", check=False).strip()

    window.exchange("Hello there.")
    window.wait_for_saves(1)
    desktop.key("ctrl+comma")
    wait_until(lambda: in_front() == "Settings", what="the settings in front")
    desktop.key("Down")
    field = desktop.find("text", "Context length, in tokens")
    field.focus()
    wait_until(lambda: field.focused, what="the field's focus")
    desktop.type("100")
    desktop.key("Return")
    desktop.find("label", "This must be at least 256 tokens.")
    desktop.key("ctrl+a")
    desktop.type("2K")
    desktop.key("Return")
    desktop.find("push button", "Restart engine now").press()
    window.wait_for_strip("context 2K")
    desktop.key("Escape")
    wait_until(lambda: len(desktop.windows()) == 1, what="the settings' closing")


def test_everything_is_reachable_by_keys_and_the_context_length_can_be_changed(tmp_path, smollm2):
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2), max_tokens=8, **GREEDY)
    add_chats(home)
    with Desktop() as desktop, open_window(desktop, home) as window:
        choose_a_context_size(window)
        assert json.loads((home.folder / "config" / "settings.json").read_text())["context_size"] == 2048
        assert "remembered" in window.exchange("And again?"), "the save points are still valid"

        type_into(window, "ctrl+shift+f", "Search all chats", "heron")
        wait_for(window, "Birds: Where does the heron")
        desktop.key("Return")
        wait_for(window, "You: Where does the heron stand?")
        wait_for(window, "1 of 1")

        type_into(window, "ctrl+shift+f", "Search all chats", "platypus")
        wait_for(window, "Zoo: zoo.txt: ")
        desktop.key("Return")
        assert "platypus" in desktop.find("text", "Text of zoo.txt").text
        desktop.key("Escape")
        wait_for(window, "You: What sleeps?")

        type_into(window, "ctrl+k", "Go to a chat or run a command", "Birds")
        desktop.key("Return")
        wait_for(window, "You: Where does the heron stand?")

        type_into(window, "ctrl+k", "Go to a chat or run a command", "Delete this chat")
        desktop.key("Return")
        undo = desktop.find("push button", "Undo")
        wait_until(lambda: not any(name.startswith("You: Where does") for name in window.names()), what="another chat")
        undo.press()
        type_into(window, "ctrl+k", "Go to a chat or run a command", "Birds")
        desktop.key("Return")
        wait_for(window, "You: Where does the heron stand?")
        window.quit()
    found = home.run("search", "heron")
    assert found.returncode == 0, found
    assert "Where does the heron stand?" in found.stdout


def test_quick_questions_files_and_links(tmp_path, smollm2):
    home, notes = Home(tmp_path / "home"), tmp_path / "notes.txt"
    notes.write_text("The heron stands in the reeds.")
    home.write_settings(model_path=str(smollm2), max_tokens=12, **GREEDY)

    def start(desktop: Desktop, *words: str) -> None:
        environment = desktop.environment | {"KVCHAT_HOME": str(home.folder)}
        subprocess.run([*KVCHAT, *words], env=environment, check=True, timeout=LONG)

    with Desktop() as desktop, open_window(desktop, home, *KVCHAT, "--hidden") as window:
        desktop.tray()
        wait_until(lambda: window.home.folder.joinpath("data").exists(), what="the start")
        desktop.tray().click("Quick question")
        desktop.find(name="Quick question")
        desktop.key("Escape")
        wait_until(lambda: not desktop.windows(), what="the small window's end")
        start(desktop, "quick")
        desktop.find(name="Quick question")
        desktop.type("What is bread made of?")
        desktop.key("Return")
        first = window.replies(1)
        assert first[0]["content"]
        desktop.key("Escape")
        wait_until(lambda: not desktop.windows(), what="the small window's end")
        start(desktop, "quick")
        desktop.find(name="Quick question")
        desktop.type("And cheese?")
        desktop.key("Return")
        window.replies(2)
        desktop.click(desktop.find("push button", "Open in the main window"))
        window.composer()
        start(desktop, str(notes))
        wait_until(lambda: any("notes.txt" in name for name in window.names()), what="the document on the page")
        start(desktop, "kvchat://new?text=What%20stands%20there%3F")
        wait_until(lambda: window.composer().text == "What stands there?", what="the link's words")
        assert len(home.replies()) == 2, "a link sends nothing"
        window.quit()
