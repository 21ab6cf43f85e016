"""Options of a chat: sampling, template options, output format, system prompt, presets and model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.events import TurnFailed
from kvchat.chat.options import (
    ChatOptions,
    InvalidOptions,
    Preset,
    options_from_json,
    options_to_json,
    validate_options,
)
from kvchat.chat.record.messages import Role
from kvchat.engine.api.wire import Sampling
from kvchat.engine_host.choice import ModelMissing
from kvchat.library.gguf.template_options import known_options, template_variables
from kvchat.session.events import WaitingForEngine
from kvchat.session.proof import Source
from kvchat.settings import load_settings
from tests.chat.stage import QUESTION, Stage

CHOSEN = ChatOptions(
    Sampling(temperature=0.3, top_k=20, min_p=0.1, stop=("END",), json_schema='{"type": "object"}'),
    template=(("enable_thinking", False), ("reasoning_effort", "low")),
)


def test_options_round_trip() -> None:
    assert options_from_json(options_to_json(CHOSEN)) == CHOSEN
    assert options_to_json(ChatOptions()) == ""


@pytest.mark.parametrize(
    "text",
    ["[]", "nonsense", '{"sampling": {"temperature": 99}}', '{"sampling": {"top_k": "x"}}'],
)
def test_invalid_stored_options_are_ignored(text: str) -> None:
    assert options_from_json(text) == ChatOptions()


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (Sampling(temperature=2.1), "Temperature must be between 0 and 2"),
        (Sampling(stop=("",)), "none of them empty"),
        (Sampling(json_schema="{"), "not valid JSON"),
        (Sampling(json_schema='{"a":' * 300 + "1" + "}" * 300), "too deeply nested"),
        (Sampling(json_schema="{}", grammar='root ::= "a"'), "cannot be used together"),
    ],
)
def test_invalid_options_are_refused(sampling: Sampling, words: str) -> None:
    with pytest.raises(InvalidOptions) as refused:
        validate_options(ChatOptions(sampling))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{%- if enable_thinking is defined and enable_thinking is false %}", {"enable_thinking": [True, False]}),
        ('{{ "Reasoning: " + reasoning_effort }}', {"reasoning_effort": ["low", "medium", "high"]}),
        (
            "{% elif reasoning_effort not in ['high', 'low', 'no_think'] %}{{ raise_exception('medium is none') }}",
            {"reasoning_effort": ["no_think", "low", "high"]},
        ),
        ("{% set thinking = thinking or enable_thinking %}", {"enable_thinking": [True, False]}),
        ("{# enable_thinking #}{{ message.thinking }} thinking {{ '<thinking>' }}{{ message['thinking'] }}", {}),
    ],
)
def test_template_variables(template: str, found: dict[str, list[bool | str]]) -> None:
    options = known_options(template_variables(template))
    assert {option.name: [value for value, _ in option.choices] for option in options} == found
    assert all(words for option in options for _, words in option.choices)


async def test_engine_gets_the_chats_options(stage: Stage) -> None:
    chat = await stage.chat()
    await stage.service.options.change(chat, CHOSEN)
    await stage.finish(stage.service.send(chat, QUESTION))
    (body,) = stage.requests("/v1/chat")
    sampling = {"temperature": 0.3, "top_k": 20, "min_p": 0.1, "stop": ["END"], "json_schema": {"type": "object"}}
    assert body.items() >= sampling.items()
    assert body["repeat_penalty"] == 1.1  # the model's default
    template = {"enable_thinking": False, "reasoning_effort": "low"}
    rendered = [body for body in stage.requests("/apply-template") if body["messages"][0]["content"] == QUESTION]  # type: ignore[index]
    assert rendered
    assert [body["chat_template_kwargs"] for body in (body, *rendered)] == [template] * (1 + len(rendered))


async def test_changed_system_prompt_makes_a_branch(stage: Stage) -> None:
    chat, options = await stage.chat("Be brief."), stage.service.options
    assert not await options.change_system_prompt(chat, "Be long.")
    assert await options.system_prompt(chat) == "Be long."
    await stage.answered(chat)
    assert await options.change_system_prompt(chat, "Speak in rhymes.")
    branch = await stage.messages(chat)
    assert [message.role for message in branch] == [Role.SYSTEM, Role.USER, Role.ASSISTANT]
    assert branch[0].content == "Speak in rhymes."
    await stage.answered(chat, "And then?")
    prompts = [body["messages"][0]["content"] for body in stage.requests("/v1/chat")]  # type: ignore[index]
    assert prompts == ["Be long.", "Speak in rhymes."]
    rows = stage.database.rows("SELECT content FROM messages WHERE role = 'system'")
    assert {row[0] for row in rows} == {"Be long.", "Speak in rhymes."}, "the old branch is kept"
    assert await options.change_system_prompt(chat, "")
    assert await options.system_prompt(chat) == ""


async def test_new_chats_use_the_default_preset(stage: Stage) -> None:
    options = stage.service.options
    poet = await options.store_preset(Preset("Poet", "Speak in rhymes.", "/m/poet.gguf", CHOSEN))
    assert await options.system_prompt(await stage.chat()) == ""
    await options.store_preset(replace(poet, is_default=True))
    chat = await stage.chat()
    chosen = await stage.service.turn_context.answer_settings(chat)
    assert await options.system_prompt(chat) == "Speak in rhymes."
    assert (chosen.model, chosen.options) == ("/m/poet.gguf", CHOSEN)
    assert await options.system_prompt(await stage.chat("My own.")) == "My own."
    other = await options.store_preset(Preset("Other", is_default=True))
    assert [preset.name for preset in await options.presets() if preset.is_default] == ["Other"]
    await options.delete_preset(other)
    assert await options.default_preset() is None


@pytest.fixture
def other_model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


def models_launched(stage: Stage) -> list[str]:
    return [launch["arguments"][launch["arguments"].index("--model") + 1] for launch in stage.fake.launches()]


async def model_of(stage: Stage, chat: str) -> str | None:
    return (await stage.service.conversation(chat)).model


async def chat_with_model(stage: Stage, model: Path | str) -> str:
    chat = await stage.chat()
    await stage.service.use_model(chat, str(model))
    return chat


async def test_chat_remembers_its_model_and_is_restored_with_it(stage: Stage, other_model: Path) -> None:
    first, starter = await stage.chat(), str(stage.settings.model_path)
    assert await model_of(stage, first) is None
    await stage.answered(first)
    await stage.runtime.use_model(other_model)
    second = await stage.answered_chat()
    assert (await model_of(stage, first), await model_of(stage, second)) == (starter, str(other_model))
    assert (await stage.answered(first, "And then?")).source is Source.WARM
    assert models_launched(stage) == [starter, str(other_model), starter]
    assert stage.of(WaitingForEngine)[-1].conversation_id == first
    assert stage.runtime.model.path == starter, "the window shows the model in use"
    assert await model_of(stage, await stage.answered_chat()) == str(other_model), "new chats get the chosen one"
    await stage.runtime.close()
    assert load_settings(stage.runtime.paths.settings_file).model_path == str(other_model)


async def test_selecting_a_chat_with_another_model_loads_nothing(stage: Stage, other_model: Path) -> None:
    first = await stage.answered_chat()
    await stage.answered(await chat_with_model(stage, other_model))
    requests = len(stage.fake.requests())
    await stage.show(first)
    assert len(stage.fake.requests()) == requests
    assert len(stage.fake.launches()) == 2
    assert stage.runtime.settings.model_path == str(stage.settings.model_path)


async def test_missing_model_can_be_located(stage: Stage, other_model: Path) -> None:
    missing = "/gone/Lost-7B.gguf"
    await stage.answered_chat()
    chat = await chat_with_model(stage, missing)
    assert await stage.ask(chat) is None
    error = stage.of(TurnFailed)[-1].error
    assert isinstance(error, ModelMissing)
    assert (error.path, error.title) == (missing, "This chat’s model, Lost-7B, is missing")
    assert len(stage.fake.launches()) == 1
    await stage.runtime.locate_model(missing, other_model)
    assert await stage.service.retry(chat) is not None
    assert models_launched(stage)[-1] == str(other_model)


async def test_chats_model_does_not_change_the_setting(stage: Stage, other_model: Path) -> None:
    runtime, chosen = stage.runtime, stage.runtime.settings.model_path
    await chat_with_model(stage, other_model)
    await runtime.start()
    await runtime.apply_settings(replace(runtime.settings, theme="dark"))
    stored = load_settings(runtime.paths.settings_file)
    assert (stored.model_path, stored.theme) == (chosen, "dark")
    assert runtime.model.path == str(other_model)
    await runtime.use_model(other_model)
    assert load_settings(runtime.paths.settings_file).model_path == str(other_model)
