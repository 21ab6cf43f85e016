"""Turns with tool calls that meet files, faulty sources, and Stop at bad moments."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.events import Notice
from kvchat.chat.options import PermissionMode
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import NO_RESULT, Message, MessageState, Role, new_message, prompt_messages
from kvchat.chat.turn.tool_calls import STOPPED_RESULT, Answer, Decision
from kvchat.tools.tool import Tool, ToolCall, thaw
from kvchat.tools.toolbox import Toolbox
from tests.chat.sky import Sky, answer, chat_with_tools, contents, plan, results
from tests.chat.stage import Stage

PARIS, ROME = (ToolCall("x", "weather", json.dumps({"city": city})) for city in ("Paris", "Rome"))


def a_message(role: Role, text: str, *calls: ToolCall) -> Message:
    return replace(new_message("chat", role, text), calls=calls)


async def store_call(stage: Stage, chat: str) -> None:
    """Store a question and a reply whose calls have equal ids and no results, as from a file."""
    run = stage.service.turn_context.run
    question = await run(Database.append_question, chat, "Where?")
    reply = a_message(Role.ASSISTANT, "", PARIS, ROME)
    await run(Database.append_message, replace(reply, conversation_id=chat, parent_id=question.id))


def test_results_belong_to_their_calls_and_none_is_lost() -> None:
    question, reply = a_message(Role.USER, "Where?"), a_message(Role.ASSISTANT, "", PARIS, ROME)
    results = a_message(Role.TOOL, "12", PARIS), a_message(Role.TOOL, "20", ROME)
    prompt = prompt_messages([question, reply, *results])
    assert [(m.content, m.calls) for m in prompt[2:]] == [("12", (PARIS,)), ("20", (ROME,))]
    lost = a_message(Role.TOOL, "a document")
    prompt = prompt_messages([question, reply, lost, results[0]])
    assert [(m.role, m.content) for m in prompt[2:]] == [("tool", "12"), ("tool", NO_RESULT), ("user", "a document")]


async def test_calls_of_a_file_ask_one_by_one(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage, PermissionMode.ALL)
    await stage.answered(chat, "Hello?")
    await store_call(stage, chat)
    again = stage.service.retry(chat)
    await answer(stage, chat, Answer(Decision.ALWAYS))
    await answer(stage, chat, Answer(Decision.ONCE))
    assert await stage.finish(again) is not None
    assert await results(stage, chat) == ["12 degrees in Paris", "12 degrees in Rome"]


async def test_a_result_stored_during_stop_keeps_its_place(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", "Paris"), ("weather", "Rome")])
    context = stage.service.turn_context
    run = context.run

    async def stop_during_append(function, *args, **kwargs):  # type: ignore[no-untyped-def]
        stored = asyncio.ensure_future(run(function, *args, **kwargs))
        if function is Database.append_message and args[0].content.startswith("12 degrees"):
            stage.service.stop(chat)
        return await asyncio.shield(stored)

    context.run = stop_during_append  # type: ignore[method-assign]
    await stage.finish(stage.service.send(chat, "Where?"))
    assert await results(stage, chat) == ["12 degrees in Paris", STOPPED_RESULT]
    assert not any(message.siblings for message in await stage.messages(chat))


async def test_stop_does_not_wait_for_a_slow_server(stage: Stage, sky: Sky) -> None:
    chat, asked = await chat_with_tools(stage), asyncio.Event()

    async def never() -> Sequence[Tool]:
        asked.set()
        await asyncio.Event().wait()
        return ()

    sky.tools = never  # type: ignore[method-assign]
    reply = stage.service.send(chat, "Where?")
    await asked.wait()
    stage.service.stop(chat)
    assert await stage.finish(reply) is None
    assert await contents(stage, chat) == [("user", "Where?")]


async def test_a_source_that_cannot_list_its_tools_is_reported(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", "Paris")])
    listed, faulty = sky.tools, False

    async def tools() -> Sequence[Tool]:
        if faulty:
            raise RuntimeError("no clouds")
        return await listed()

    sky.tools = tools  # type: ignore[method-assign]
    await stage.ask(chat)
    faulty = True
    plan(stage, [], [], [("weather", "Paris")])
    assert await stage.ask(chat) is not None, stage.errors()
    assert "no clouds" in (await stage.messages(chat))[-2].content
    assert await stage.ask(await chat_with_tools(stage)) is not None
    assert "no clouds" in stage.of(Notice)[-1].detail


@pytest.mark.parametrize("while_", ["the call is written", "the user is asked", "the tool runs", "the result is read"])
async def test_quitting_in_a_turn(stage: Stage, sky: Sky, while_: str) -> None:
    chat, sky.hold = await chat_with_tools(stage), asyncio.Event()
    plan(stage, [("send" if while_ == "the user is asked" else "weather", "Paris")])
    if while_ == "the call is written":
        stage.fake.set(FAKE_HOLD_DURING="stream")
    stage.service.send(chat, "Where?")
    await stage.until(lambda: stage.requests("/v1/chat/completions"))
    if while_ != "the call is written":
        await stage.until(lambda: stage.service.turns.tool_calls.pending)
    if while_ == "the result is read":
        stage.fake.set(FAKE_HOLD_DURING="stream")
        sky.hold.set()
        await stage.until(lambda: len(stage.requests("/v1/chat/completions")) == 2)
    await stage.restart()
    stage.service.turn_context.toolbox, sky.hold = Toolbox(lambda: [sky]), None
    stage.fake.set(FAKE_HOLD_DURING=None)
    reply = stage.service.retry(chat)
    if while_ in ("the user is asked", "the tool runs"):
        await answer(stage, chat, Answer(Decision.ONCE))
    assert await stage.finish(reply) is not None, stage.errors()
    assert [role for role, _ in await contents(stage, chat)] == ["user", "assistant", "tool", "assistant"]
    assert (await contents(stage, chat))[2][1] == "12 degrees in Paris"


async def test_backup_during_a_call(stage: Stage, sky: Sky, tmp_path: Path) -> None:
    chat, sky.hold = await chat_with_tools(stage), asyncio.Event()
    plan(stage, [("weather", "Paris")])
    reply = stage.service.send(chat, "Where?")
    await stage.until(lambda: sky.calls)
    facts = await stage.runtime.transfer.back_up(tmp_path / "backup.zip", lambda *_: None)
    assert facts.conversations == 1
    assert not reply.done()
    sky.hold.set()
    assert await stage.finish(reply) is not None, stage.errors()
    assert (await contents(stage, chat))[2] == ("tool", "12 degrees in Paris")


async def test_a_middle_with_open_calls_is_summarized(stage: Stage) -> None:
    chat = await stage.chat()
    await store_call(stage, chat)
    for text in ("word " * 100, "word " * 120):
        await stage.answered(chat, text)
    await stage.service.context.summarise(chat)
    sent = stage.requests("/v1/chat/completions")[-1]["messages"]
    assert NO_RESULT in [message["content"] for message in sent]  # type: ignore[attr-defined]


async def test_words_of_a_deleted_call_leave_the_title(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", "Timbuktu")])
    await stage.ask(chat, "Where?")
    run = stage.service.turn_context.run
    await run(Database.rename, chat, "Degrees of Timbuktu", by_user=False)
    reply = (await stage.messages(chat))[2]
    await stage.service.edit_reply(reply, "I do not know.")
    await stage.service.delete_message(reply)
    (conversation,) = await stage.service.conversations()
    assert conversation.title == "Where?"


async def test_waiting_for_another_chat_is_not_part_of_a_later_step(stage: Stage, sky: Sky) -> None:
    chat, other = await chat_with_tools(stage), await stage.chat()
    sky.hold = asyncio.Event()
    plan(stage, [("weather", "Paris")])
    reply = stage.service.send(chat, "Where?")
    await stage.until(lambda: sky.calls)
    await stage.writing(other)
    sky.hold.set()
    await stage.until(lambda: not stage.service.turns.tool_calls.pending)
    await stage.until(lambda: stage.service.slots.blocking_chat(chat) == other)
    stage.fake.set(FAKE_HOLD_DURING=None)
    final = await stage.finish(reply)
    assert final is not None
    assert final.receipt is not None
    assert final.receipt.queue_wait_ms > 0


def test_a_damaged_list_of_tools_is_empty() -> None:
    tool = {"source": "sky", "name": "weather", "description": "", "schema": {}, "alias": "weather"}
    assert thaw(json.dumps([tool])).tools
    assert not thaw(json.dumps([tool | {"name": 7}])).tools


async def test_many_calls_of_one_reply_are_executed_in_order(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", f"city {number} 晚😀") for number in range(100)])
    assert await stage.ask(chat, "Where?", keep=False) is None
    assert "no longer fits" in stage.errors()[0]
    assert [arguments["city"] for _, arguments in sky.calls] == [f"city {number} 晚😀" for number in range(100)]
    assert MessageState.FAILED not in {message.state for message in await stage.messages(chat)}
