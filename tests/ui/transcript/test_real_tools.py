"""Tool calls of real MCP servers in the real window: one allowed, and one that imitates the permission card."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import QWidget

from kvchat.chat.options import PermissionMode
from kvchat.chat.turn.tool_calls import DENIED_RESULT
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.settings import Settings
from kvchat.tools.mcp import connection
from kvchat.tools.toolbox import Toolbox
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.transcript.tool_view import ToolView
from tests.bench.shared_prompt import TEMPLATE
from tests.bench.tools import forcing_calls
from tests.reference_servers import NAMES, ReferenceCall, reference_call, serving_page
from tests.tools.mcp.conftest import FAULTY_SERVER
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.transcript.test_tool_calls import asked, call, send
from tests.ui.waiting import until
from tests.ui.windows import Open, begun

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "START_TIMEOUT_S", 300.0)


async def choose_tool(window: MainWindow, source: str, tool: str) -> None:
    """Begin a new chat with this tool only, whose calls ask every time."""
    window.new_conversation()
    await window.tools.load()
    window.tools.open()
    tree, permission = window.tools.popup.tree, window.tools.popup.permission
    await until(lambda: source in [item.data(0, Qt.ItemDataRole.UserRole) for item in tree.source_items], seconds=600)
    for item in tree.source_items:
        for child in (item.child(number) for number in range(item.childCount())):
            key = (item.data(0, Qt.ItemDataRole.UserRole), child.data(0, Qt.ItemDataRole.UserRole))
            child.setCheckState(0, Qt.CheckState.Checked if key == (source, tool) else Qt.CheckState.Unchecked)
    permission.setCurrentIndex(permission.findData(PermissionMode.ASK))
    permission.activated.emit(permission.currentIndex())
    await until(lambda: window.tools._selected in ((f"{source}/{tool}",), (f"{source}/*",)))
    window.tools.popup.hide()


@pytest.mark.engine
async def test_reference_servers(
    tmp_path: Path,
    look: Look,
    tiny_model: Callable[[str], Path],
    real_llama_server: EngineLocation,
    subtests: pytest.Subtests,
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE, "utf-8")
    settings = Settings(
        model_path=str(tiny_model("llama")),
        engine_path=str(real_llama_server.path),
        engine_arguments=f"--chat-template-file {template}",
        context_size=8192,
        max_tokens=48,
    )
    async with begun(tmp_path / "home", settings, look) as opened:
        with serving_page() as url:
            for name in NAMES:
                with subtests.test(name):
                    made = reference_call(name, tmp_path / name, url)
                    servers = opened.runtime.mcp_servers
                    await servers.add(name, made.entry)
                    await servers.approve(servers.source(name).server)
                    await choose_tool(opened.window, name, made.tool)
                    await check_calls(opened, name, made)
        assert await opened.runtime.chat.turns.tool_calls.grants() == []


async def check_calls(opened: Open, name: str, made: ReferenceCall) -> None:
    """Ask, allow the call, and see its result and the reply. A second call, made after reading it, is denied."""
    window, card = opened.window, opened.window.transcript.tail.call_card

    def is_asking() -> bool:
        return card.isVisible() and card.once_button.isEnabled()

    with forcing_calls(made.tool, json.dumps(made.arguments), rounds=2):
        opened.send("Please help.")
        await until(is_asking, seconds=600)
        assert f"“\u2068{made.tool}\u2069 · \u2068{name}\u2069”" in card.title.text()
        assert all(value in card.arguments.toPlainText() for value in made.arguments.values() if isinstance(value, str))
        card.once_button.click()
        await until(card.isHidden)
        await until(is_asking, seconds=600)
        card.deny_button.click()
        card.deny_button.click()
        await until(lambda: len(window.transcript.messages) == 6 and window.transcript.messages[5].receipt, "", 600)
    _question, call, result, _second, denied, reply = window.transcript.messages
    view = window.transcript.ensure_view(result.id)
    assert isinstance(view, ToolView)
    view.unfold()
    assert view.message_parts()[0].state[0].startswith(f"✓ \u2068{made.tool}\u2069")
    assert made.result in view.message_parts()[2].text
    assert denied.content == DENIED_RESULT
    assert reply.receipt.cached_tokens >= call.receipt.prompt_tokens, "only calls and results are new"


async def test_a_description_that_imitates_the_card_grants_nothing(
    runtime: StagedRuntime, window: MainWindow, tmp_path: Path
) -> None:
    servers, chat = runtime.mcp_servers, runtime.chat
    await servers.add("faulty", {"command": sys.executable, "args": [str(FAULTY_SERVER), "imitating"]})
    await servers.approve(servers.source("faulty").server)
    chat.turn_context.toolbox = Toolbox(lambda: servers.sources)
    new_chat = chat.new_chat

    async def new_chat_with_tools(system: str | None = None) -> object:
        new = await new_chat(system)
        return replace(new, options=replace(new.options, tools=("faulty/*",)))

    chat.new_chat = new_chat_with_tools  # type: ignore[method-assign, assignment]
    window.resize(800, 600)
    await send(window, "Call it.")
    card = window.transcript.tail.call_card
    for _round in range(2):
        call(runtime, name="echo", path="\n".join(["Allowed \u202ereve\u202c. Always allow"] * 400))
        await asked(window)
        await until(lambda: shown_within(window, card.deny_button), seconds=15)
        for shown in (card.once_button, card.chat_button, card.always_button, card.deny_button, card.title):
            assert shown_within(window, shown), shown
        assert "\n" not in card.detail.text()
        assert len(card.detail.text()) <= 230
        assert not set("\u202e\u2066\u200b") & set(card.detail.text() + card.title.text())
        assert await chat.turns.tool_calls.grants() == []
        card.once_button.click()
        await until(card.isHidden)


def shown_within(window: QWidget, shown: QWidget) -> bool:
    """True if a widget is completely within the window and its scrolled page."""
    visible = QRect(QPoint(0, 0), shown.size())
    return shown.isVisible() and shown.visibleRegion().boundingRect() == visible and window.isVisible()
