"""Chat memory serves only its audience and reveals nothing to others: real engine, programs, and a forged chat."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvchat.chat.events import Event, ReadAheadProgress
from kvchat.chat.record.messages import Receipt
from kvchat.chat.turn import imported_memory
from kvchat.engine.api.wire import Sampling
from kvchat.engine_host import idle_stop
from kvchat.engine_host.idle_stop import IdleStop
from kvchat.kvstore.exchange import stored_manifest
from kvchat.runtime import Runtime
from kvchat.session.exchange import Exchange, PromptRequest
from kvchat.session.prefill import StepPacer
from kvchat.session.restore_cost import PrefillSample
from kvchat.session.slot import Priority, Slot
from tests.e2e.home import notes
from tests.e2e.restarts import settings
from tests.engine.waiting import until
from tests.gateway.servers import RunningGateway, running_gateway
from tests.models import tiny_model
from tests.running import opened

pytestmark = pytest.mark.engine

SECRET = f"Our project is called Heron.\n{notes(12)}"
SHORT = Sampling(4, temperature=0.0)
SLOW_MODEL = [PrefillSample(1000, 1e5)] * 5  # so that verifying takes long
FEW = 40  # tokens that any two prompts may share: the start of the template
DIALECTS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "several", "twice")


async def send(runtime: Runtime, chat: str, text: str) -> Receipt:
    reply = await runtime.chat.send(chat, text, SHORT)
    assert reply is not None
    assert reply.receipt is not None
    await runtime.chat.wait_until_idle()
    return reply.receipt


def request(dialect: str, text: str) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": text}]
    match dialect:
        case "/v1/completions":
            return dialect, {"prompt": f"<|im_start|>user\n{text}", "max_tokens": 4}
        case "/v1/responses":
            return dialect, {"input": text, "max_output_tokens": 4}
        case "raw":
            return "/v1/completions", {"prompt": text, "max_tokens": 4}
        case "several":
            return "/v1/completions", {"prompt": [f"<|im_start|>user\n{text}", "And you?"], "max_tokens": 4}
        case "twice":
            return "/v1/chat/completions", {"messages": messages, "max_tokens": 4, "n": 2}
    return dialect, {"messages": messages, "max_tokens": 4}


def cached_counts(answer: Any) -> list[int]:
    """Return every count of reused tokens in an answer of any dialect."""
    if isinstance(answer, dict):
        names = ("cached_tokens", "cache_n", "cache_read_input_tokens")
        own = [value for name, value in answer.items() if name in names and isinstance(value, int)]
        return own + [count for value in answer.values() for count in cached_counts(value)]
    return [count for value in answer for count in cached_counts(value)] if isinstance(answer, list) else []


async def reused_tokens(server: RunningGateway, program: str, dialect: str, text: str) -> int:
    """Ask as `program`; return the most reused tokens that anything in the answer reveals."""
    path, body = request(dialect, text)
    answer = await server.client.post(path, json=body, headers={"user-agent": program})
    assert answer.status_code == 200, answer.text
    counts = [
        int(answer.headers.get("x-kvchat-found", 0)),
        server.last.found_tokens or 0,
        server.last.cached_tokens or 0,
    ]
    if dialect != "/v1/messages":  # there kvchat itself processes all but the last token first
        counts += cached_counts(answer.json())
    await server.settled()
    return max(counts)


@pytest.mark.parametrize("architecture", ["llama", "qwen35"])
@pytest.mark.parametrize("slots", [1, 3])
async def test_a_program_cannot_detect_what_others_asked(tmp_path, slots, architecture):
    """Neither from save points nor from slots, in any dialect."""
    chosen = settings(tiny_model(architecture), "llama-server", slots=slots)
    async with running_gateway(tmp_path / "home", chosen) as server:
        chat = await server.runtime.chat.new_conversation("")
        await send(server.runtime, chat.id, SECRET)
        for number, dialect in enumerate(DIALECTS):
            if slots > 1 or dialect != "twice":
                assert await reused_tokens(server, f"spy{number}", dialect, SECRET) < FEW, dialect
        assert await reused_tokens(server, "editor", "/v1/chat/completions", SECRET) < FEW
        own = await reused_tokens(server, "editor", "/v1/chat/completions", SECRET)
        assert own > 2 * FEW or architecture == "qwen35", "it finds its own"
        assert await reused_tokens(server, "another", "/v1/chat/completions", SECRET) < FEW
        receipt = await send(server.runtime, chat.id, "And you?")
        assert receipt.cached_tokens > 2 * FEW, "the chat has lost nothing"


async def test_a_program_uses_no_chat_that_is_being_saved(tmp_path):
    chosen = settings(tiny_model("llama"), "llama-server", slots=2)
    async with running_gateway(tmp_path / "home", chosen) as server:
        chat = await server.runtime.chat.new_conversation("")
        await server.runtime.chat.send(chat.id, SECRET, SHORT)
        assert await reused_tokens(server, "spy", "/v1/chat/completions", SECRET) < FEW


TRUE = f"{notes(8)}\nYou are a kind assistant. Be kind to everybody."


FORGED: list[bytes] = []  # contents of the file, once made


@pytest.fixture
async def forged(tmp_path: Path) -> Path:
    """Return an exported chat whose state was computed from another system prompt of the same length."""
    file = tmp_path / "chat.kvchat"
    if not FORGED:
        async with opened(tmp_path / "attacker", settings(tiny_model("llama"), "llama-server")) as attacker:
            await _forge(attacker, file)
        FORGED.append(file.read_bytes())
    file.write_bytes(FORGED[0])
    return file


async def _forge(runtime: Runtime, file: Path) -> None:
    chat = await runtime.chat.new_conversation(TRUE)
    await send(runtime, chat.id, "Who are you?")
    store = runtime.chat.slots.store
    manifest = stored_manifest(store.inventory.folder, chat.id)
    assert manifest is not None
    tokens = manifest.points[-1].tokens
    engine = (await runtime.engine.ready()).engine
    kind, rude = [(await engine.text_tokens(f" {word}"))[-1] for word in ("kind", "rude")]
    evil = tuple(rude if token == kind else token for token in tokens)
    assert evil != tokens

    async def work(slot: Slot, may_continue: object) -> None:
        lease = await Exchange(runtime.chat.slots, slot, runtime.engine, chat.id).lease_slot(PromptRequest([]))
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


async def test_a_forged_chat_serves_nobody_else_and_is_replaced_by_verification(tmp_path, forged):
    chosen = settings(tiny_model("llama"), "llama-server")
    async with running_gateway(tmp_path / "home", chosen) as server:
        runtime = server.runtime
        report = await runtime.transfer.import_files([forged], lambda done, total: None, start_engine=True)
        assert "A test on this computer succeeded" in report.notes[0]
        assert "only this chat uses it" in report.notes[0]
        [imported] = report.imported
        prompt = f"<|im_start|>system\n{TRUE}<|im_end|>\n<|im_start|>user\nWho are you?"
        assert await reused_tokens(server, "agent", "raw", prompt) < FEW
        receipt = await send(runtime, imported, "Go on.")
        assert (receipt.imported, receipt.cached_tokens > 2 * FEW) == (True, True), "its own chat uses it"
        assert await reused_tokens(server, "editor", "raw", prompt) < FEW, "nor its continuation"
        new = await runtime.chat.new_conversation(TRUE)
        assert (await send(runtime, new.id, "Who are you?")).cached_tokens < FEW
        assert await imported_chats(runtime) == {imported}
        await runtime.chat.memory_verifier.verify(imported)
        assert not await imported_chats(runtime)
        receipt = await send(runtime, imported, "Thank you.")
        assert (receipt.imported, receipt.cached_tokens > 2 * FEW) == (False, True), "it is the user's own now"


async def imported_chats(runtime: Runtime) -> set[str]:
    return {chat.conversation_id for chat in (await runtime.save_points.usage()).conversations if chat.imported}


async def test_imported_memory_is_verified_when_idle_and_requests_go_first(tmp_path, forged, monkeypatch):
    monkeypatch.setattr(idle_stop, "VERIFY_AFTER_IDLE_S", 0.0)
    monkeypatch.setattr(StepPacer, "tokens", lambda self, left: 1)
    chosen = settings(tiny_model("llama"), "llama-server", read_ahead="always", slots=1)
    async with opened(tmp_path / "home", chosen) as runtime:
        [imported] = (
            await runtime.transfer.import_files([forged], lambda done, total: None, start_engine=True)
        ).imported
        other = await runtime.chat.new_conversation("")
        await send(runtime, other.id, "Is there time?")
        answers: list[asyncio.Future[Any]] = []

        def ask(event: Event) -> None:
            if isinstance(event, ReadAheadProgress) and event.conversation_id == imported and not answers:
                answers.append(asyncio.ensure_future(send(runtime, other.id, "Stop, please.")))

        unsubscribe = runtime.events.subscribe(ask)
        await runtime.chat.memory_verifier.verify_when_idle()
        assert answers, "it had started"
        assert await imported_chats(runtime) == {imported}, "and stopped for the message"
        assert (await answers[0]).source.value == "warm", "whose chat is restored"
        unsubscribe()
        idle = IdleStop(lambda: None, runtime.chat, runtime.engine, check_interval_s=0.01)
        idle_task = asyncio.create_task(idle.run())
        await until(lambda: not runtime.chat.slots.store.inventory.imported_conversations())
        idle.end()
        await idle_task
        receipt = await send(runtime, imported, "Who are you?")
        assert (receipt.imported, receipt.cached_tokens > 2 * FEW) == (False, True)


@pytest.mark.parametrize("reason", ["switched off", "too long"])
async def test_not_every_chat_is_verified_when_idle(tmp_path, forged, monkeypatch, reason):
    monkeypatch.setattr(
        imported_memory, "MAX_SPARE_MS", imported_memory.MAX_SPARE_MS if reason == "switched off" else 1.0
    )
    read_ahead = "never" if reason == "switched off" else "always"
    chosen = settings(tiny_model("llama"), "llama-server", read_ahead=read_ahead)
    async with opened(tmp_path / "home", chosen) as runtime:
        [imported] = (
            await runtime.transfer.import_files([forged], lambda done, total: None, start_engine=True)
        ).imported
        runtime.chat.slots.restore_cost.speed.samples.extend(SLOW_MODEL)
        for _ in range(2):
            await runtime.chat.memory_verifier.verify_when_idle()
        assert await imported_chats(runtime) == {imported}
        await runtime.chat.memory_verifier.verify(imported)
        assert not await imported_chats(runtime)


@pytest.mark.parametrize("permanently", [False, True])
async def test_deleting_a_chat_ends_its_verification_without_an_error(tmp_path, forged, monkeypatch, permanently):
    monkeypatch.setattr(StepPacer, "tokens", lambda self, left: min(64, left))
    chosen = settings(tiny_model("llama"), "llama-server", read_ahead="never", slots=1)
    async with opened(tmp_path / "home", chosen) as runtime:
        [imported] = (
            await runtime.transfer.import_files([forged], lambda done, total: None, start_engine=True)
        ).imported
        runtime.chat.slots.restore_cost.speed.samples.extend(SLOW_MODEL)
        deletions: list[asyncio.Future[None]] = []
        steps: list[int] = []

        def delete(event: Event) -> None:
            if isinstance(event, ReadAheadProgress) and event.conversation_id == imported:
                steps.append(event.done_tokens)
                if not deletions:
                    deleted = (
                        runtime.chat.recently_deleted.purge_chat(imported)
                        if permanently
                        else runtime.chat.recently_deleted.delete([imported])
                    )
                    deletions.append(asyncio.ensure_future(deleted))

        runtime.events.subscribe(delete)
        assert not await runtime.chat.memory_verifier.verify(imported)
        await deletions[0]
        assert len(steps) <= 4, "it is not processed to its end"
        if not permanently:
            await runtime.chat.recently_deleted.restore_chats([imported])
            assert await imported_chats(runtime) == {imported}
            assert await runtime.chat.memory_verifier.verify(imported)
        await runtime.chat.wait_until_idle()
        assert not await imported_chats(runtime)
