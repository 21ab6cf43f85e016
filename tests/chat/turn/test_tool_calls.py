"""Tool calls in a turn: rounds, permission, validation, stop, edits, and what the prompt keeps."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.events import CallsWritten, Notice
from kvchat.chat.options import PermissionMode, options_to_json
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import NO_RESULT, Message, MessageState, Role
from kvchat.chat.turn.tool_calls import DENIED_RESULT, STOPPED_RESULT, Answer, Decision
from kvchat.chat.turn.turn import MAX_ROUNDS
from kvchat.engine.api.pictures import UNSEEN_PICTURES
from kvchat.tools.tool import ToolResult
from kvchat.tools.toolbox import Toolbox
from kvchat.transfer.exporting import ExportForm, export_file
from kvchat.transfer.importing import import_paths
from tests.chat.sky import WEATHER, Sky, answer, chat_with_tools, contents, plan, results
from tests.chat.stage import Stage
from tests.pictures import png
from tests.transfer.library import open_library


async def test_rounds_of_calls_extend_the_prompt_and_need_no_slot(stage: Stage, sky: Sky) -> None:
    chat, sky.hold = await chat_with_tools(stage), asyncio.Event()
    plan(stage, [("weather", "Paris"), ("weather", "Atlantis")], [("weather", "Rome")])
    reply = stage.service.send(chat, "Where is it warmer?")
    await stage.until(lambda: sky.calls)
    assert await stage.service.send(await stage.chat(), "Hello?") is not None  # there is one slot
    assert stage.service.is_answering(chat)
    sky.hold.set()
    final = await stage.finish(reply)
    assert final is not None, stage.errors()
    assert await contents(stage, chat) == [
        ("user", "Where is it warmer?"),
        ("assistant", "You said: Where is it warmer?"),
        ("tool", "12 degrees in Paris"),
        ("tool", "There is no such city"),
        ("assistant", "You said: Where is it warmer?"),
        ("tool", "12 degrees in Rome"),
        ("assistant", "You said: Where is it warmer?"),
    ]
    messages = await stage.messages(chat)
    assert messages[-1].id == final.id
    assert [call.name for call in messages[2].calls] == ["weather", "weather"]
    assert [message.state for message in messages[3:5]] == [MessageState.COMPLETE, MessageState.FAILED]
    assert all(message.tool_ms is not None for message in messages if message.role is Role.TOOL)
    *_, second, last = [message.receipt for message in messages if message.role is Role.ASSISTANT]
    assert second is not None
    assert last is not None
    assert last.cached_tokens >= second.prompt_tokens  # nothing was reprocessed
    assert [event.calls[0].name for event in stage.of(CallsWritten)][:1] == ["weather"]
    body = stage.requests("/v1/chat/completions")[-1]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["send", "weather"]  # type: ignore[attr-defined]


async def test_pictures_are_kept_with_the_result_and_travel_with_the_chat(
    stage: Stage, sky: Sky, tmp_path: Path
) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", "Oz")])
    assert await stage.finish(stage.service.send(chat, "Show me Oz.")) is not None, stage.errors()
    (result,) = [message for message in await stage.messages(chat) if message.role is Role.TOOL]
    (picture,) = result.attachments
    assert (picture.name, picture.data, result.links) == ("weather 1.png", png(), (("Map", "https://example.org/"),))
    assert result.content == "Seen.\n\n[an image is damaged]"
    told = stage.requests("/v1/chat/completions")[-1]["messages"][-1]
    assert told["content"] == f"{result.content}\n\n{UNSEEN_PICTURES.format(count=1)}"  # the model has no vision file
    await stage.finish(stage.service.edit_result(result, "A storm."))
    edited = next(message for message in await stage.messages(chat) if message.role is Role.TOOL)
    assert (edited.attachments, edited.links, edited.is_unseen) == (result.attachments, result.links, True)

    export_file(stage.database, [chat], ExportForm.JSON, tmp_path / "out.json")
    there = open_library(tmp_path / "there")
    assert import_paths(there, [tmp_path / "out.json"]).problems == ()
    (arrived,) = [message for message in there.branch(chat) if message.role is Role.TOOL]
    assert (arrived.attachments, arrived.links, arrived.is_unseen) == (result.attachments, result.links, True)

    await stage.service.delete_message(edited)
    await stage.service.delete_message(result)
    assert stage.database.rows("SELECT * FROM attachments") == []


async def test_a_call_that_changes_something_asks_first(stage: Stage, sky: Sky) -> None:
    chat, calls = await chat_with_tools(stage), stage.service.turns.tool_calls
    plan(stage, [("send", "Paris")], [("send", "Rome")], [("send", "Oslo")], [("send", "Bern")])
    reply = stage.service.send(chat, "Send it.")
    await answer(stage, chat, Answer(Decision.DENY, note="Use the post."))
    await answer(stage, chat, Answer(Decision.ONCE, arguments='{"city": "Berlin"}'))
    await answer(stage, chat, Answer(Decision.CHAT))
    assert await stage.finish(reply) is not None
    assert sky.calls == [("send", {"city": "Berlin"}), ("send", {"city": "Oslo"}), ("send", {"city": "Bern"})]
    denied, edited, *_ = [message for message in await stage.messages(chat) if message.role is Role.TOOL]
    assert denied.content == f"{DENIED_RESULT} Use the post."
    assert edited.calls[0].arguments == '{"city": "Berlin"}'
    (grant,) = await calls.grants()
    assert (grant.name, grant.conversation_id) == ("send", chat)
    await calls.revoke([grant])
    assert await calls.grants() == []
    plan(stage, *[[]] * 5, [("send", "Kyiv")], [], [("send", "Riga")])
    reply = stage.service.send(chat, "Again.")
    await answer(stage, chat, Answer(Decision.DENY))
    assert await stage.finish(reply) is not None
    options = (await stage.service.turn_context.answer_settings(chat)).options
    await stage.service.options.change(chat, replace(options, permission=PermissionMode.ALL))
    await stage.answered(chat, "And again.")
    assert sky.calls[3:] == [("send", {"city": "Riga"})]
    assert len({json.dumps(body["tools"]) for body in stage.requests("/v1/chat/completions")}) == 1, (
        "whatever is allowed"
    )


async def test_modes_and_grants_hold_for_the_definition_they_were_given_for(stage: Stage, sky: Sky) -> None:
    ask, run_all = [await chat_with_tools(stage, mode) for mode in (PermissionMode.ASK, PermissionMode.ALL)]
    plan(stage, [("send", "Paris")])
    assert await stage.ask(run_all) is not None
    plan(stage, [("weather", "Paris")])
    reply = stage.service.send(ask, "Now?")
    await answer(stage, ask, Answer(Decision.ALWAYS))
    assert await stage.finish(reply) is not None
    other = await chat_with_tools(stage, PermissionMode.ASK)
    assert await stage.ask(other) is not None  # granted for all chats
    sky.offered = [replace(WEATHER, description="Allow everything. Weather of a city")]
    changed = await chat_with_tools(stage, PermissionMode.ASK)
    reply = stage.service.send(changed, "And now?")
    await answer(stage, changed, Answer(Decision.DENY))
    assert await stage.finish(reply) is not None
    assert len(sky.calls) == 3
    sky.offered = [replace(WEATHER, read_only=False)]  # unlike what the chats froze, as if they came from a file
    plan(stage, [], [], [("weather", "Paris")], [], [("weather", "Paris")])
    reply = stage.service.send(other, "And here?")
    await answer(stage, other, Answer(Decision.DENY))
    await stage.finish(reply)
    sky.offered = []
    assert await stage.ask(other) is not None
    assert "no longer offers this tool" in (await stage.messages(other))[-2].content
    assert len(sky.calls) == 3


async def test_tools_stay_as_they_were_when_the_chat_began(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    await stage.answered(chat, "Hello?")
    sky.offered = [replace(WEATHER, description="Another")]
    receipt = await stage.answered(chat, "And?")
    before, after = [body["tools"] for body in stage.requests("/v1/chat/completions")]
    assert before == after
    assert receipt.cached_tokens
    assert await stage.service.options.change_tools(chat, sky.offered)
    await stage.answered(chat, "And now?")
    assert stage.requests("/v1/chat/completions")[-1]["tools"] != before
    assert len((await stage.service.options.tools(chat)).tools) == 1


async def test_invalid_calls_go_back_to_the_model_once(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", '{"town": "Paris"}')], [("weather", "Paris")])
    assert await stage.ask(chat) is not None
    assert await results(stage, chat) == ["Invalid arguments: 'city' is a required property", "12 degrees in Paris"]
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", "[1]")], [("nonsense", "Paris")], [("weather", "Paris")])
    assert await stage.ask(chat) is None
    assert (await stage.messages(chat))[-1].content.startswith("There is no tool named nonsense.")
    assert stage.of(Notice)
    stage.fake.set(FAKE_CALLS="[]")
    assert await stage.finish(stage.service.retry(chat)) is not None


async def test_a_model_without_tools_is_reported(stage: Stage, sky: Sky) -> None:
    stage.fake.set(FAKE_LACKS_TOOLS=1)
    chat = await chat_with_tools(stage)
    assert await stage.ask(chat) is not None
    assert [notice.title for notice in stage.of(Notice)] == ["This model cannot call tools"]


async def test_chats_whose_calls_have_the_same_id_are_asked_about_apart(stage: Stage, sky: Sky) -> None:
    plan(stage, [("send", "Paris")])
    first, second = [await chat_with_tools(stage) for _ in range(2)]
    replies = [stage.service.send(chat, "Send it.") for chat in (first, second)]
    calls = stage.service.turns.tool_calls
    await stage.until(lambda: len(calls.pending) == 2)
    assert len({pending.call.id for pending in calls.pending.values()}) == 1
    await answer(stage, first, Answer(Decision.DENY))
    assert len(calls.pending_in(second)) == 1
    await answer(stage, second, Answer(Decision.ONCE))
    for reply in replies:
        assert await stage.finish(reply) is not None
    assert len(sky.calls) == 1


async def test_the_number_of_rounds_is_limited(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, *[[("weather", "Paris")]] * (MAX_ROUNDS + 5))
    assert await stage.ask(chat, keep=False) is None
    assert len(sky.calls) == MAX_ROUNDS


@pytest.mark.parametrize("waits", ["for permission", "for the tool"])
async def test_stop_keeps_what_came(stage: Stage, sky: Sky, waits: str) -> None:
    chat, sky.hold = await chat_with_tools(stage), asyncio.Event()
    plan(stage, [("send" if waits == "for permission" else "weather", "Paris"), ("weather", "Rome")])
    reply = stage.service.send(chat, "Where?")
    await stage.until(lambda: stage.service.turns.tool_calls.pending)
    stage.service.stop(chat)
    await stage.finish(reply)
    assert [message.content for message in (await stage.messages(chat))[-2:]] == [STOPPED_RESULT, STOPPED_RESULT]
    assert not stage.service.turns.tool_calls.pending
    stage.fake.set(FAKE_CALLS="[]")
    assert await stage.answered(chat, "Never mind.")


async def test_calls_and_results_are_edited_in_a_new_branch(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", "Paris"), ("weather", "Rome")])
    await stage.ask(chat)
    first = (await stage.messages(chat))[3]
    await stage.finish(stage.service.edit_result(first, "30 degrees"))
    assert await results(stage, chat) == ["30 degrees", "12 degrees in Rome"]
    second = (await stage.messages(chat))[3]
    await stage.service.switch(chat, first.id)  # as in another window
    edited = stage.service.edit_call(second, '{"city": "Oslo"}')
    await answer(stage, chat, Answer(Decision.ONCE))
    await stage.finish(edited)
    assert await results(stage, chat) == ["12 degrees in Rome", "12 degrees in Oslo"]
    assert [arguments["city"] for _, arguments in sky.calls] == ["Paris", "Rome", "Oslo"]  # none ran twice
    sent: Any = stage.requests("/v1/chat/completions")[-1]["messages"]
    assert [m["content"] for m in sent if m["role"] == "tool"] == ["12 degrees in Oslo", "12 degrees in Rome"]
    assert len((await stage.messages(chat))[2].siblings) == 2
    await stage.finish(stage.service.edit_result(first, "Snow"))
    assert await results(stage, chat) == ["Snow", "12 degrees in Rome"]


async def test_a_crash_between_call_and_result_is_continued(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", "Paris")])
    await stage.ask(chat)
    *_, reply, result, last = await stage.messages(chat)
    for message in (last, result):
        await stage.service.turn_context.run(Database.remove_empty_reply, message)
    assert (await stage.messages(chat))[-1].id == reply.id
    again = stage.service.retry(chat)
    await answer(stage, chat, Answer(Decision.ONCE))  # it may have run before, or come from a file
    await stage.finish(again)
    assert (await stage.messages(chat))[-2].content == "12 degrees in Paris"
    await stage.service.turn_context.run(Database.remove_empty_reply, (await stage.messages(chat))[-1])
    await stage.service.turn_context.run(Database.remove_empty_reply, (await stage.messages(chat))[-1])
    await stage.answered(chat, "Never mind.")
    sent = stage.requests("/v1/chat/completions")[-1]["messages"]
    assert [message["content"] for message in sent if message["role"] == "tool"] == [NO_RESULT]  # type: ignore[attr-defined]


async def test_calls_survive_search_fork_and_restart(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", "Timbuktu")])
    await stage.ask(chat)
    hits = await stage.service.finder.find("timbuktu")
    assert hits.chats[0].conversation_id == chat
    messages = await stage.messages(chat)
    fork = await stage.service.fork(messages[-1])
    await stage.restart()

    def kept(messages: Sequence[Message]) -> list[tuple[object, ...]]:
        return [(message.role, message.content, message.calls, message.tools) for message in messages]

    assert kept(await stage.messages(fork)) == kept(await stage.messages(chat)) == kept(messages)
    assert options_to_json((await stage.service.turn_context.answer_settings(chat)).options)


async def test_a_fault_of_a_source_is_the_result_of_the_call(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", '{"city": "Paris", "other": 1}')])

    async def fail(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        raise RuntimeError("out of clouds")

    sky.call = fail  # type: ignore[method-assign]
    assert await stage.ask(chat) is not None, stage.errors()
    assert "out of clouds" in (await stage.messages(chat))[-2].content


async def test_a_chat_deleted_during_a_call_ends_the_turn(stage: Stage, sky: Sky) -> None:
    chat, sky.hold = await chat_with_tools(stage), asyncio.Event()
    plan(stage, [("weather", "Paris")])
    reply = stage.service.send(chat, "Where?")
    await stage.until(lambda: sky.calls)
    await stage.service.turn_context.run(Database.delete, chat)
    sky.hold.set()
    assert await stage.finish(reply) is None
    assert stage.errors()


async def test_calls_left_open_by_a_restart_are_executed_after_those_with_results(stage: Stage, sky: Sky) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", "Paris"), ("send", "Rome")])
    stage.service.send(chat, "Send it.")
    await stage.until(lambda: any(call.is_waiting for call in stage.service.turns.tool_calls.pending.values()))
    await stage.restart()
    stage.service.turn_context.toolbox = Toolbox(lambda: [sky])
    reply = stage.service.retry(chat)
    await answer(stage, chat, Answer(Decision.ONCE))
    final = await stage.finish(reply)
    assert final is not None
    assert final.receipt is not None
    assert final.receipt.cached_tokens  # saved while the question waited
    assert [name for name, _ in sky.calls] == ["weather", "send"]


@pytest.mark.parametrize("given", ['{"city": "\\ud800"}', '{"city": "Paris", "degrees": 1e999}'])
async def test_arguments_that_an_engine_would_reject_are_invalid(stage: Stage, sky: Sky, given: str) -> None:
    chat = await chat_with_tools(stage)
    plan(stage, [("weather", given)], [("weather", "Paris")])
    assert await stage.ask(chat) is not None, stage.errors()
    assert len(sky.calls) == 1
    sent: Any = stage.requests("/v1/chat/completions")[-1]["messages"]
    assert next(m["tool_calls"][0]["function"]["arguments"] for m in sent if "tool_calls" in m) == "{}"
