"""Every window at 100, 150 and 200 % text, with long titles in several scripts: no text is cut off."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from PySide6.QtCore import QPoint, QRect, QSize
from PySide6.QtWidgets import QWidget

from kvchat.chat.attachments import document_from_text
from kvchat.chat.options import Preset
from kvchat.chat.record.messages import Role
from kvchat.errors import KvchatError
from kvchat.settings import ZOOMS
from kvchat.ui.app import window_state
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs import panel
from tests.ui.cut_off import cut_off
from tests.ui.staged_runtime import StagedRuntime, a_receipt, counted
from tests.ui.waiting import until
from tests.ui.windows import on_show

pytestmark = pytest.mark.slow
TITLE = "A very long title about 量子力学入门 and 🍜 ramen, which does not end where it should, & more"


@pytest.fixture(params=[100, 150, 200])
def furnished(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagedRuntime:
    for module in (panel, window_state):
        monkeypatch.setattr(module, "max_window_size", lambda: QSize(1900, 1300))
    runtime = StagedRuntime(tmp_path, model="Qwen3-Coder-30B-A3B-Instruct-1M-UD-Q4_K_XL")
    runtime.settings = replace(runtime.settings, zoom=request.param)
    for id in ("a", "b"):
        runtime.chat.add(f"{TITLE} {id}", id=id)
        runtime.chat.write(id, Role.USER, "Why?")
        runtime.chat.write(id, Role.ASSISTANT, "Because. " * 40, receipt=a_receipt())
        runtime.kept[id] = 1_136_000_000
    runtime.chat.keep(Preset("A preset with a name that is rather long 量子 🍜", "x"))
    runtime.chat.counted = counted()
    return runtime


@pytest_asyncio.fixture
async def wide(furnished: StagedRuntime, look: Look) -> AsyncIterator[MainWindow]:
    look.apply_settings(furnished.settings)
    furnished.chat.say("Because.")
    furnished.chat.finish()
    await furnished.chat.send("b", "And why is that?")
    async with on_show(furnished, look) as window:
        await until(lambda: len(window.transcript.views) == 4)
        yield window


async def whole(window: QWidget, name: str) -> None:
    """Wait until nothing is cut off: layouts take a moment."""
    try:
        await until(lambda: not list(cut_off(window)))
    except AssertionError:
        pytest.fail(f"{name}: " + "\n".join(cut_off(window)))


async def test_the_main_window(furnished: StagedRuntime, wide: MainWindow, look: Look) -> None:
    wide.notices.show_error(KvchatError("Cannot restart", "Many words. " * 20, "Some advice."))
    wide.notices.notify_with_action(
        "Exported 2 chats", "Open folder", lambda: None, "/home/somebody/a folder/Chats.json"
    )
    wide.composer.set_attachments([document_from_text("long.txt", "A line of words.\n" * 10_000)])
    await until(wide.context_card.isVisible)
    await whole(wide, "the main window")
    assert wide.sidebar.new_button.iconSize().width() == 18 * furnished.settings.zoom // 100
    assert wide.header.menu_button.iconSize().width() == 16 * furnished.settings.zoom // 100
    assert wide.composer.send_button.iconSize().width() == 20 * furnished.settings.zoom // 100
    assert wide.status_strip.dot.width() == round(9 * furnished.settings.zoom / 100)
    field = wide.sidebar.search_panel.field
    assert field.textMargins().left() == 20 * furnished.settings.zoom // 100
    wide.show_first_start()
    await whole(wide, "the first start")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "text", "scale", "screen"),
    [
        ("de", 100, 1, "1600x1000"),
        ("de", 200, 1, "800x600"),
        ("pseudo", 200, 1, "800x600"),
        ("de", 100, 3, "3840x2160"),
    ],
)
def test_long_languages_and_those_from_the_right_are_nowhere_cut_off(
    language: str, text: int, scale: int, screen: str, compiled_catalogues: Path
) -> None:
    """At default and minimum size; in its own process, because Qt reads the screen's scale only once."""
    asked = ["--language", language, "--text", str(text), "--catalogues", str(compiled_catalogues)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.ui.pictures", *asked, "--screen", screen],
        env=os.environ | {"QT_SCALE_FACTOR": str(scale)},
        cwd=Path(__file__).parents[3],
        stderr=subprocess.PIPE,
        text=True,
        timeout=500,
    )
    told = [line for line in done.stderr.splitlines() if not line.startswith("This plugin does not support")]
    assert (done.returncode, told) == (0, [])


@pytest.mark.parametrize("furnished", [150], indirect=True)
async def test_another_text_size_is_in_force_at_once(furnished: StagedRuntime, wide: MainWindow, look: Look) -> None:
    words, model, composer = wide.context_meter.text, wide.header.model_button, wide.composer

    def fits() -> bool:
        wide_text = model.fontMetrics().horizontalAdvance(model.text()) + model.iconSize().width() + 20
        return words.height() >= words.fontMetrics().height() and wide_text <= model.width()

    def is_round() -> bool:
        button = composer.send_button
        picture = composer.grab(QRect(button.mapTo(composer, QPoint(0, 0)), button.size())).toImage()
        return picture.pixelColor(1, 1) != picture.pixelColor(picture.width() // 2, 4)

    wide.resize(900, 700)
    for zoom in (160, 100, 200, 150):
        look.apply_settings(replace(furnished.settings, zoom=zoom))
        await until(fits, f"the room at {zoom} %")
    wide.transcript.show_pending(f"Waiting for “{TITLE}”: writing its reply.", is_waiting=True)
    await whole(wide, "the waiting line")
    for zoom in ZOOMS:
        look.apply_settings(replace(furnished.settings, zoom=zoom))
        await until(is_round, f"a round button at {zoom} %")
