"""Prepared documents on a fake engine: chats start from them, they change, they are removed."""

import asyncio
from pathlib import Path

import pytest

from kvchat.chat.prepared.documents import FileChanges, PreparedSet
from kvchat.chat.prepared.library import ChatDocuments, reprocess_reason
from kvchat.chat.record.messages import Message, Role
from kvchat.session import prefill
from kvchat.session.proof import Source
from tests.chat.stage import Stage

STORY = "A long story of the river and the garden. " * 20
NAMES = ("manual/a.md", "manual/b.md")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "manual"
    folder.mkdir()
    (folder / "a.md").write_text("The river. " + STORY)
    (folder / "b.md").write_text("The garden. " + STORY)
    return folder


async def prepare(stage: Stage, folder: Path, name: str = "Manual") -> PreparedSet:
    library = stage.service.library
    return await library.process(await library.add([folder], name))


async def start_chat(stage: Stage, prepared: PreparedSet) -> str:
    return (await stage.service.create(await stage.service.library.new_chat(prepared))).id


async def system_message(stage: Stage, chat: str) -> Message:
    return (await stage.service.turn_context.branch(chat))[0]


async def file_changes(stage: Stage) -> FileChanges:
    [status] = await stage.service.library.statuses(None, ())
    return status.changes


async def test_chat_on_prepared_documents_starts_warm(stage: Stage, folder: Path) -> None:
    prepared = await prepare(stage, folder)
    await stage.idle()
    assert prepared.tokens > 1000
    assert {point.conversation_id for point in stage.save_points()} == {prepared.owner}
    stage.slots.forget()
    chat = await start_chat(stage, prepared)
    system = await system_message(stage, chat)
    assert system.role is Role.SYSTEM
    assert [document.name for document in system.attachments] == list(NAMES)
    receipt = await stage.answered(chat, "What of the boat?")
    assert receipt.source in (Source.WARM, Source.DISK)
    assert receipt.cached_tokens >= prepared.tokens - 1
    assert await stage.service.options.system_prompt(chat) == "Use these documents to answer."
    assert await stage.service.options.change_system_prompt(chat, "Be brief.")
    assert (await system_message(stage, chat)).attachments == system.attachments


@pytest.mark.usefixtures("cannot_cut")
async def test_interrupted_reading_resumes_at_the_last_save_if_states_cannot_be_cut(
    stage: Stage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "DEFAULT_PART", 300)
    monkeypatch.setattr(prefill, "MIN_PART", 300)
    library = stage.service.library
    added = await library.add([folder], "Manual")
    task = asyncio.ensure_future(library.process(added))
    await stage.until(lambda: (reading := library.processing.get(added.id)) and reading.done_tokens > 600)
    library.stop()  # as when kvchat ends
    with pytest.raises(asyncio.CancelledError):
        await task
    saved = max(point.n_tokens for point in stage.save_points())
    stage.slots.forget()
    before = len(stage.requests("/completion"))
    prepared = await library.process(added)
    requests = stage.requests("/completion")[before:]
    assert min(len(body["prompt"]) for body in requests) > saved >= 300  # type: ignore[arg-type]
    receipt = await stage.answered(await start_chat(stage, prepared), "What of the boat?")
    assert receipt.cached_tokens >= prepared.tokens - 1


async def test_question_in_a_chat_goes_first(stage: Stage, folder: Path) -> None:
    library, chat = stage.service.library, await stage.answered_chat()
    added, before = await library.add([folder], "Manual"), len(stage.requests("/completion"))
    stage.fake.set(FAKE_HOLD_DURING="prefill")
    task = asyncio.ensure_future(library.process(added))
    await stage.until(lambda: len(stage.requests("/completion")) > before)
    reply = stage.service.send(chat, "And then?")
    await stage.until(lambda: stage.slots._pending)
    await stage.resume(reply)
    assert not task.done()
    assert (await task).is_read


async def test_changed_files_are_listed_and_read_again(stage: Stage, folder: Path) -> None:
    prepared = await prepare(stage, folder)
    assert not await file_changes(stage)
    old = await start_chat(stage, prepared)
    await stage.answered(old)
    (folder / "b.md").write_text("The boat. " + STORY)
    (folder / "new.md").write_text("The sea. " + STORY)
    assert (await file_changes(stage)).text == "1 file changed, 1 added"
    stage.slots.forget()
    before = len(stage.requests("/completion"))
    now = await stage.service.library.process(prepared)
    await stage.idle()
    assert stage.requests("/slots/0?action=restore")
    assert now.tokens > prepared.tokens
    assert len(stage.requests("/completion")) > before
    assert not await file_changes(stage)
    own = [point.n_tokens for point in stage.save_points() if point.conversation_id == prepared.owner]
    assert own == [now.tokens]
    assert "The boat" not in (await system_message(stage, old)).attachments[1].text
    assert "The boat" in (await system_message(stage, await start_chat(stage, now))).attachments[1].text


async def test_documents_of_a_chat_stay_known(stage: Stage, folder: Path) -> None:
    library, prepared = stage.service.library, await prepare(stage, folder)
    chat = await start_chat(stage, prepared)
    assert await library.chat_documents(await stage.chat("Be brief.")) is None
    assert await library.chat_documents(chat) == ChatDocuments(NAMES, prepared, is_current=True)
    await stage.service.options.change_system_prompt(chat, "Be brief.")
    assert await library.chat_documents(chat) == ChatDocuments(NAMES, prepared, is_current=True)
    (folder / "b.md").write_text("The lake. " + STORY)
    now = await library.process(prepared)
    assert await library.chat_documents(chat) == ChatDocuments(NAMES, now, is_current=False)
    assert [status.changes for status in await library.statuses(None, (), now)] == [FileChanges()]
    await library.remove(now)
    assert await library.chat_documents(chat) == ChatDocuments(NAMES, None, is_current=False)
    (folder / "b.md").write_text("The garden. " + STORY)
    again = await library.add([folder], "The same")
    assert await library.chat_documents(chat) == ChatDocuments(NAMES, again, is_current=True)


async def test_prepared_set_survives_a_restart(stage: Stage, folder: Path) -> None:
    prepared = await prepare(stage, folder)
    await stage.restart()
    library = stage.service.library
    assert await library.find("Manual") == prepared
    now = await stage.engine.fingerprint_and_limit()
    usage = {entry.conversation_id: entry for entry in (await stage.runtime.save_points.usage()).conversations}
    own = usage[prepared.owner]
    assert own.pinned
    [status] = await library.statuses(now, tuple(usage.values()))
    assert (status.reprocess_reason, status.bytes, bool(status.changes)) == ("", own.bytes, False)
    assert "longer than the current context" in reprocess_reason(prepared, own, now[0], 100)
    assert reprocess_reason(prepared, None, *now) == "its memory was deleted"
    receipt = await stage.answered(await start_chat(stage, prepared), "What of the boat?")
    assert receipt.source is Source.DISK
    assert receipt.cached_tokens >= prepared.tokens - 1
