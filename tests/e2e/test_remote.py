"""Two kvchat installations: the laptop's chats use the model of the box, and the box remembers them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.events import TurnFailed
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.wire import Sampling
from kvchat.engine.process.plan import free_port
from kvchat.engine_host.paired_computer import PairedComputerStore, pair
from kvchat.kvstore.savepoint import ConversationUsage, program_chat_of
from kvchat.runtime import Runtime
from kvchat.session.proof import Source
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.e2e.home import GREEDY, engine_arguments, notes
from tests.e2e.sharing import make_homes, pair_homes, sharing, shown_code
from tests.models import tiny_model
from tests.running import opened

pytestmark = pytest.mark.e2e


def test_laptop_chats_with_the_memory_of_the_box(tmp_path):
    box, laptop = make_homes(tmp_path)
    port = free_port("127.0.0.1")
    with sharing(box, port) as at:
        pair_homes(box, laptop, port)
        first = laptop.ask("--new", notes(120))
        assert first["receipt"]["source"] == "cold"
        again = laptop.ask("And the first?")
        assert again["receipt"]["cached_tokens"] >= 0.98 * first["receipt"]["prompt_tokens"]
        assert again["receipt"]["source"] in ("hot", "warm")
        at.requests()
        (device,) = json.loads(box.run("devices", "--json").stdout)
        assert device["last_used_at"]
    box.make_prefill_expensive()
    with sharing(box, port) as at:
        after = laptop.ask("And the second?")
        receipt = after["receipt"]
        assert receipt["source"] in ("warm", "disk"), receipt
        assert receipt["cached_tokens"] >= 0.98 * again["receipt"]["prompt_tokens"]
        assert receipt["restore_ms"] > 0
        at.requests()
        assert box.run("devices", "remove", device["id"]).returncode == 0
        refused = laptop.run("ask", "Hello?")
        assert refused.returncode == 1
        assert "refused access" in refused.stderr
    assert not list((laptop.folder / "cache").rglob("*.block"))


def test_wrong_code_and_changed_certificate(tmp_path):
    box, laptop = make_homes(tmp_path)
    port = free_port("127.0.0.1")
    with sharing(box, port):
        with shown_code(box) as code:
            wrong = f"{(int(code) + 1) % 1_000_000:06d}"
            failed = laptop.run("pair", f"127.0.0.1:{port}", wrong)
            assert failed.returncode == 1
            assert "The code is wrong or has expired" in failed.stderr
            assert laptop.run("pair", f"127.0.0.1:{port}", code).returncode == 0
        replayed = laptop.run("pair", f"127.0.0.1:{port}", code)
        assert replayed.returncode == 1
        assert "The code is wrong or has expired" in replayed.stderr
    (box.folder / "config" / "certificate.pem").unlink()
    with sharing(box, port):
        refused = laptop.run("ask", "--new", "Hello?")
        assert refused.returncode == 1
        assert "certificate has changed" in refused.stderr


@contextlib.asynccontextmanager
async def paired_runtimes(folder: Path, **changes: object) -> AsyncIterator[tuple[Runtime, Runtime]]:
    """Yield the runtimes of a box that shares its model and of a laptop that is paired with it."""
    engine = engine_arguments("llama-server")[1]
    settings = Settings(
        model_path=str(tiny_model("llama")), engine_path=engine, share_devices=True, share_port=free_port("127.0.0.1")
    )
    settings = replace(settings, **changes)  # type: ignore[arg-type]
    async with opened(folder / "box", settings) as box:
        await box.start_serving()
        await box.api_server.follow_settings()
        sharing = box.api_server.sharing
        found = await pair(f"127.0.0.1:{sharing.port}", sharing.show_code())
        paths = resolve_paths({"KVCHAT_HOME": str(folder / "laptop")}).ensure()
        PairedComputerStore(paths).save(found)
        async with opened(folder / "laptop", Settings(engine_url=found.url)) as laptop:
            await laptop.engine.ready()
            yield box, laptop


async def memory_on(box: Runtime) -> dict[str, ConversationUsage]:
    """Return the box's memory of the device's chats, by their names, once everything is saved."""
    await box.api_server.wait_until_idle()
    usage = await box.save_points.usage()
    return {program_chat_of(entry.conversation_id): entry for entry in usage.conversations}


async def until_forgotten(box: Runtime) -> None:
    """Wait until the box has no memory of the device's chats."""
    async with asyncio.timeout(60):
        while await memory_on(box):  # noqa: ASYNC110 - the box has no event for it
            await asyncio.sleep(0.1)


async def test_memory_on_the_box_is_forecast_kept_shown_and_deleted(tmp_path):
    async with paired_runtimes(tmp_path) as (box, laptop):
        chat = (await laptop.chat.new_conversation()).id
        reply = await laptop.chat.send(chat, notes(120), Sampling(12, **GREEDY))
        assert reply is not None
        assert reply.receipt is not None
        assert list(await memory_on(box)) == [chat]
        prompt = reply.receipt.prompt_tokens
        forecast = await laptop.chat.forecasts.forecast_message(chat, "And the first?")
        assert forecast is not None
        assert forecast.source is Source.HOT
        assert forecast.tokens_to_process < 0.1 * prompt
        (entry,) = (await laptop.save_points.usage()).conversations
        assert entry.conversation_id == chat
        assert entry.tokens >= prompt
        await laptop.save_points.set_pinned(chat, True)
        assert (await memory_on(box))[chat].pinned
        await laptop.save_points.set_pinned(chat, False)
        laptop.chat.read_ahead.select(chat)
        draft = "And now a longer question about the bridges: " + notes(40, 500)
        laptop.chat.read_ahead.set_draft(chat, draft, ())
        async with asyncio.timeout(60):
            while True:
                forecast = await laptop.chat.forecasts.forecast_message(chat, draft)
                if forecast is not None and forecast.tokens_to_process < 60:
                    break
                await asyncio.sleep(0.1)
        reply = await laptop.chat.send(chat, draft, Sampling(12, **GREEDY))
        assert reply is not None
        assert reply.receipt is not None
        assert reply.receipt.cached_tokens >= reply.receipt.prompt_tokens - 60, "the draft was read ahead"
        await laptop.chat.recently_deleted.purge_chat(chat)
        await until_forgotten(box)


async def test_deletions_reach_a_box_that_was_away(tmp_path):
    async with paired_runtimes(tmp_path) as (box, laptop):
        chat = (await laptop.chat.new_conversation()).id
        assert await laptop.chat.send(chat, notes(60), Sampling(5, **GREEDY))
        assert list(await memory_on(box)) == [chat]
        await laptop.engine.stop()
        await laptop.chat.recently_deleted.purge_chat(chat)
        assert list(await memory_on(box)) == [chat]
        await laptop.engine.ready()
        laptop.chat.recently_deleted.start()  # as after a restart
        await until_forgotten(box)


async def test_documents_are_prepared_on_the_box(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text(notes(150))
    async with paired_runtimes(tmp_path) as (box, laptop):
        library = laptop.chat.library
        prepared = await library.process(await library.add([file], "bridges"))
        assert prepared.tokens > 1500
        (entry,) = (await memory_on(box)).values()
        assert entry.pinned
        chat = (await laptop.chat.create(await library.new_chat(prepared))).id
        reply = await laptop.chat.send(chat, "Which is the longest?", Sampling(5, **GREEDY))
        assert reply is not None
        assert reply.receipt is not None
        assert reply.receipt.cached_tokens > 0.95 * prepared.tokens
        await library.remove(prepared)
        await laptop.chat.recently_deleted.purge_chat(chat)
        await until_forgotten(box)


async def test_models_of_the_box_are_listed_and_chosen(tmp_path):
    other = tiny_model("gemma3")
    async with paired_runtimes(tmp_path, model_folders=(str(other.parent),)) as (box, laptop):
        first = await laptop.engine.ready()
        assert laptop.engine.server_models[0] == box.model.name_of(str(tiny_model("llama")))
        name = box.model.name_of(str(other))
        assert name in laptop.engine.server_models[1:]
        chat = (await laptop.chat.new_conversation()).id
        await laptop.chat.use_model(chat, name)
        reply = await laptop.chat.send(chat, notes(20), Sampling(5, **GREEDY))
        assert reply is not None
        assert reply.receipt is not None
        assert reply.receipt.model_name == name
        assert laptop.engine.server_models[0] == name
        assert (await laptop.engine.ready()).fingerprint.model != first.fingerprint.model


async def test_a_box_that_is_away_is_reported_soon_and_used_again(tmp_path):
    async with paired_runtimes(tmp_path) as (box, laptop):
        chat = (await laptop.chat.new_conversation()).id
        assert await laptop.chat.send(chat, notes(20), Sampling(5, **GREEDY))
        failures: list[TurnFailed] = []
        laptop.events.subscribe(lambda event: failures.append(event) if isinstance(event, TurnFailed) else None)
        await box.api_server.wait_until_idle()
        await box.apply_settings(replace(box.settings, share_devices=False))
        assert await laptop.chat.send(chat, "Are you there?") is None
        (failure,) = failures
        assert "not available" in failure.error.title
        assert [message.content for message in await laptop.chat.messages(chat)][-1] == "Are you there?"
        await box.apply_settings(replace(box.settings, share_devices=True))
        async with asyncio.timeout(60):
            while laptop.engine.status.state is not EngineState.READY:  # noqa: ASYNC110 - nobody asks for the engine
                await asyncio.sleep(0.1)
        reply = await laptop.chat.retry(chat, Sampling(5, **GREEDY))
        assert reply is not None
        assert reply.receipt is not None
        assert reply.receipt.cached_tokens > 0.8 * reply.receipt.prompt_tokens
