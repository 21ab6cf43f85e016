"""Nobody's memory serves, or is betrayed to, somebody it is not for: a real engine, programs, and a forged chat."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvchat.chat.events import Event, ReadAheadProgress
from kvchat.chat.record.messages import Receipt
from kvchat.chat.turn import imported_memory
from kvchat.engine.api.wire import Sampling
from kvchat.engine_host import host as engine_host
from kvchat.engine_host.host import IdleStop
from kvchat.kvstore.exchange import stored_manifest
from kvchat.runtime import Runtime
from kvchat.session.exchange import Exchange, Request
from kvchat.session.prefill import StepPacer
from kvchat.session.restore_cost import PrefillSample
from kvchat.session.slot import Slot
from kvchat.session.slot_request import Priority
from tests.e2e.home import notes
from tests.e2e.restarts import settings
from tests.engine.waiting import until
from tests.gateway.servers import RunningGateway, running_gateway
from tests.models import tiny_model
from tests.running import opened

pytestmark = pytest.mark.engine

SECRET = f"Our project is called Heron.\n{notes(12)}"
SHORT = Sampling(4, temperature=0.0)
AS_LARGE = [PrefillSample(1000, 1e5)] * 5  # with a large model restoring pays
FEW = 40  # tokens that any two prompts may share: the template's first words
DIALECTS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "several", "twice")


async def said(runtime: Runtime, chat: str, words: str) -> Receipt:
    runtime.chat.slots.restore_cost.speed.samples.extend(AS_LARGE)
    reply = await runtime.chat.send(chat, words, SHORT)
    assert reply is not None
    assert reply.receipt is not None
    await runtime.chat.idle()
    return reply.receipt


def body(dialect: str, words: str) -> tuple[str, dict[str, Any]]:
    said = [{"role": "user", "content": words}]
    match dialect:
        case "/v1/completions":
            return dialect, {"prompt": f"<|im_start|>user\n{words}", "max_tokens": 4}
        case "/v1/responses":
            return dialect, {"input": words, "max_output_tokens": 4}
        case "raw":
            return "/v1/completions", {"prompt": words, "max_tokens": 4}
        case "several":
            return "/v1/completions", {"prompt": [f"<|im_start|>user\n{words}", "And you?"], "max_tokens": 4}
        case "twice":
            return "/v1/chat/completions", {"messages": said, "max_tokens": 4, "n": 2}
    return dialect, {"messages": said, "max_tokens": 4}


def taken_from_cache(answer: Any) -> list[int]:
    """Every count of reused tokens in an answer, wherever its dialect has it."""
    if isinstance(answer, dict):
        names = ("cached_tokens", "cache_n", "cache_read_input_tokens")
        own = [value for name, value in answer.items() if name in names and isinstance(value, int)]
        return own + [count for value in answer.values() for count in taken_from_cache(value)]
    return [count for value in answer for count in taken_from_cache(value)] if isinstance(answer, list) else []


async def asked(server: RunningGateway, program: str, dialect: str, words: str) -> int:
    path, wanted = body(dialect, words)
    server.runtime.chat.slots.restore_cost.speed.samples.extend(AS_LARGE)
    answer = await server.client.post(path, json=wanted, headers={"user-agent": program})
    assert answer.status_code == 200, answer.text
    told = [int(answer.headers.get("x-kvchat-found", 0)), server.last.found or 0, server.last.cached or 0]
    if dialect != "/v1/messages":  # there kvchat itself reads all but the last token first
        told += taken_from_cache(answer.json())
    await server.settled()
    return max(told)


@pytest.mark.parametrize("architecture", ["llama", "qwen35"])
@pytest.mark.parametrize("slots", [1, 3])
async def test_a_program_cannot_find_out_what_others_asked(tmp_path, slots, architecture):
    """Neither from what is saved nor from what the engine still has in a slot, in whatever dialect it asks."""
    chosen = settings(tiny_model(architecture), "llama-server", slots=slots)
    async with running_gateway(tmp_path / "home", chosen) as server:
        chat = await server.runtime.chat.new_conversation("")
        await said(server.runtime, chat.id, SECRET)
        for number, dialect in enumerate(DIALECTS):
            if slots > 1 or dialect != "twice":
                assert await asked(server, f"spy{number}", dialect, SECRET) < FEW, dialect
        assert await asked(server, "editor", "/v1/chat/completions", SECRET) < FEW
        own = await asked(server, "editor", "/v1/chat/completions", SECRET)
        assert own > 2 * FEW or architecture == "qwen35", "its own it does find"
        assert await asked(server, "another", "/v1/chat/completions", SECRET) < FEW
        told = await said(server.runtime, chat.id, "And you?")
        assert told.cached_tokens > 2 * FEW, "the chat has lost nothing"


async def test_a_program_goes_on_from_no_chat_while_that_is_being_saved(tmp_path):
    chosen = settings(tiny_model("llama"), "llama-server", slots=2)
    async with running_gateway(tmp_path / "home", chosen) as server:
        chat = await server.runtime.chat.new_conversation("")
        await server.runtime.chat.send(chat.id, SECRET, SHORT)
        assert await asked(server, "spy", "/v1/chat/completions", SECRET) < FEW


TRUE = f"{notes(8)}\nYou are a kind assistant. Be kind to everybody."


MADE: list[bytes] = []  # what `forged` gives, once it is made


@pytest.fixture
async def forged(tmp_path: Path) -> Path:
    """A chat in a file, whose kept state was computed from another system prompt of as many tokens."""
    file = tmp_path / "chat.kvchat"
    if not MADE:
        async with opened(tmp_path / "attacker", settings(tiny_model("llama"), "llama-server")) as theirs:
            await _forge(theirs, file)
        MADE.append(file.read_bytes())
    file.write_bytes(MADE[0])
    return file


async def _forge(runtime: Runtime, file: Path) -> None:
    chat = await runtime.chat.new_conversation(TRUE)
    await said(runtime, chat.id, "Who are you?")
    store = runtime.chat.slots.store
    manifest = stored_manifest(store.inventory.folder, chat.id)
    assert manifest is not None
    tokens = manifest.points[-1].tokens
    engine = (await runtime.engine.ready()).engine
    kind, rude = [(await engine.text_tokens(f" {word}"))[-1] for word in ("kind", "rude")]
    evil = tuple(rude if token == kind else token for token in tokens)
    assert evil != tokens

    async def work(slot: Slot, wanted: object) -> None:
        lease = await Exchange(runtime.chat.slots, slot, runtime.engine, chat.id).ready(Request([]))
        await lease.engine.engine.erase_slot()
        await lease.engine.engine.prefill(evil)
        path = lease.engine.slot_path / "forged.slot"
        await lease.engine.engine.save_slot(path.name)
        data = bytearray(path.read_bytes())
        data[24 : 24 + 4 * len(tokens)] = np.asarray(tokens, "<i4").tobytes()
        path.write_bytes(data)
        slot.forget()
        await asyncio.to_thread(store.inventory.delete_conversation, chat.id)
        await asyncio.to_thread(
            store.saver.add, path, chat.id, lease.engine.fingerprint, tokens, len(data), 100.0 * len(tokens)
        )

    await runtime.chat.slots.run_background(Priority.TEST_IMPORT, chat.id, work)
    await runtime.transfer.export_with_memory(chat.id, file, lambda done, total: None)


async def test_a_forged_chat_serves_nobody_else_and_is_replaced_when_it_is_verified(tmp_path, forged):
    chosen = settings(tiny_model("llama"), "llama-server")
    async with running_gateway(tmp_path / "home", chosen) as server:
        ours = server.runtime
        report = await ours.transfer.import_files([forged], lambda done, total: None, start=True)
        assert "A test on this computer succeeded" in report.notes[0]
        assert "only this chat uses it" in report.notes[0]
        [imported] = report.imported
        prompt = f"<|im_start|>system\n{TRUE}<|im_end|>\n<|im_start|>user\nWho are you?"
        assert await asked(server, "agent", "raw", prompt) < FEW
        receipt = await said(ours, imported, "Go on.")
        assert (receipt.imported, receipt.cached_tokens > 2 * FEW) == (True, True), "for its own chat it is used"
        assert await asked(server, "editor", "raw", prompt) < FEW, "nor what has grown from it"
        new = await ours.chat.new_conversation(TRUE)
        assert (await said(ours, new.id, "Who are you?")).cached_tokens < FEW
        assert {one.conversation_id for one in (await ours.save_points.usage()).conversations if one.imported} == {
            imported
        }
        await ours.chat.memory_verifier.verify(imported)
        assert not any(one.imported for one in (await ours.save_points.usage()).conversations)
        receipt = await said(ours, imported, "Thank you.")
        assert (receipt.imported, receipt.cached_tokens > 2 * FEW) == (False, True), "it is the user's own now"


async def marked(runtime: Runtime) -> set[str]:
    return {one.conversation_id for one in (await runtime.save_points.usage()).conversations if one.imported}


async def test_imported_memory_is_verified_in_spare_time_and_whoever_asks_goes_first(tmp_path, forged, monkeypatch):
    monkeypatch.setattr(engine_host, "VERIFY_AFTER_IDLE_S", 0.0)
    monkeypatch.setattr(StepPacer, "tokens", lambda self, left: min(16, left))
    chosen = settings(tiny_model("llama"), "llama-server", read_ahead="always", slots=1)
    async with opened(tmp_path / "home", chosen) as ours:
        [imported] = (await ours.transfer.import_files([forged], lambda done, total: None, start=True)).imported
        other = await ours.chat.new_conversation("")
        await said(ours, other.id, "Is there time?")
        answers: list[asyncio.Future[Any]] = []

        def ask(event: Event) -> None:
            if isinstance(event, ReadAheadProgress) and event.conversation_id == imported and not answers:
                answers.append(asyncio.ensure_future(said(ours, other.id, "Stop, please.")))

        unsubscribe = ours.events.subscribe(ask)
        await ours.chat.memory_verifier.verify_when_idle()
        assert answers, "it had begun"
        assert await marked(ours) == {imported}, "and ended for the message"
        assert (await answers[0]).source.value == "warm", "the chat of which is loaded again"
        unsubscribe()
        idle = IdleStop(lambda: None, ours.chat, ours.engine, check_interval_s=0.01)
        looking = asyncio.create_task(idle.run())
        await until(lambda: not ours.chat.slots.store.inventory.imported())
        idle.end()
        await looking
        receipt = await said(ours, imported, "Who are you?")
        assert (receipt.imported, receipt.cached_tokens > 2 * FEW) == (False, True)


@pytest.mark.parametrize("why", ["switched off", "too long"])
async def test_not_every_chat_is_verified_in_spare_time(tmp_path, forged, monkeypatch, why):
    monkeypatch.setattr(imported_memory, "MAX_SPARE_MS", imported_memory.MAX_SPARE_MS if why == "switched off" else 1.0)
    read_ahead = "never" if why == "switched off" else "always"
    chosen = settings(tiny_model("llama"), "llama-server", read_ahead=read_ahead)
    async with opened(tmp_path / "home", chosen) as ours:
        [imported] = (await ours.transfer.import_files([forged], lambda done, total: None, start=True)).imported
        ours.chat.slots.restore_cost.speed.samples.extend(AS_LARGE)
        for _ in range(2):
            await ours.chat.memory_verifier.verify_when_idle()
        assert await marked(ours) == {imported}
        await ours.chat.memory_verifier.verify(imported)
        assert not await marked(ours)


@pytest.mark.parametrize("for_good", [False, True])
async def test_a_chat_deleted_while_it_is_verified_ends_that_without_an_error(tmp_path, forged, monkeypatch, for_good):
    monkeypatch.setattr(StepPacer, "tokens", lambda self, left: min(64, left))
    chosen = settings(tiny_model("llama"), "llama-server", read_ahead="never", slots=1)
    async with opened(tmp_path / "home", chosen) as ours:
        [imported] = (await ours.transfer.import_files([forged], lambda done, total: None, start=True)).imported
        ours.chat.slots.restore_cost.speed.samples.extend(AS_LARGE)
        deletions: list[asyncio.Future[None]] = []
        steps: list[int] = []

        def delete(event: Event) -> None:
            if isinstance(event, ReadAheadProgress) and event.conversation_id == imported:
                steps.append(event.done)
                if not deletions:
                    deleted = (
                        ours.chat.recently_deleted.purge_chat(imported)
                        if for_good
                        else ours.chat.recently_deleted.delete([imported])
                    )
                    deletions.append(asyncio.ensure_future(deleted))

        ours.events.subscribe(delete)
        assert not await ours.chat.memory_verifier.verify(imported)
        await deletions[0]
        assert len(steps) <= 4, "it is not read to its end"
        if not for_good:
            await ours.chat.recently_deleted.restore_chats([imported])
            assert await marked(ours) == {imported}
            assert await ours.chat.memory_verifier.verify(imported)
        await ours.chat.idle()
        assert not await marked(ours)
