"""The real application as a screen reader sees it: every window and menu, and the announcements."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import pytest

from kvchat.library.remote.starter import installed_starter
from kvchat.ui.models.first_start import starter_title
from tests.e2e.accessible import Gone, Node
from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home, engine_path
from tests.e2e.waiting import wait_until
from tests.e2e.window import LONG, Window, open_window
from tests.library import fake_hub

pytestmark = pytest.mark.e2e

WINDOWS = {  # title by command; of the file dialogs one that opens and one that saves
    "Storage…": "Storage",
    "Time saved…": "Time saved",
    "Manual": "Manual",
    "Keyboard shortcuts": "Keyboard shortcuts",
    "Engine…": "Engine",
    "Connected apps…": "Connected apps",
    "Library…": "Library",
    "Recently deleted…": "Recently deleted",
    "Export this chat…": "Export",
    "Export with memory…": "Export with memory?",
    "Import chats…": "Import chats",
}
MENUS = ("This chat", "More", "Showing: All chats")


def test_every_control_has_a_name_and_events_are_announced(tmp_path, monkeypatch):
    home = Home(tmp_path / "home")
    endless = {"engine_path": engine_path("llama-server"), "engine_arguments": "--ignore-eos"}
    home.write_settings(max_tokens=12, **endless, **GREEDY)
    with fake_hub.serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with Desktop() as desktop, open_window(desktop, home) as window:
            reader = _Reader(desktop, window)
            announcements, _ = desktop.announcements, desktop.focus
            starter = starter_title(is_downloaded=installed_starter() is not None)
            starter_button = desktop.find("push button", starter, seconds=LONG)
            reader.check("the first start")
            starter_button.press()
            window.wait_for_strip("ready")
            for count, text in enumerate(("Hello", "Goodbye"), start=1):
                reader.do("New chat")
                window.send(text)
                announcements.wait_for(f"Reply: {window.replies(count)[-1]['content'].split()[0]}", LONG)
            reader.check("a chat")
            for action, title in WINDOWS.items():
                reader.do(action)
                with reader.reading(title):
                    pass
            reader.models()
            reader.settings()
            for menu in MENUS:
                reader.menu(lambda menu=menu: desktop.find("button menu", menu).press(), menu)
            reader.page_actions()
            reader.do("Delete this chat")
            announcements.wait_for("“Goodbye”", LONG)
            reader.check("a notice")
            desktop.tray().click("Quick question")
            with reader.reading("Quick question"):
                pass
            reader.quit_question()
            assert reader.unlabelled == {}
            window.quit()


class _Reader:
    """Visits windows and records controls without a name."""

    def __init__(self, desktop: Desktop, window: Window) -> None:
        self.desktop, self.window = desktop, window
        self.unlabelled: dict[str, list[tuple[str, str]]] = {}

    def check(self, place: str, nodes: Iterable[Node] = ()) -> None:
        if unclear := self.window.unlabelled(nodes):
            self.unlabelled[place] = unclear

    @contextmanager
    def reading(self, title: str) -> Iterator[Node]:
        opened = self.desktop.find("dialog", title)
        wait_until(lambda: opened.active, what=f"{title!r} with the keyboard")
        self.check(title)
        yield opened
        if not _is_gone(opened):
            wait_until(lambda: opened.active, what=f"{title!r} with the keyboard again")
            self.desktop.key("Escape")
        wait_until(lambda: _is_gone(opened), what=f"the end of {title!r}")

    def do(self, action: str) -> None:
        main = self.desktop.find("frame", "kvchat")
        wait_until(lambda: main.active, what="the main window with the keyboard")
        self.desktop.key("ctrl+k")
        field = self.desktop.find("text", "Go to a chat or run a command")
        wait_until(lambda: field.focused, what="the palette with the keyboard")
        field.set_text(action)
        wait_until(lambda: self._first_match().startswith(action), what=f"{action!r} in the palette")
        self.desktop.key("Return")

    def settings(self) -> None:
        self.do("Settings…")
        with self.reading("Settings") as settings:
            for page in self.desktop.find("list", "Pages").find_all("list item"):
                self.desktop.click(page)
                self.desktop.find("filler", page.name)
                self.check(f"Settings, {page.name}")

            desktop = self.desktop
            desktop.click(settings.find_all("list item", "Presets")[0])
            desktop.find("push button", "New…").press()
            with self.reading("Preset"):
                pass

    def models(self) -> None:
        self.do("Models…")
        with self.reading("Models"):
            self.desktop.find("check box", "Download").press()
            self.desktop.find("list", "Models on Hugging Face")
            self.check("Models, download")
            self.desktop.find("push button", "Hugging Face access token").press()
            with self.reading("Hugging Face access token"):
                pass

    def menu(self, opening: Callable[[], object], name: str) -> None:
        opening()
        item = wait_until(self._next_item, what=f"the menu {name!r}")
        self.check(f"menu: {name}", item.parent.walk())
        self.desktop.key("Escape")

    def page_actions(self) -> None:
        """Check the fields in the page: find, search, edit, rename."""
        self.do("Find in this chat")
        self.desktop.find("text", "Find in this chat")
        self.check("find")
        self.desktop.key("Escape")
        self.do("Search in all chats")
        self.desktop.find("text", "Search all chats").set_text("Hello")
        self.desktop.find("list", "Search results")
        self.check("search")
        self.desktop.key("Escape")
        self.do("Edit my last message")
        self.desktop.find("text", "Edit the message")
        self.check("edit")
        self.desktop.key("Escape")
        self.do("Rename this chat")
        self.desktop.focus.wait_for("text", LONG, "New title")  # Qt does not list it in the tree
        self.desktop.key("Escape")

    def quit_question(self) -> None:
        """Check the question shown when quitting during a reply."""
        self.do("Chat settings…")
        with self.reading("Chat settings") as opened:
            self.desktop.find("text", "Max tokens").set_text("4000")
            self.desktop.find("push button", "Save").press()
            wait_until(lambda: _is_gone(opened), what="the saved settings' end")
        self.window.send("Count to a thousand.")
        wait_until(lambda: self.window.home.replies("streaming"), seconds=LONG, what="a reply that goes on")
        self.do("Quit")
        with self.reading("Quit now?"):
            pass
        wait_until(self._stopped, seconds=LONG, what="the stopped reply")

    def _stopped(self) -> bool:
        """Press Escape; the window may not have keyboard focus yet, so the caller retries."""
        self.desktop.key("Escape")
        with suppress(TimeoutError):
            return bool(wait_until(lambda: self.window.home.replies("stopped"), seconds=15))
        return False

    def _next_item(self) -> Node | None:
        """Press Down in a menu, which may not have keyboard focus yet."""
        self.desktop.xdotool("key", "Down")
        with suppress(TimeoutError):
            return self.desktop.focus.wait_for("menu item", 5)
        return None

    def _first_match(self) -> str:
        with suppress(Gone):
            if item := self.desktop.find("list", "Matches").find("list item"):
                return item.name
        return ""


def _is_gone(window: Node) -> bool:
    try:
        return not window.showing
    except Gone:
        return True
