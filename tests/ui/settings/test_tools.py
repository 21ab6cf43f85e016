"""The tools page of the settings: folders, MCP servers and their approval, and what is allowed without asking."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPlainTextEdit, QPushButton

from kvchat.chat.turn.tool_calls import Grant
from kvchat.tools.mcp.foreign import ForeignServers
from kvchat.tools.mcp.server import ServerState
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.dialogs.confirm import ConfirmDialog
from kvchat.ui.settings import tools
from kvchat.ui.settings.mcp_bundles import InstallBundleDialog
from kvchat.ui.settings.mcp_servers import ServerWindow, split_command
from kvchat.ui.settings.tools import ToolsPage
from tests.tools.mcp.test_bundles import MANIFEST, write_bundle
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import button, child, question

FAULTY_SERVER = Path(__file__).parents[2] / "tools" / "mcp" / "faulty_server.py"


@pytest.fixture
async def page(runtime: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ToolsPage]:
    monkeypatch.setattr(tools, "find_foreign_servers", lambda: [])
    page = window.side_windows.open_tool_settings().page(ToolsPage)
    yield page
    await runtime.mcp_servers.close()


async def test_a_server_is_added_shown_approved_and_its_changed_tools_reviewed(
    runtime: StagedRuntime, page: ToolsPage
) -> None:
    manager = runtime.mcp_servers
    form = page.edit("")
    form.name.setText("faulty")
    form.launch.setText(f'{sys.executable} "{FAULTY_SERVER}')
    form.save_button.click()
    assert "quotation mark" in form.refusal.text()
    form.launch.setText(f'{sys.executable} "{FAULTY_SERVER}"')
    form.values.setPlainText("no equals sign")
    form.save_button.click()
    assert "NAME=VALUE" in form.refusal.text()
    form.values.setPlainText("MODE=test")
    form.save_button.click()
    await until(lambda: page.findChild(ConfirmDialog))
    first = question(page)
    launch = child(first, QPlainTextEdit).toPlainText()
    assert launch == manager.source("faulty").config.launch
    assert "MODE=test" in launch
    assert first.keep_button.isDefault(), "Enter approves nothing"
    first.keep_button.click()
    row = page.rows["faulty"]
    assert manager.source("faulty").server.state is ServerState.NOT_APPROVED
    row.approve_button.click()
    question(page).confirm_button.click()
    await until(lambda: row.server.state is ServerState.RUNNING and row.server.tools)
    assert not row.review_button.isVisibleTo(row)

    await manager.source("faulty").call("change", {})
    await manager.start("faulty")
    assert row.review_button.isVisibleTo(row)
    row.review_button.click()
    changes = child(question(page), QPlainTextEdit).toPlainText()
    assert "Old description: Does echo\nNew description: Deletes everything" in changes
    question(page).confirm_button.click()
    await until(lambda: not row.server.pending_tools)

    row.details_button.click()
    details = child(page.panel, ServerWindow)
    tree = details.tree
    await until(lambda: tree.source_items[0].text(1))
    echo = next(item for n in range(20) if (item := tree.source_items[0].child(n)) and item.text(0) == "echo")
    tree.setCurrentItem(echo)
    assert details.description.toPlainText() == "Deletes everything"
    echo.setCheckState(0, Qt.CheckState.Unchecked)
    await until(lambda: [item.tool.name for item in row.server.tools if not item.enabled] == ["echo"])
    details.close()


async def test_a_server_is_switched_off_edited_and_removed(runtime: StagedRuntime, page: ToolsPage) -> None:
    manager = runtime.mcp_servers
    await manager.add("docs", {"url": "https://example.org/mcp", "headers": {"A": "b"}, "custom": 1})
    row = page.rows["docs"]
    assert row.launch.full_text == "https://example.org/mcp A: b"
    row.switch.click()
    await until(lambda: row.server.state is ServerState.OFF)
    form = page.edit("docs")
    await until(lambda: form.launch.text())
    assert (form.launch.text(), form.values.toPlainText()) == ("https://example.org/mcp", "A: b".replace(": ", "="))
    form.launch.setText("npx -y 'a server'")
    form.values.clear()
    form.save_button.click()
    await until(lambda: row.server.config.command == "npx")
    entry = {"disabled": True, "custom": 1, "command": "npx", "args": ["-y", "a server"]}
    assert await manager.entry("docs") == entry
    row.remove_button.click()
    question(page.panel).confirm_button.click()
    await until(lambda: not page.rows)
    assert page.empty_label.isVisibleTo(page)


async def test_servers_are_pasted_and_imported_but_not_started(
    runtime: StagedRuntime, page: ToolsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialog = page.paste()
    dialog.text.setPlainText("{}")
    dialog.add_button.click()
    assert dialog.refusal.isVisibleTo(dialog)
    dialog.text.setPlainText(json.dumps({"mcpServers": {"<b>files</b>": {"command": "npx", "args": ["x"]}}}))
    dialog.add_button.click()
    await until(lambda: page.rows)
    assert page.rows["<b>files</b>"].server.state is ServerState.NOT_APPROVED
    other = ForeignServers("Cursor", Path("/mcp.json"), {"search": {"command": "uvx"}})
    monkeypatch.setattr(tools, "find_foreign_servers", lambda: [other])
    page._offer_import(other)
    button(page, "Import from Cursor (1 server)").click()
    await until(lambda: "search" in page.rows)
    assert page.rows["search"].server.state is ServerState.NOT_APPROVED
    await until(lambda: not page._import_buttons)


async def test_a_bundle_is_installed_with_its_options(
    runtime: StagedRuntime, window: MainWindow, page: ToolsPage, tmp_path: Path
) -> None:
    manager, path = runtime.mcp_servers, write_bundle(tmp_path / "demo.mcpb", MANIFEST | {"tools": [{"name": "echo"}]})
    window.attachments.load_files([path])
    await until(lambda: page.panel.findChild(InstallBundleDialog))
    dialog = child(page.panel, InstallBundleDialog)
    folders, level, key, fast = dialog.fields
    assert dialog.origin.text().replace("\u200b", "") == "demo.mcpb · Version 1.0 · by Somebody"
    assert dialog.about.text().replace("\u200b", "") == "Does things. Tools: echo."
    dialog.install_button.click()
    assert dialog.refusal.text() == "“Key” is required."
    folders.field.setPlainText("")
    folders.add_path("/a b")
    level.field.setText("much")
    key.field.setText("hush")
    fast.field.click()
    dialog.install_button.click()
    assert dialog.refusal.text() == "“Level” is not a number."
    level.field.setText("4")
    shown = dialog.launch.toPlainText()
    assert "'/a b' --level=4" in shown
    assert "KEY=${keyring:key}" in shown
    assert not manager.servers
    assert not runtime.paths.mcp_bundles.exists(), "nothing is unpacked before"
    dialog.install_button.click()
    await until(lambda: page.rows and page.rows["demo"].server.state is ServerState.RUNNING)
    assert manager.source("demo").config.launch == shown
    assert (await manager.source("demo").call("env", {})).text.count("hush") == 1
    page.install(path)
    await until(lambda: any(dialog.isVisible() for dialog in page.panel.findChildren(InstallBundleDialog)))
    dialog = next(dialog for dialog in page.panel.findChildren(InstallBundleDialog) if dialog.isVisible())
    assert any("replaces the installed version" in text.text() for text in dialog.findChildren(QLabel))
    assert dialog.fields[2].field.placeholderText() == "Leave empty to keep the current value"
    assert "KEY=${keyring:key}" in dialog.launch.toPlainText()
    dialog.close()
    (tmp_path / "bad.mcpb").write_text("no zip")
    page.install(tmp_path / "bad.mcpb")
    await until(lambda: page.panel.notices.visible_notices)
    assert "bad.mcpb: it is damaged or not a zip file" in page.panel.notices.visible_notices[0].texts[1]


async def test_a_broken_file_is_explained(runtime: StagedRuntime, page: ToolsPage) -> None:
    runtime.mcp_servers.file.write_text("{")
    await runtime.mcp_servers.load()
    assert "Correct the file" in page.problem_label.text()
    assert not page.empty_label.isVisibleTo(page)


async def test_grants_are_listed_and_revoked(runtime: StagedRuntime, page: ToolsPage) -> None:
    def shown() -> list[str]:
        return [choice.text() for choice in page.grants_entry.findChildren(QPushButton) if choice.isVisible()]

    calls = runtime.chat.turns.tool_calls
    statement = "INSERT INTO tool_grants VALUES (?, ?, ?, ?, ?)"
    for name in ("read_file", "write_file"):
        await runtime.chat.turn_context.run(
            lambda database, name=name: database.write(statement, (f"digest of {name}", "files", name, "", 0.0))
        )
    await page.load_grants()
    await until(lambda: shown() == ["Revoke", "Revoke", "Revoke all"])
    button(page, "Revoke the permission for write_file · files (in all chats)").click()
    await until(lambda: shown() == ["Revoke"])
    assert await calls.grants() == [Grant("files", "read_file", "digest of read_file", "", 0.0)]
    button(page, "Revoke the permission for read_file · files (in all chats)").click()
    await until(lambda: "No tool" in page.grants_entry.help.text())
    assert await calls.grants() == []


async def test_folders_and_the_address_of_the_search(runtime: StagedRuntime, page: ToolsPage) -> None:
    page.add_folder("/home/me/notes")
    await until(lambda: runtime.settings.tool_folders == ("/home/me/notes",))
    button(page, "Remove /home/me/notes").click()
    await until(lambda: not runtime.settings.tool_folders)
    entry = page.settings["web_search_url"]
    for text, saved in (("ftp://search", ""), ("https://search", "https://search")):
        entry.field.setText(text)
        entry.field.setModified(True)
        entry.field.editingFinished.emit()
        await until(lambda saved=saved: bool(entry.refusal.text()) != bool(saved))
    await until(lambda: runtime.settings.web_search_url == "https://search")


def test_command_lines() -> None:
    assert split_command("npx -y 'a b' \"c d\"") == ["npx", "-y", "a b", "c d"]
    assert split_command("run # not a comment") == ["run", "#", "not", "a", "comment"]
