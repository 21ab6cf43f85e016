"""Desktop manners, on the real window with the real engine: another start tells the window what it is for."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home
from tests.e2e.waiting import wait_until
from tests.e2e.window import KVCHAT, LONG, open_window

pytestmark = pytest.mark.e2e


@pytest.fixture
def desktop() -> Iterator[Desktop]:
    with Desktop() as made:
        yield made


def test_a_quick_question_by_tray_and_command_and_what_is_opened_with_kvchat(
    desktop: Desktop, tmp_path: Path, smollm2: Path
) -> None:
    home, notes = Home(tmp_path / "home"), tmp_path / "notes.txt"
    notes.write_text("The heron stands in the reeds.")
    home.write_settings(model_path=str(smollm2), max_tokens=12, **GREEDY)

    def start(*words: str) -> None:
        environment = desktop.environment | {"KVCHAT_HOME": str(home.folder)}
        subprocess.run([*KVCHAT, *words], env=environment, check=True, timeout=LONG)

    with open_window(desktop, home, *KVCHAT, "--hidden") as window:
        desktop.tray()
        wait_until(lambda: window.home.folder.joinpath("data").exists(), what="the start")
        desktop.tray().click("Quick question")
        desktop.find(name="Quick question")
        desktop.key("Escape")
        wait_until(lambda: not desktop.windows(), what="the small window's end")
        start("quick")
        desktop.find(name="Quick question")
        desktop.type("What is bread made of?")
        desktop.key("Return")
        first = window.replies(1)
        assert first[0]["content"]
        desktop.key("Escape")
        wait_until(lambda: not desktop.windows(), what="the small window's end")
        start("quick")
        desktop.find(name="Quick question")
        desktop.type("And cheese?")
        desktop.key("Return")
        window.replies(2)
        desktop.click(desktop.find("push button", "Open in the main window"))
        window.composer()
        start(str(notes))
        wait_until(lambda: any("notes.txt" in name for name in window.names()), what="the document on the page")
        start("kvchat://new?text=What%20stands%20there%3F")
        wait_until(lambda: window.composer().text == "What stands there?", what="the link's words")
        assert len(home.replies()) == 2, "a link sends nothing"
        window.quit()
