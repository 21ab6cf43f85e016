"""Documents that are read once and kept, on a fake engine: chats begin on them, they change, they go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvchat.chat.prepared.documents import FileChanges, PreparationError, PreparedSet
from kvchat.chat.prepared.library import CHARACTERS_PER_TOKEN, ChatDocuments, reprocess_reason
from kvchat.chat.record.messages import Conversation, Role
from kvchat.session import prefill
from kvchat.session.proof import Source
from tests.chat.stage import Stage

STORY = "A long story of the river and the garden. " * 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "manual"
    folder.mkdir()
    (folder / "a.md").write_text("The river. " + STORY)
    (folder / "b.md").write_text("The garden. " + STORY)
    return folder


async def begin(stage: Stage, prepared: PreparedSet) -> Conversation:
    return await stage.service.create(await stage.service.library.new_chat(prepared))


async def changed(stage: Stage) -> FileChanges:
    [one] = await stage.service.library.statuses(None, ())
    return one.changes


async def test_a_chat_on_prepared_documents_is_warm_from_its_first_question(stage: Stage, folder: Path) -> None:
    library = stage.service.library
    one = await library.read(await library.add([folder], "Manual"))
    await stage.idle()
    assert one.tokens > 1000
    assert {point.conversation_id for point in stage.save_points()} == {one.owner}
    stage.slots.forget()
    chat = await begin(stage, one)
    first = (await stage.service.turn_context.branch(chat.id))[0]
    assert first.role is Role.SYSTEM
    assert [document.name for document in first.attachments] == ["manual/a.md", "manual/b.md"]
    receipt = await stage.answered(chat.id, "What of the boat?")
    assert receipt.source in (Source.WARM, Source.DISK)
    assert receipt.cached_tokens >= one.tokens - 1
    assert await stage.service.options.system_prompt(chat.id) == "Answer with the help of these documents."
    assert await stage.service.options.change_system_prompt(chat.id, "Be brief.")
    assert (await stage.service.turn_context.branch(chat.id))[0].attachments == first.attachments


@pytest.mark.usefixtures("cannot_cut")
async def test_where_states_cannot_be_cut_too_and_from_the_last_save_on(
    stage: Stage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "DEFAULT_PART", 300)
    monkeypatch.setattr(prefill, "MIN_PART", 300)
    library = stage.service.library
    made = await library.add([folder], "Manual")
    task = asyncio.ensure_future(library.read(made))
    await stage.until(lambda: (now := library.reading.get(made.id)) and now.done > 600)
    library.stop()  # as when kvchat ends
    with pytest.raises(asyncio.CancelledError):
        await task
    saved = max(point.n_tokens for point in stage.save_points())
    stage.slots.forget()
    before = len(stage.requests("/completion"))
    one = await library.read(made)
    again = stage.requests("/completion")[before:]
    assert min(len(body["prompt"]) for body in again) > saved >= 300  # type: ignore[arg-type]
    chat = await begin(stage, one)
    receipt = await stage.answered(chat.id, "What of the boat?")
    assert receipt.cached_tokens >= one.tokens - 1


async def test_a_question_elsewhere_goes_first_and_the_reading_goes_on(stage: Stage, folder: Path) -> None:
    library, chat = stage.service.library, await stage.chat()
    await stage.answered(chat)
    made, before = await library.add([folder], "Manual"), len(stage.requests("/completion"))
    stage.fake.set(FAKE_HOLD_DURING="prefill")
    task = asyncio.ensure_future(library.read(made))
    await stage.until(lambda: len(stage.requests("/completion")) > before)
    asked = stage.service.send(chat, "And then?")
    await stage.until(lambda: stage.slots._pending)
    await stage.resume(asked)
    assert not task.done()
    assert (await task).is_read


async def test_what_changed_is_said_and_read_again_from_there_on(stage: Stage, folder: Path) -> None:
    library = stage.service.library
    one = await library.read(await library.add([folder], "Manual"))
    assert not await changed(stage)
    old = await begin(stage, one)
    await stage.answered(old.id)
    (folder / "b.md").write_text("The boat. " + STORY)
    (folder / "new.md").write_text("The sea. " + STORY)
    assert (await changed(stage)).text == "1 file changed, 1 added"
    stage.slots.forget()
    before = len(stage.requests("/completion"))
    now = await library.read(one)
    await stage.idle()
    assert stage.requests("/slots/0?action=restore")
    assert now.tokens > one.tokens
    assert len(stage.requests("/completion")) > before
    assert not await changed(stage)
    own = [point for point in stage.save_points() if point.conversation_id == one.owner]
    assert [point.n_tokens for point in own] == [now.tokens]
    texts = [(await stage.service.turn_context.branch(chat.id))[0] for chat in (old, await begin(stage, now))]
    assert "The boat" not in texts[0].attachments[1].text
    assert "The boat" in texts[1].attachments[1].text


async def test_what_is_longer_than_the_context_is_refused_with_how_much_fits(stage: Stage, folder: Path) -> None:
    for number in range(8):
        (folder / f"c{number}.md").write_text(STORY)
    library = stage.service.library
    made = await library.add([folder], "Manual")
    with pytest.raises(PreparationError) as refused:
        await library.read(made)
    assert "of its 10 files fit" in refused.value.detail
    assert not stage.save_points()
    assert not await library.all(), "no entry stays that says that reading can go on"
    estimate = await library.estimate([folder], await stage.engine.states_now())
    assert estimate.counted
    assert estimate.is_too_long


async def test_what_is_removed_is_gone_and_its_chats_are_not(stage: Stage, folder: Path) -> None:
    library = stage.service.library
    one = await library.read(await library.add([folder], "Manual"))
    with pytest.raises(PreparationError):
        await library.add([folder], "Manual")
    chat = await begin(stage, one)
    await stage.answered(chat.id)
    await library.remove(one)
    assert not await library.all()
    assert {point.conversation_id for point in stage.save_points()} == {chat.id}
    assert (await stage.answered(chat.id, "And then?")).cached_tokens > one.tokens


async def test_what_a_chat_stands_on_is_known_also_when_that_is_read_again_or_removed(
    stage: Stage, folder: Path
) -> None:
    library = stage.service.library
    one = await library.read(await library.add([folder], "Manual"))
    chat, other = (await begin(stage, one)).id, await stage.chat("Be brief.")
    assert await library.chat_documents(other) is None
    names = ("manual/a.md", "manual/b.md")
    assert await library.chat_documents(chat) == ChatDocuments(names, one, is_current=True)
    await stage.service.options.change_system_prompt(chat, "Be brief.")
    assert await library.chat_documents(chat) == ChatDocuments(names, one, is_current=True)
    (folder / "b.md").write_text("The lake. " + STORY)
    now = await library.read(one)
    assert await library.chat_documents(chat) == ChatDocuments(names, now, is_current=False)
    assert [standing.changes for standing in await library.statuses(None, (), now)] == [FileChanges()]
    await library.remove(now)
    assert await library.chat_documents(chat) == ChatDocuments(names, None, is_current=False)
    (folder / "b.md").write_text("The garden. " + STORY)
    again = await library.add([folder], "The same")
    assert await library.chat_documents(chat) == ChatDocuments(names, again, is_current=True)


async def test_a_set_that_is_cancelled_before_it_was_read_goes(stage: Stage, folder: Path) -> None:
    library = stage.service.library
    made = await library.add([folder], "Manual")
    task = asyncio.ensure_future(library.read(made))
    await stage.until(lambda: (now := library.reading.get(made.id)) and now.done)
    await library.cancel(made)
    await asyncio.wait([task])
    await stage.idle()
    assert not await library.all()
    assert not stage.save_points()


async def test_a_restart_finds_it_and_why_it_would_not_be_ready_is_said(stage: Stage, folder: Path) -> None:
    library = stage.service.library
    one = await library.read(await library.add([folder], "Manual"))
    await stage.restart()
    found = await stage.service.library.find("Manual")
    assert found == one
    now = await stage.engine.states_now()
    usage = {entry.conversation_id: entry for entry in (await stage.runtime.save_points.usage()).conversations}
    assert usage[one.owner].pinned
    [standing] = await stage.service.library.statuses(now, tuple(usage.values()))
    assert standing.reprocess_reason == ""
    assert (standing.bytes, bool(standing.changes)) == (usage[one.owner].bytes, False)
    assert "longer than the current context" in reprocess_reason(found, usage[one.owner], now[0], 100)
    assert reprocess_reason(found, None, *now) == "its memory was deleted"
    chat = await begin(stage, found)
    receipt = await stage.answered(chat.id, "What of the boat?")
    assert receipt.source is Source.DISK
    assert receipt.cached_tokens >= one.tokens - 1


@pytest.mark.parametrize("ready", [True, False])
async def test_many_small_files_are_estimated_with_what_parts_them(stage: Stage, tmp_path: Path, ready: bool) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.md").write_text("é")
    library = stage.service.library
    if ready:
        await stage.engine.ready()
    estimate = await library.estimate([folder], await stage.engine.states_now())
    read = await library.read(await library.add([folder], "Small"))
    assert estimate.counted is ready
    whole = estimate.tokens if ready else estimate.tokens * CHARACTERS_PER_TOKEN  # this engine's tokens are bytes
    assert 0.8 * read.tokens < whole < 1.2 * read.tokens
