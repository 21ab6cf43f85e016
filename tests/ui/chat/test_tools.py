"""The tools button: the choice for a new chat, the frozen tools of others, their change and permission."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from PySide6.QtCore import Qt

from kvchat.chat.events import CallsChanged
from kvchat.chat.options import ChatOptions, PermissionMode, Preset
from kvchat.chat.turn.tool_calls import PendingCall
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.wire import Sampling
from kvchat.settings import Settings
from kvchat.tools.tool import Tool, ToolCall, ToolFailed, ToolResult
from kvchat.tools.toolbox import Toolbox
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.settings.presets import PresetsPage
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until

CHECKED, UNCHECKED, PARTLY = Qt.CheckState.Checked, Qt.CheckState.Unchecked, Qt.CheckState.PartiallyChecked


class Files:
    id = "files"

    def __init__(self) -> None:
        self.read = Tool("files", "read", "Read a file.", {"type": "object"}, read_only=True)
        self.write = Tool("files", "write", "Write a file. <b>bold</b>", {"type": "object"})

    async def tools(self) -> Sequence[Tool]:
        return [self.read, self.write]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult("done")

    async def close(self) -> None: ...


class Broken(Files):
    id = "broken"

    async def tools(self) -> Sequence[Tool]:
        raise ToolFailed("The MCP server “broken” could not be started")


@pytest.fixture
def files(runtime: StagedRuntime) -> Files:
    files = Files()
    runtime.chat.turn_context.toolbox = Toolbox(lambda: [files, Broken()])
    return files


async def opened(window: MainWindow) -> None:
    """Open the popup and wait for its list."""
    await window.tools.load()
    window.tools.open()
    await until(lambda: window.tools.popup.tree.topLevelItemCount() and "token" in window.tools.popup.total.text())


async def announced(window: MainWindow, text: str) -> None:
    """Open the popup and wait for the change that it announces."""
    await opened(window)
    await until(lambda: not window.tools.popup.change_text.isHidden())
    assert window.tools.popup.change_text.text().startswith(text)


async def options_of(runtime: StagedRuntime, chat: str) -> ChatOptions:
    return (await runtime.chat.turn_context.answer_settings(chat)).options


async def tool_names(runtime: StagedRuntime, chat: str) -> list[str]:
    return [tool.name for tool in (await runtime.chat.options.tools(chat)).tools]


async def replied(runtime: StagedRuntime, window: MainWindow) -> str:
    """Have a question answered in a new chat. Return the chat's id."""
    window.composer.set_draft("Hello")
    window.composer.send_button.click()
    runtime.chat.say("Hi.")
    runtime.chat.finish()
    await until(lambda: len(window.transcript.messages) >= 2 and not runtime.chat.answering_chats)
    await window.tools.load()
    assert window.chat.current is not None
    return window.chat.current


async def test_tools_are_chosen_frozen_and_remembered(runtime: StagedRuntime, files: Files, window: MainWindow) -> None:
    await opened(window)
    tree, popup = window.tools.popup.tree, window.tools.popup
    source, broken = tree.source_items
    assert broken.child(0).text(0) == "The MCP server “broken” could not be started"
    assert "&lt;b&gt;" in source.child(1).toolTip(0), "shown as is"
    assert source.child(0).text(0) == "read · read-only"
    source.child(0).setCheckState(0, CHECKED)
    assert source.checkState(0) is PARTLY
    await until(lambda: runtime.settings.new_chat_tools == ("files/read",))
    await until(lambda: popup.total.text()[0] not in "0a")
    before = popup.total.text()
    source.setCheckState(0, CHECKED)
    await until(lambda: runtime.settings.new_chat_tools == ("files/*",))
    await until(lambda: popup.total.text() not in (before, "0 tokens at the beginning of each prompt"))
    assert popup.total.text().startswith(source.text(1)), "counted by the engine"
    popup.hide()
    _settings, expected = await runtime.chat.turn_context.settings_and_branch(None)
    chat = await replied(runtime, window)
    assert (await runtime.chat.options.tools(chat)).text == expected[0].tools, "what is processed in advance"
    assert await tool_names(runtime, chat) == ["read", "write"]
    assert window.composer.tools_button.text() == "2"
    window.new_conversation()
    await opened(window)
    assert tree.source_items[0].checkState(0) is CHECKED
    popup.hide()


async def test_permission_changes_at_any_time(runtime: StagedRuntime, files: Files, window: MainWindow) -> None:
    popup, choose = window.tools.popup, window.tools.popup.permission
    runtime.settings = Settings(**{**vars(runtime.settings), "new_chat_tools": ("files/*",)})
    popup.permission_chosen.emit(PermissionMode.ASK)
    chat = await replied(runtime, window)
    options = await options_of(runtime, chat)
    assert options.permission is PermissionMode.ASK
    await opened(window)
    assert choose.currentData() is PermissionMode.ASK
    choose.setCurrentIndex(choose.findData(PermissionMode.ALL))
    choose.activated.emit(choose.currentIndex())
    popup.hide()
    while (await options_of(runtime, chat)).permission is not PermissionMode.ALL:
        pass
    window.new_conversation()
    await window.tools.load()
    assert window.tools._permission is PermissionMode.READ_ONLY, "not remembered for other chats"


async def test_a_changed_list_is_announced_with_its_price_and_taken_over_in_a_branch(
    runtime: StagedRuntime, files: Files, window: MainWindow
) -> None:
    runtime.chat.tool_choice.selected = ("files/*",)
    await replied(runtime, window)
    await opened(window)
    popup = window.tools.popup
    assert popup.change_text.isHidden()
    popup.hide()
    files.write = Tool("files", "write", "Write a file, or append to it.", {"type": "object"})
    await announced(window, "The tools of files have changed. Updating the tools reprocesses ")
    popup.change_button.click()
    chat = window.chat.current or ""

    async def descriptions() -> list[str]:
        return [tool.description for tool in (await runtime.chat.options.tools(chat)).tools]

    while "Write a file, or append to it." not in await descriptions():
        pass
    await window.tools.load()
    assert window.tools._change is None
    assert [message.content for message in await runtime.chat.messages(chat)][-2:] == ["Hello", "Hi."]


async def test_tools_are_chosen_and_switched_off_later_in_new_branches(
    runtime: StagedRuntime, files: Files, window: MainWindow
) -> None:
    popup, tree = window.tools.popup, window.tools.popup.tree
    chat = await replied(runtime, window)

    async def choose(tool: int, state: Qt.CheckState, expected: list[str]) -> None:
        await opened(window)
        tree.source_items[0].child(tool).setCheckState(0, state)
        await until(lambda: not popup.change_text.isHidden())
        assert popup.change_text.text().startswith("Updating the tools reprocesses ")
        popup.change_button.click()
        while await tool_names(runtime, chat) != expected:
            pass
        await window.tools.load()
        assert window.tools._change is None
        assert [message.content for message in await runtime.chat.messages(chat)][-2:] == ["Hello", "Hi."]

    assert await tool_names(runtime, chat) == []
    await opened(window)
    assert tree.source_items[0].checkState(0) is UNCHECKED
    tree.source_items[0].setCheckState(0, CHECKED)
    await until(lambda: not popup.change_text.isHidden())
    popup.hide()
    await until(lambda: window.tools._change is None)
    assert await tool_names(runtime, chat) == [], "only considered"
    await choose(1, CHECKED, ["write"])
    assert runtime.settings.new_chat_tools == (), "new chats keep their choice"
    first = (await runtime.chat.messages(chat))[-1]
    await choose(0, CHECKED, ["read", "write"])
    await choose(1, UNCHECKED, ["read"])
    await choose(0, UNCHECKED, [])
    await runtime.chat.switch(chat, first.id)
    assert await tool_names(runtime, chat) == ["write"], "the old branch keeps its tools"


async def test_a_selection_never_uses_the_state_of_another_chat(
    runtime: StagedRuntime, files: Files, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await replied(runtime, window)
    options = await options_of(runtime, first)
    await runtime.chat.options.change(first, replace(options, permission=PermissionMode.ALL))
    await window.tools.load()
    await opened(window)
    tree = window.tools.popup.tree
    tree.source_items[0].setCheckState(0, CHECKED)
    await until(lambda: window.tools._change is not None)
    change = window.tools._change
    second = (await runtime.chat.create(await runtime.chat.new_chat())).id

    loaded = asyncio.Event()

    async def wait(_model: str | None = None) -> bool:
        await loaded.wait()
        return True

    monkeypatch.setattr(runtime.chat.tool_choice, "supports_tools", wait)
    window.chat.open(second)
    await until(lambda: window.chat.current == second)
    window.tools._change = change
    window.tools._select(("files/*",))
    window.tools.popup.change_button.click()
    loaded.set()
    await window.tools.load()
    await until(lambda: not window.runner._tasks)
    after = await options_of(runtime, second)
    assert after == options, "neither permission nor tools of the first chat"
    assert await tool_names(runtime, second) == []


async def test_a_selection_keeps_the_chat_settings_changed_since_the_list_was_loaded(
    runtime: StagedRuntime, files: Files, window: MainWindow
) -> None:
    chat = (await runtime.chat.create(await runtime.chat.new_chat())).id
    window.chat.open(chat)
    await opened(window)
    options = await options_of(runtime, chat)
    await runtime.chat.options.change(chat, replace(options, sampling=Sampling(temperature=0.25)))
    window.tools.popup.tree.source_items[0].setCheckState(0, CHECKED)
    await until(lambda: runtime.settings.new_chat_tools == ("files/*",))
    after = await options_of(runtime, chat)
    assert (after.tools, after.sampling.temperature) == (("files/*",), 0.25)
    window.tools.popup.hide()


async def test_a_preset_applied_later_announces_its_tools(
    runtime: StagedRuntime, files: Files, window: MainWindow
) -> None:
    chat = await replied(runtime, window)
    options = await options_of(runtime, chat)
    await runtime.chat.options.change(chat, replace(options, tools=("files/*",)))
    await announced(window, "The tools of files have changed. Updating the tools reprocesses ")
    window.tools.popup.hide()


async def test_a_model_without_tools_says_so(runtime: StagedRuntime, files: Files, window: MainWindow) -> None:
    runtime.chat.tool_choice.selected = ("files/*",)
    runtime.engine.has_tools = False
    runtime.set_engine(EngineState.READY)
    await until(lambda: not window.composer.tools_button.isEnabled())
    assert window.composer.tools_button.toolTip().startswith("This model cannot use tools")
    window.tools.open()
    assert not window.tools.popup.isVisible()
    assert await tool_names(runtime, await replied(runtime, window)) == []


async def test_a_preset_has_tools_and_chat_settings_keep_them(
    runtime: StagedRuntime, files: Files, window: MainWindow
) -> None:
    page = window.side_windows.open_settings().page(PresetsPage)
    dialog = page.open_dialog(Preset("Files", is_default=True))
    assert dialog is not None
    await until(dialog.save_button.isEnabled)
    dialog.choose_tools()
    await until(lambda: dialog.popup.tree.topLevelItemCount() == 2)
    dialog.popup.tree.source_items[0].child(1).setCheckState(0, CHECKED)
    await until(lambda: dialog.form.tools.tools)
    dialog.popup.hide()
    dialog.save_button.click()
    await until(lambda: not dialog.isVisible())
    (preset,) = await runtime.chat.options.presets()
    assert preset.options.tools == ("files/write",)
    page.panel.close()
    chat = await replied(runtime, window)
    assert await tool_names(runtime, chat) == ["write"]


async def test_a_question_in_another_chat_is_announced_once(runtime: StagedRuntime, window: MainWindow) -> None:
    chat = runtime.chat.add("Trip to Jeju")
    await until(lambda: chat.id in window.chat.conversations.titles)
    call = ToolCall("1", "write", "{}")
    pending = PendingCall(chat.id, "m", call, Files().write, True)
    runtime.chat.turns.tool_calls.pending["1"] = pending
    for _again in range(2):
        runtime.events.publish(CallsChanged(chat.id))
    (notice,) = window.notices.visible_notices
    assert notice.texts[0] == "“Trip to Jeju” is waiting for your permission"
    assert notice.on_click is not None
    notice.on_click()
    assert window.chat.current == chat.id
    runtime.chat.turns.tool_calls.pending.clear()
