"""From the switch in the settings to a request's receipt, with the real window, runtime and API server."""

from pathlib import Path

import httpx2
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from kvchat.settings import Settings
from kvchat.text.reasons import ReasonCode
from kvchat.ui.base.theme import Look
from kvchat.ui.settings.api_server import ApiServerPage
from tests.gateway import agents
from tests.gateway.test_rewriting import TODAY, TOMORROW
from tests.ui.windows import Open, begun


async def test_from_the_switch_to_the_receipt(
    tmp_path: Path, real_settings: Settings, look: Look, qtbot: QtBot
) -> None:
    async with begun(tmp_path / "home", real_settings, look) as shown:
        page = shown.window.side_windows.open_settings(ApiServerPage.name).page(ApiServerPage)
        assert not page.address.isVisible()
        page.change("api_server", True)
        await shown.until(lambda: page.key_field.text() and page.address.text())
        page.copy_key_button.click()
        page.copy_configuration_button.click()
        assert page.access.key in QGuiApplication.clipboard().text()
        headers = {"authorization": f"Bearer {page.access.key}", "user-agent": "opencode/1.18.33"}
        async with httpx2.AsyncClient(base_url=page.address.text(), timeout=60, trust_env=False) as client:
            assert (await client.get("/v1/models")).status_code == 401
            programs = shown.window.side_windows.open_programs()
            for date in (TODAY, TOMORROW):
                body = agents.opencode(date=date) | {"max_tokens": 12}
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200
                await shown.runtime.api_server.wait_until_idle()
        await shown.until(lambda: len(programs.requests.list.rows) == 2)
        await seen(shown)
        page.change("api_server", False)
        await shown.until(lambda: shown.runtime.api_server.url is None)


async def seen(shown: Open) -> None:
    """Assert that the windows show the result."""
    programs, storage = shown.window.side_windows.open_programs(), shown.window.side_windows.open_storage()
    assert [row.title for row in programs.list.rows] == ["opencode"]
    newest = programs.requests.list.rows[0]
    programs.requests.list.select(newest.value)
    assert "the date in the system prompt" in newest.detail
    assert programs.requests.receipt is not None
    assert set(shown.runtime.api_server.totals.by_program()["opencode"].misses) == {ReasonCode.DATE_IN_SYSTEM}
    await shown.until(lambda: [row.title for row in storage.list.usage.rows] == ["opencode (app)"])
    storage.refresh()
    await shown.until(lambda: storage.list.usage.rows[0].details.startswith("2 prompts saved"))
    for window in (storage, programs, shown.window.side_windows.open_settings()):
        window.close()
