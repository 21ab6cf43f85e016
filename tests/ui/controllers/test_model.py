"""Each conversation's model in the window: shown, changed, and replaced if its file is missing."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.events import TurnFailed
from kvchat.chat.record.messages import Role
from kvchat.engine.api.errors import EngineFailed, EngineFailure, FailureKind
from kvchat.engine_host.choice import ModelMissing
from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import read_facts
from kvchat.library.gguf.parser import ModelFileMissing
from kvchat.library.model_files import Source
from kvchat.library.model_library import FoundModel
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.models.models_window import ModelsWindow
from tests.library.gguf_files import write_gguf
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child

GONE = "/models/Lost & Found-7B.gguf"


@pytest.fixture
def runtime(runtime: StagedRuntime) -> StagedRuntime:
    for title, model in (("One", "/models/Other-1B.gguf"), ("Two", GONE)):
        conversation = runtime.chat.add(title)
        runtime.chat.change(conversation.id, model=model)
    return runtime


async def test_choosing_a_model_is_for_the_open_conversation(
    runtime: StagedRuntime, window: MainWindow, tmp_path: Path
) -> None:
    window.new_conversation()
    for id, name in ((None, "SmolLM2-135M-Instruct"), ("c2", "Lost & Found-7B"), ("c1", "Other-1B")):
        window.chat.open(id)
        assert window.header.model_button.toolTip() == name
    path = write_gguf(tmp_path / "Third-3B.gguf")
    await window.models.use(path)
    await until(lambda: window.header.model_button.toolTip() == "Third-3B")
    assert [call for call in runtime.chat.calls if call[0] == "use_model"] == [("use_model", "c1", str(path))]


async def test_a_model_chosen_for_new_chats_leaves_the_open_chat_alone(
    runtime: StagedRuntime, window: MainWindow, tmp_path: Path
) -> None:
    chat = runtime.chat.add("Rivers")
    runtime.chat.write(chat.id, Role.USER, "Where?")
    runtime.chat.write(chat.id, Role.ASSISTANT, "Here.")
    runtime.chat.change(chat.id, model="/models/Other-1B.gguf")
    window.chat.open(chat.id)
    await until(lambda: len(window.transcript.messages) == 2 and window.header.model_button.toolTip() == "Other-1B")
    path = write_gguf(tmp_path / "Fifth-5B.gguf")
    await runtime.use_model(path)
    window.models.apply_default()
    await until(lambda: window.notices.visible_notices)
    assert window.notices.visible_notices[0].texts[0] == "New chats use Fifth-5B"
    assert window.header.model_button.toolTip() == "Other-1B"
    assert not [call for call in runtime.calls if call[0] == "load_model"]
    assert not [call for call in runtime.chat.calls if call[0] == "use_model"]
    window.new_conversation()
    assert window.header.model_button.toolTip() == "Fifth-5B"


async def test_a_missing_model_offers_others(runtime: StagedRuntime, window: MainWindow, tmp_path: Path) -> None:
    runtime.engine.gone = frozenset({GONE})
    here = write_gguf(tmp_path / "SmolLM2-135M-Instruct.gguf")
    runtime.settings = replace(runtime.settings, model_path=str(here))
    window.chat.send_controller.send("Hello")
    card = window.transcript.tail.failure_card
    await until(lambda: not card.isHidden())
    buttons = card.retry_button, card.use_current_button, card.locate_button, card.model_button
    assert [button.isHidden() for button in buttons] == [True, False, False, False]
    assert card.use_current_button.accessibleName() == "Use SmolLM2-135M-Instruct"
    await until(lambda: [message.role for message in window.transcript.messages] == [Role.USER])
    card.use_current_button.click()
    await until(lambda: ("retry", "c2") in runtime.chat.calls)
    assert ("use_model", "c2", runtime.settings.model_path) in runtime.chat.calls
    assert card.isHidden()


@pytest.mark.parametrize("switches", [False, True])
async def test_a_located_model_answers_only_in_the_chat_that_missed_it(
    runtime: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch, switches: bool
) -> None:
    async def locate(missing: str, path: Path) -> None:
        if switches:  # loading the model takes a while
            window.chat.open("c1")

    monkeypatch.setattr(runtime, "locate_model", locate)
    monkeypatch.setattr("kvchat.ui.controllers.model.open_gguf_dialog", lambda _, choose: choose(Path("found.gguf")))
    window.chat.open("c2")
    runtime.events.publish(TurnFailed("c2", ModelMissing(GONE)))
    window.transcript.tail.failure_card.locate_button.click()
    await until(lambda: not window.runner._tasks)
    assert [call for call in runtime.chat.calls if call[0] == "retry"] == ([] if switches else [("retry", "c2")])


async def test_another_model_is_one_click_away(runtime: StagedRuntime, window: MainWindow, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "R&D-7B.gguf")
    facts = read_facts(other)
    runtime.models.there = [
        FoundModel(other, "R&D-7B", Source.CHOSEN, 9, facts),
        FoundModel(Path("/models/broken.gguf"), "Broken", Source.CHOSEN, 9, None),
        FoundModel(Path("/models/SmolLM2-135M-Instruct.gguf"), "SmolLM2", Source.CHOSEN, 9, facts),
    ]
    chat = runtime.chat.add("Rivers")
    window.chat.open(chat.id)
    menu = window.header.model_menu
    menu.aboutToShow.emit()
    await until(lambda: len(menu.actions()) == 4)
    words = [action.text() for action in menu.actions()]
    assert words == ["SmolLM2\tin use", "R&&D-7B\tfits", "", "More models…"]
    assert [action.isChecked() for action in menu.actions()[:2]] == [True, False]
    menu.actions()[1].trigger()
    await until(lambda: ("load_model", other) in runtime.calls)
    await until(lambda: ("use_model", chat.id, str(other)) in runtime.chat.calls)
    await until(lambda: window.header.model_button.toolTip() == "R&D-7B")
    runtime.refuse = KvchatError("This is no model", "It is truncated.")
    menu.aboutToShow.emit()
    next(action for action in menu.actions() if action.text().startswith("SmolLM2")).trigger()
    await until(lambda: [notice.texts[0] for notice in window.notices.visible_notices] == ["This is no model"])
    menu.actions()[-1].trigger()
    models = child(window, ModelsWindow)
    assert models.isVisible()
    models.close()


async def test_another_model_is_offered_where_the_engine_finds_none(runtime: StagedRuntime, window: MainWindow) -> None:
    window.chat.open("c2")
    failure = EngineFailure(FailureKind.MODEL_MISSING, "The model file is missing", GONE, "Choose it again.")
    runtime.events.publish(TurnFailed("c2", EngineFailed(failure)))
    card = window.transcript.tail.failure_card
    await until(card.model_button.isVisible)
    assert card.retry_button.isVisible()


def test_the_host_tells_a_missing_file_from_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing):
        read_facts(tmp_path / "gone.gguf")
