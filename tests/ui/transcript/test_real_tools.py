"""Tool calls of real MCP servers in the real window: one allowed, and one that imitates the permission card."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QRect
from PySide6.QtWidgets import QWidget

from kvchat.chat.record.messages import MessageState, Role
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.settings import Settings
from kvchat.tools.mcp import connection
from kvchat.tools.toolbox import Toolbox
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from tests.bench.shared_prompt import TEMPLATE
from tests.bench.tools import forcing_calls
from tests.e2e.test_reference_servers import make_repository
from tests.tools.mcp.conftest import FAULTY_SERVER
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.transcript.test_tool_calls import asked, call, send
from tests.ui.waiting import until
from tests.ui.windows import begun

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "START_TIMEOUT_S", 300.0)


@pytest.mark.engine
async def test_a_call_of_a_real_engine_is_allowed_once(
    tmp_path: Path, look: Look, tiny_model: Callable[[str], Path], real_llama_server: EngineLocation
) -> None:
    template, repository = tmp_path / "template.jinja", str(make_repository(tmp_path / "repository"))
    template.write_text(TEMPLATE, "utf-8")
    settings = Settings(
        model_path=str(tiny_model("llama")),
        engine_path=str(real_llama_server.path),
        engine_arguments=f"--chat-template-file {template}",
        context_size=8192,
        max_tokens=48,
        new_chat_tools=("git/git_add",),
    )
    async with begun(tmp_path / "home", settings, look) as opened:
        servers, window = opened.runtime.mcp_servers, opened.window
        arguments = ["-m", "mcp_server_git", "--repository", repository]
        await servers.add("git", {"command": sys.executable, "args": arguments})
        await servers.approve(servers.source("git").server)
        with forcing_calls("git_add", json.dumps({"files": ["garden.txt"], "repo_path": repository}), rounds=1):
            opened.send("What is new?")
            card = window.transcript.tail.call_card
            await until(lambda: card.isVisible() and card.once_button.isEnabled(), seconds=600)
            assert repository in card.arguments.toPlainText()
            assert not (Path(repository) / ".git" / "index").exists()
            card.once_button.click()
            await until(lambda: len(window.transcript.messages) == 4 and window.transcript.messages[3].receipt, "", 600)
        result = window.transcript.messages[2]
        assert (result.role, result.state) == (Role.TOOL, MessageState.COMPLETE), result.content
        assert b"garden.txt" in (Path(repository) / ".git" / "index").read_bytes()
        assert card.isHidden()
        assert await opened.runtime.chat.turns.tool_calls.grants() == []


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
