"""The rig itself, on a toy application: what it cannot see or do here, it cannot see or do in the real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtGui import QImage

from tests.e2e.desktop import Desktop
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.slow
TOY = (sys.executable, "-m", "tests.e2e.tray_toy")


@pytest.fixture
def desktop() -> Iterator[Desktop]:
    with Desktop() as made:
        yield made


def test_a_window_can_be_read_typed_into_and_photographed(desktop: Desktop, tmp_path: Path) -> None:
    empty = desktop.screenshot()
    with desktop.application(*TOY):
        composer = desktop.find("text", "Message")
        wait_until(lambda: composer.focused, what="the composer's focus")
        desktop.type("Hello")
        wait_until(lambda: composer.text == "Hello", what="the typed text")
        desktop.key("Return")
        desktop.find(name="Sent Hello")
        composer.set_text("晚餐食譜")
        desktop.click(desktop.find("push button", "Send"))
        desktop.find(name="Sent 晚餐食譜")
        picture = desktop.screenshot()
    assert picture != empty
    picture.save(tmp_path / "screen.png")
    read_back = QImage(str(tmp_path / "screen.png"))
    assert (read_back.width(), read_back.height()) == (1280, 800)
    corner = read_back.pixelColor(5, 5)
    assert bytes((corner.red(), corner.green(), corner.blue())) == picture.rgb[3 * (5 * 1280 + 5) :][:3]


def test_the_tray_can_be_read_and_used(desktop: Desktop) -> None:
    with desktop.application(*TOY) as toy:
        tray = desktop.tray()
        assert tray.tool_tip == "Toy: tray available"
        assert tray.icon().rgb[:3] == b"\x33\x55\xff"
        assert [entry.label for entry in tray.menu()] == ["Show", "Never", "", "Quit"]
        with pytest.raises(LookupError):
            tray.click("Never")
        desktop.find("push button", "Send")
        desktop.close_window()
        tray.click("Show")
        wait_until(desktop.windows, what="the window's return")
        tray.click("Quit")
        assert toy.wait(120) == 0


def test_a_desktop_may_have_no_tray() -> None:
    with Desktop(tray=False) as bare, bare.application(*TOY):
        bare.find("push button", "Send")
        with pytest.raises((TimeoutError, RuntimeError)):
            bare.tray(seconds=0)
