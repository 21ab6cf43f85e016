"""The window if chat memory cannot be saved: it opens, reports this once, and no action raises."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from kvchat.kvstore.store import UNAVAILABLE_TITLE
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from kvchat.ui.base.theme import Look
from kvchat.ui.storage.storage_panel import StoragePanel
from tests.ui.waiting import until
from tests.ui.windows import Open, begun


@pytest_asyncio.fixture
async def opened(tmp_path: Path, look: Look) -> AsyncIterator[Open]:
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")})
    paths.ensure()
    paths.save_points.write_text("mine")
    async with begun(tmp_path / "home", Settings(), look) as window:
        yield window


async def test_it_opens_and_says_so_and_what_deletes_says_why_it_cannot(opened: Open, tmp_path: Path) -> None:
    window = opened.window
    told: list[str] = []
    opened.runtime.events.subscribe(lambda event: told.append(str(event)))
    await opened.until(lambda: window.notices.visible_notices)
    (notice,) = window.notices.visible_notices
    assert notice.accessibleName().startswith(UNAVAILABLE_TITLE)
    await opened.until(lambda: "is not being saved" in window.sidebar.usage_button.accessibleName())
    window.sidebar.usage_button.click()
    panel = next(storage_panel for storage_panel in window.findChildren(StoragePanel) if storage_panel.isVisible())
    await opened.until(lambda: panel.summary.total_label.text() == "kvchat cannot save chat memory")
    assert "savepoints" in panel.empty_label.text()
    panel._delete(None)
    await until(lambda: panel.notices.visible_notices)
    assert panel.notices.visible_notices[0].accessibleName().startswith(UNAVAILABLE_TITLE)
    assert panel.notices.report is None
    assert not [words for words in told if UNAVAILABLE_TITLE in words], "once is enough"
