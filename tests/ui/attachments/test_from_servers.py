"""Resources and prompts of MCP servers, attached and inserted through the window."""

import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from PySide6.QtWidgets import QFileDialog

from kvchat.tools.mcp import connection
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.attachments.from_servers import ServerAttachmentsDialog
from tests.tools.mcp.conftest import FAULTY_SERVER
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child


async def add(runtime: StagedRuntime, name: str, entry: dict[str, Any]) -> None:
    manager = runtime.mcp_servers
    await manager.add(name, entry)
    await manager.approve(manager.source(name).server)
    await manager.start(name)


def faulty(mode: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(FAULTY_SERVER), mode]}


@pytest.fixture
async def dialog(runtime: StagedRuntime, window: MainWindow) -> AsyncIterator[ServerAttachmentsDialog]:
    await add(runtime, "docs", faulty("attachments"))
    await until(lambda: runtime.mcp_servers.attachment_sources)
    yield await opened(window)
    await runtime.mcp_servers.close()


async def opened(window: MainWindow) -> ServerAttachmentsDialog:
    """Open the dialog and wait for its list."""
    dialog = window.attachments.choose_from_servers()
    await until(lambda: len(dialog.list.rows) == 9)
    return dialog


def choose(dialog: ServerAttachmentsDialog, title: str) -> None:
    dialog.list.select(next(row for row in dialog.list.rows if row.title == title).value)


async def test_the_menu_appears_only_if_a_server_offers_something(runtime: StagedRuntime, window: MainWindow) -> None:
    attach, menu = window.composer.attach_button, window.attachments.menu
    await add(runtime, "none", faulty(""))
    attach.click()
    assert not menu.isVisible()
    child(window, QFileDialog).close()
    await add(runtime, "docs", faulty("attachments"))
    await until(lambda: runtime.mcp_servers.attachment_sources)
    await runtime.mcp_servers.stop("docs")
    attach.click()
    assert menu.isVisible(), "also while the server is not running"
    menu.close()
    await runtime.mcp_servers.close()


async def test_resources_become_attachments(window: MainWindow, dialog: ServerAttachmentsDialog) -> None:
    dialog.filter.setText("GUIDE")
    assert [row.title for row in dialog.list.rows] == ["guide.md"]
    assert dialog.list.rows[0].detail == "docs · It"
    dialog.use_button.click()
    await until(lambda: window.composer.chips.attachments)
    await until(lambda: window.findChild(ServerAttachmentsDialog) is None)
    [guide] = window.composer.chips.attachments
    assert (guide.name, guide.text) == ("docs: guide.md", "# About docs://guide.md")
    dialog = await opened(window)
    choose(dialog, "Note")
    dialog.use_button.click()
    assert dialog.refusal.text() == "“id” is required."
    dialog.fields["id"].setText("a/b")
    dialog.use_button.click()
    await until(lambda: len(window.composer.chips.attachments) == 2)
    assert window.composer.chips.attachments[1].text == "# About docs://note/a%2Fb"
    for title in ("logo.png", "program"):
        dialog = await opened(window)
        choose(dialog, title)
        dialog.use_button.click()
        await until(lambda: window.findChild(ServerAttachmentsDialog) is None)
    await until(lambda: window.composer.chips.attachments[0].data)
    await until(lambda: window.notices.visible_notices)
    assert window.notices.visible_notices[0].texts[0] == "“docs: program” cannot be attached"


async def test_prompts_go_into_the_draft(
    runtime: StagedRuntime, window: MainWindow, dialog: ServerAttachmentsDialog
) -> None:
    window.composer.set_draft("Please: ")
    choose(dialog, "greet")
    assert dialog.description.text() == "Greets <b>somebody</b>"
    assert [field.accessibleName() for field in dialog.fields.values()] == ["person · required", "style"]
    dialog.use_button.click()
    assert dialog.refusal.text() == "“person” is required."
    dialog.fields["person"].setText("Ann")
    dialog.fields["person"].returnPressed.emit()
    await until(lambda: window.findChild(ServerAttachmentsDialog) is None)
    assert window.composer.draft == "Please: Hi {'person': 'Ann'}"
    dialog = await opened(window)
    choose(dialog, "picture")
    dialog.use_button.click()
    await until(lambda: window.composer.chips.attachments)
    assert window.composer.chips.attachments[0].data
    assert not runtime.chat.answering_chats


async def test_a_slow_or_crashed_server_is_reported(
    window: MainWindow, dialog: ServerAttachmentsDialog, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(dialog, "crash")
    dialog.use_button.click()
    await until(lambda: dialog.notices.visible_notices)
    assert dialog.notices.visible_notices[0].texts[0] == "The request to the MCP server “docs” failed"
    assert dialog.isVisible()
    monkeypatch.setattr(connection, "CALL_TIMEOUT_S", 0.2)
    choose(dialog, "never")
    dialog.use_button.click()
    await until(lambda: len(dialog.notices.visible_notices) == 2)
    assert "did not respond in time" in dialog.notices.visible_notices[1].texts[1]
    monkeypatch.setattr(connection, "CALL_TIMEOUT_S", 300.0)
    dialog.use_button.click()
    assert dialog.status.text() == "Waiting for docs…"
    dialog.close()
    await until(lambda: not window.runner._tasks)
    assert not window.composer.chips.attachments
