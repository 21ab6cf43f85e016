"""Each conversation's model in the window: named, changed, and chosen anew where its file is gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from kvchat.chat.events import TurnFailed
from kvchat.rooms.choice import ModelMissing
from kvchat.ui.main_window import MainWindow
from tests.ui.fake_runtime import FakeRuntime
from tests.ui.waiting import until

GONE = "/models/Lost & Found-7B.gguf"


@pytest.fixture
def runtime(runtime: FakeRuntime) -> FakeRuntime:
    for title, model in (("One", "/models/Other-1B.gguf"), ("Two", GONE)):
        talk = runtime.chat.add(title)
        runtime.chat.talks[talk.id] = replace(talk, model=model)
    return runtime


async def test_the_header_names_the_open_conversation_s_model(runtime: FakeRuntime, window: MainWindow) -> None:
    assert window.header.model.toolTip() == "Lost & Found-7B"
    window.bridge.open("c1")
    assert window.header.model.toolTip() == "Other-1B"
    window.new_conversation()
    assert window.header.model.toolTip() == "SmolLM2-135M-Instruct"


async def test_choosing_a_model_is_for_the_open_conversation(runtime: FakeRuntime, window: MainWindow) -> None:
    window.bridge.open("c1")
    await window.models.use(Path("/models/Third-3B.gguf"))
    await until(lambda: window.header.model.toolTip() == "Third-3B")
    assert [call for call in runtime.chat.calls if call[0] == "use_model"] == [
        ("use_model", "c1", "/models/Third-3B.gguf")
    ]


async def test_a_missing_model_offers_others(runtime: FakeRuntime, window: MainWindow, qtbot: QtBot) -> None:
    window.bridge.send("Hello")
    await until(lambda: ("send", "c2", "Hello") in runtime.chat.calls)
    runtime.events.publish(TurnFailed("c2", ModelMissing(GONE)))
    runtime.chat.finish("c2", None)
    card = window.transcript.tail.failure
    await until(lambda: not card.isHidden())
    shown = [button.accessibleName() for button in (card.retry, card.use_current, card.locate, card.model)]
    assert [button.isHidden() for button in (card.retry, card.use_current, card.locate, card.model)] == [
        True,
        False,
        False,
        False,
    ], shown
    assert card.use_current.accessibleName() == "Use SmolLM2-135M-Instruct"
    card.use_current.click()
    await until(lambda: ("retry", "c2") in runtime.chat.calls)
    assert ("use_model", "c2", "/models/SmolLM2-135M-Instruct.gguf") in runtime.chat.calls
    assert card.isHidden()
