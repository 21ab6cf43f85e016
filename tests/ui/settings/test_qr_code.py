import pytest
import segno
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from kvchat.settings import Settings
from kvchat.ui.base.theme import Look
from kvchat.ui.settings.devices import QrCode

LINK = "https://192.168.1.23:8738/pair#abcdefghijklmnopqrstuv"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_module_is_dark_on_light_with_a_quiet_zone(look: Look, qtbot: QtBot, theme: str) -> None:
    look.apply_settings(Settings(theme=theme))
    code = QrCode(look)
    qtbot.addWidget(code)
    code.show_text(LINK)
    code.resize(code.sizeHint())
    picture, matrix = code.grab().toImage(), list(segno.make(LINK, micro=False, error="l").matrix_iter(border=4))
    module = picture.width() / len(matrix)
    shown = [
        [QColor(picture.pixel(int((x + 0.5) * module), int((y + 0.5) * module))).lightness() for x in range(len(row))]
        for y, row in enumerate(matrix)
    ]
    assert shown == [[0 if dark else 255 for dark in row] for row in matrix]
    assert code.accessibleDescription() == LINK
