"""Chat settings and presets: input, validation in place, applying, and no silent data loss."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.options import ChatOptions, PermissionMode, Preset
from kvchat.chat.record.messages import Role
from kvchat.engine.api.wire import Sampling
from kvchat.library.gguf.facts import read_facts
from kvchat.library.gguf.template_options import TemplateOption, known_options
from kvchat.library.model_files import Source
from kvchat.library.model_library import FoundModel
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import ConfirmDialog
from kvchat.ui.models.model_choice import distinct_names
from kvchat.ui.settings.presets import ChatSettingsWindow, PresetDialog, PresetsPage
from tests.library.gguf_files import write_gguf
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until

QWEN = str(Path("/models/qwen.gguf"))
POET = Preset("Poet", "Speak in rhymes.", None, ChatOptions(Sampling(temperature=1.2)))


@pytest.fixture
def asked() -> list[str | None]:
    """The models whose template options were requested."""
    return []


@pytest.fixture
def runtime(tmp_path: Path, asked: list[str | None], monkeypatch: pytest.MonkeyPatch) -> StagedRuntime:
    async def template_options(model: str | None) -> tuple[TemplateOption, ...]:
        asked.append(model)
        return known_options({"enable_thinking": (), "reasoning_effort": ()})

    runtime = StagedRuntime(tmp_path)
    monkeypatch.setattr(runtime.model, "template_options", template_options)
    runtime.chat.add("Rivers")
    return runtime


@pytest.fixture
async def panel(runtime: StagedRuntime, look: Look, window: MainWindow) -> ChatSettingsWindow:
    return ChatSettingsWindow(runtime, look, window.runner, window)


async def opened(panel: ChatSettingsWindow, conversation_id: str | None = "c1") -> None:
    panel.show_chat(conversation_id, "Rivers", None)
    await until(panel.save_button.isEnabled)


async def test_what_is_entered_is_the_conversation_s_own(runtime: StagedRuntime, panel: ChatSettingsWindow) -> None:
    await opened(panel)
    form = panel.form
    assert form.number_fields["temperature"].placeholderText() == "0.8"
    form.system.setPlainText("Be brief.")
    form.number_fields["temperature"].setText("0,3")
    form.number_fields["top_k"].setText("20")
    form.stop_words_field.setText("END, FIN")
    form._template["enable_thinking"].setCurrentIndex(2)
    panel.save_button.click()
    await until(lambda: not panel.isVisible())
    requested = ChatOptions(Sampling(temperature=0.3, top_k=20, stop=("END", "FIN")), (("enable_thinking", False),))
    assert (await runtime.chat.turn_context.answer_settings("c1")).options == requested
    assert runtime.chat.system("c1") == "Be brief."
    await opened(panel)
    assert form.read().options == requested
    form.reset_button.click()
    assert form.read().options == ChatOptions(template=requested.template)


async def test_saving_keeps_tools_and_permission_chosen_meanwhile(
    runtime: StagedRuntime, panel: ChatSettingsWindow
) -> None:
    allowed = ChatOptions(permission=PermissionMode.ALL)
    await runtime.chat.options.change("c1", allowed)
    await opened(panel)
    chosen = replace(allowed, tools=("files/read",), permission=PermissionMode.ASK)
    await runtime.chat.options.change("c1", chosen)  # by the tools button
    panel.form.number_fields["top_k"].setText("20")
    panel.save_button.click()
    await until(lambda: not panel.isVisible())
    expected = replace(chosen, sampling=Sampling(top_k=20))
    assert (await runtime.chat.turn_context.answer_settings("c1")).options == expected


async def test_nonsense_is_refused_in_place_until_a_preset_fills_the_fields(
    runtime: StagedRuntime, panel: ChatSettingsWindow
) -> None:
    await runtime.chat.options.store_preset(POET)
    await opened(panel)
    for field, text, words in (("temperature", "9", "between 0 and 2"), ("top_k", "1.5", "not a valid number")):
        panel.form.number_fields[field].setText(text)
        panel.save_button.click()
        assert words in panel.form.refusal.text()
        panel.form.number_fields[field].clear()
    panel.form.format.setCurrentIndex(1)
    panel.form.format_text.setPlainText("{oops")
    panel.save_button.click()
    assert "not valid JSON" in panel.form.refusal.text()
    assert panel.isVisible()
    panel.preset.setCurrentIndex(1)
    panel.preset.activated.emit(1)
    assert panel.form.read() == Preset("", POET.system, None, POET.options)
    assert panel.form.number_fields["temperature"].text() == "1.2"
    assert not panel.form.refusal.isVisible()
    assert (await runtime.chat.turn_context.answer_settings("c1")).options == ChatOptions()  # not before Save


async def test_another_system_prompt_asks_where_something_was_said(
    runtime: StagedRuntime, panel: ChatSettingsWindow
) -> None:
    runtime.chat.write("c1", Role.USER, "Hello")
    await opened(panel)
    assert not any(box.isEnabled() for box in panel.form._template.values()), "the chat has begun"
    panel.form.system.setPlainText("Be brief.")
    panel.save_button.click()
    (dialog,) = panel.findChildren(ConfirmDialog)
    assert runtime.chat.system("c1") == ""
    dialog.confirm_button.click()
    await until(lambda: runtime.chat.system("c1") == "Be brief.")


async def test_a_chat_begins_with_its_settings(runtime: StagedRuntime, window: MainWindow) -> None:
    window.new_conversation()
    window.header.requested.emit("chat-settings")
    (panel,) = window.findChildren(ChatSettingsWindow)
    await until(panel.save_button.isEnabled)
    panel.form.system.setPlainText("Be brief.")
    panel.save_button.click()
    await until(lambda: window.chat.current not in (None, "c1"))
    assert runtime.chat.system(window.chat.current or "") == "Be brief."


@pytest.fixture
def models(runtime: StagedRuntime, tmp_path: Path) -> StagedRuntime:
    """Add two usable models and an unusable one."""
    facts = read_facts(write_gguf(tmp_path / "any.gguf"))
    runtime.models.there = [
        FoundModel(Path(QWEN), "Qwen", Source.CHOSEN, 9, facts),
        FoundModel(Path("/models/half.gguf"), "Half", Source.CHOSEN, 9, None),
        FoundModel(Path("/models/SmolLM2-135M-Instruct.gguf"), "SmolLM2", Source.CHOSEN, 9, facts),
    ]
    return runtime


async def test_a_chat_is_given_another_model(
    models: StagedRuntime, panel: ChatSettingsWindow, asked: list[str | None]
) -> None:
    await opened(panel)
    await until(lambda: panel.model.count() == 2)
    assert [panel.model.itemText(i) for i in range(2)] == ["SmolLM2-135M-Instruct", "Qwen"]
    panel.save_button.click()
    await until(lambda: not panel.isVisible())
    assert not [call for call in models.chat.calls if call[0] == "use_model"], "nothing was chosen"
    await opened(panel)
    await until(lambda: panel.model.count() == 2)
    panel.form.number_fields["top_k"].setText("7")
    panel.form._template["enable_thinking"].setCurrentIndex(2)
    panel.model.setCurrentIndex(1)
    panel.model.activated.emit(1)
    await until(lambda: asked[-1:] == [QWEN])
    assert panel.form.read().options == ChatOptions(Sampling(top_k=7), (("enable_thinking", False),))
    panel.save_button.click()
    await until(lambda: not panel.isVisible())
    assert models.chat.by_id["c1"].model == QWEN


def test_models_that_are_called_alike_can_be_told_apart() -> None:
    places = ("a/1.gguf", "b/1.gguf", "b/2.gguf")
    assert distinct_names([("Qwen", Path(place)) for place in places]) == ["Qwen · a", "Qwen · 1.gguf", "Qwen · 2.gguf"]
    assert distinct_names([("Qwen", Path("a/1.gguf")), ("Gemma", Path("a/2.gguf"))]) == ["Qwen", "Gemma"]


async def test_what_stands_there_becomes_a_preset(runtime: StagedRuntime, panel: ChatSettingsWindow) -> None:
    await opened(panel)
    panel.form.number_fields["top_k"].setText("x")
    panel.save_as_preset_button.click()
    assert "not a valid number" in panel.form.refusal.text()
    assert not panel.findChildren(PresetDialog)
    panel.form.number_fields["top_k"].setText("7")
    panel.form.system.setPlainText("Speak in rhymes.")
    panel.model.choose(QWEN)
    panel.save_as_preset_button.click()
    (dialog,) = panel.findChildren(PresetDialog)
    await until(dialog.save_button.isEnabled)
    assert dialog.model_box.currentText() == "Always use qwen"
    dialog.name.setText("Poet")
    dialog.save_button.click()
    await until(lambda: panel.preset.count() == 2)
    (kept,) = await runtime.chat.options.presets()
    assert kept.name == panel.preset.itemText(1) == "Poet"
    assert (kept.system, kept.model) == ("Speak in rhymes.", QWEN)
    assert kept.options == ChatOptions(Sampling(top_k=7))


async def test_presets_are_made_changed_and_deleted(runtime: StagedRuntime, window: MainWindow) -> None:
    settings = window.side_windows.open_settings(PresetsPage.name)
    page, presets = settings.page(PresetsPage), runtime.chat.options
    dialog = page.open_dialog(Preset("Poet"))
    assert dialog is not None
    await until(dialog.save_button.isEnabled)
    dialog.form.system.setPlainText("Speak in rhymes.")
    dialog.save_button.click()
    await until(lambda: page.list.count() == 1)
    page.default_button.click()
    await until(lambda: page.list.item(0).text() == "Poet (default)")
    page.duplicate_button.click()
    await until(lambda: page.list.count() == 2)
    assert [(preset.name, preset.system) for preset in await presets.presets()] == [
        ("Poet", "Speak in rhymes."),
        ("Poet copy", "Speak in rhymes."),
    ]
    page.list.setCurrentRow(1)
    page.delete_button.click()
    (sure,) = page.findChildren(ConfirmDialog)
    sure.confirm_button.click()
    await until(lambda: page.list.count() == 1)
    settings.close()
