"""The settings window by real keys and clicks, and what the engine makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home
from tests.e2e.waiting import wait_until
from tests.e2e.window import open_window

pytestmark = pytest.mark.e2e


def test_choose_a_context_size_by_keys_and_restart_the_engine(tmp_path: Path, smollm2: Path) -> None:
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2), max_tokens=8, **GREEDY)
    with Desktop() as desktop, open_window(desktop, home) as window:
        window.exchange("Hello there.")
        window.saved(1)
        desktop.key("ctrl+comma")
        wait_until(lambda: active_window(desktop) == "Settings", what="the settings in front")
        desktop.key("Down")
        field = desktop.find("text", "Context size, in tokens")
        field.focus()
        wait_until(lambda: field.focused, what="the field's focus")
        desktop.type("100")
        desktop.key("Return")
        desktop.find("label", "This must be at least 256 tokens.")
        desktop.key("ctrl+a")
        desktop.type("2K")
        desktop.key("Return")
        desktop.find("push button", "Restart engine now").press()
        window.strip_says("context 2K")
        assert json.loads((home.folder / "config" / "settings.json").read_text())["context_size"] == 2048
        desktop.key("Escape")
        wait_until(lambda: len(desktop.windows()) == 1, what="the settings' closing")
        assert "remembered" in window.exchange("And again?"), "what was saved is still good"
        window.quit()


def active_window(desktop: Desktop) -> str:
    return desktop.xdotool("getactivewindow", "getwindowname", check=False).strip()
