"""The library window over a real kvchat on a fake engine: a folder is added, processed, queried and changed."""

from pathlib import Path

import pytest

from kvchat.settings import Settings
from kvchat.ui.base.theme import Look
from kvchat.ui.sidebar.library_window import AddDocumentsDialog
from tests.engine_fixtures import FakeEngine
from tests.ui.windows import begun, child

pytestmark = pytest.mark.long

STORY = "A long story of the river and the garden. " * 20


async def test_from_a_folder_to_a_first_question_that_has_nothing_to_read(
    tmp_path: Path, fake_engine: FakeEngine, smollm2: Path, look: Look
) -> None:
    folder = tmp_path / "manual"
    folder.mkdir()
    (folder / "a.md").write_text(STORY)
    settings = Settings(
        model_path=str(smollm2), engine_path=str(fake_engine.path), context_size=4096, free_floor_bytes=0
    )
    async with begun(tmp_path / "home", settings, look) as opened:
        window = opened.window
        window.sidebar.library_button.click()
        panel = window.side_windows.open_library()
        await opened.until(panel.empty_label.isVisible)
        await panel.ask_to_add([folder])
        await opened.until(lambda: panel.findChild(AddDocumentsDialog) is not None)
        dialog = child(panel, AddDocumentsDialog)
        dialog.add_button.click()
        await opened.until(lambda: [row.chip for row in panel.list.rows] == ["ready"])
        [one] = await opened.runtime.chat.library.all()
        (folder / "b.md").write_text("A file that is new.")
        panel.hide()
        panel.bring_forward()
        await opened.until(lambda: [row.chip for row in panel.list.rows] == ["files changed"])
        panel.start_chat_button.click()
        await opened.until(lambda: window.chat.current is not None)
        opened.send("What of the boat?")
        await opened.until(lambda: any(message.receipt for message in window.transcript.messages))
        receipt = next(message.receipt for message in window.transcript.messages if message.receipt)
        assert receipt.cached_tokens >= one.tokens - 1
