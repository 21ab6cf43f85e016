"""The logo: drawn in every state, visible on any panel, and identical in assets/."""

from pathlib import Path

import pytest
from PySide6.QtCore import QSize
from PySide6.QtGui import QIcon, QImage
from PySide6.QtWidgets import QApplication

from kvchat.ui.base.icons import GREY, RED, TEAL, LogoState, app_svg, icon, tray_icon, tray_svg
from tests.ui.base.contrast import contrast

ASSETS = Path(__file__).parents[3] / "assets"


def test_assets_are_what_the_code_draws() -> None:
    tray = {f"kvchat-tray-{state.value}.svg": tray_svg(state) for state in LogoState}
    for name, svg in {"kvchat.svg": app_svg(), **tray}.items():
        assert (ASSETS / name).read_text("utf-8") == svg


@pytest.mark.parametrize("colour", [TEAL, GREY, RED])
@pytest.mark.parametrize("panel", ["#ffffff", "#f2f2f2", "#1e1e1e", "#000000"])
def test_marks_stand_out_from_any_panel(colour: str, panel: str) -> None:
    assert contrast(colour, panel) >= 3


@pytest.mark.parametrize("size", [16, 22])
def test_states_differ_in_shape_not_only_in_colour(qapp: QApplication, size: int) -> None:
    shapes = set()
    for state in LogoState:
        image = tray_icon(state).pixmap(QSize(size, size)).toImage().convertToFormat(QImage.Format.Format_Alpha8)
        shapes.add(bytes(image.constBits()))
    assert len(shapes) == len(LogoState)


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("mode", [QIcon.Mode.Normal, QIcon.Mode.Disabled])
def test_an_icon_is_drawn_in_the_screens_own_pixels(qapp: QApplication, scale: float, mode: QIcon.Mode) -> None:
    picture = icon("close", "#101010").pixmap(QSize(16, 16), scale, mode)
    assert (picture.width(), picture.devicePixelRatio()) == (16 * scale, scale)
    image = picture.toImage()
    clear = sum(image.pixelColor(x, x).alpha() > 60 for x in range(image.width()))
    assert clear > image.width() / 4  # along the stroke
