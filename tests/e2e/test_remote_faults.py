"""Cut links, removed devices and devices that reach for each other's memory, with the real engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
import pytest

from kvchat.chat.events import FirstToken
from kvchat.chat.record.messages import Message, MessageState, Receipt
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.wire import Sampling
from kvchat.engine.process.plan import free_port
from kvchat.engine_host.paired_computer import PairedComputer, PairedComputerStore, pair
from kvchat.kvstore.savepoint import program_owner
from kvchat.runtime import Runtime
from kvchat.session import lease
from kvchat.session.proof import Source
from kvchat.settings import Settings
from kvchat.system.certificate import pinned_context
from kvchat.system.paths import resolve_paths
from tests.e2e.home import GREEDY, engine_arguments, notes
from tests.e2e.test_remote import memory_on
from tests.models import tiny_model
from tests.running import opened

pytestmark = pytest.mark.e2e
SHORT, LONG = Sampling(5, **GREEDY), Sampling(3000, **GREEDY)


@dataclass
class Link:
    """A connection to the box that can break, or pass nothing on without saying so."""

    port: int  # of the box
    is_cut: bool = False
    is_passing: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        await self.is_passing.wait()
        there, here = await asyncio.open_connection("127.0.0.1", self.port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65_536):
                    await self.is_passing.wait()
                    target.write(data)
                    await target.drain()
            target.close()

        self._open |= {here, writer}
        await asyncio.gather(copy(reader, here), copy(there, writer))
        self._open -= {here, writer}

    def fail(self, *, silently: bool) -> None:
        self.is_cut = not silently
        self.is_passing.clear()
        if not silently:
            for writer in self._open:
                writer.transport.abort()
            self.is_passing.set()

    def mend(self) -> None:
        self.is_cut = False
        self.is_passing.set()


@contextlib.asynccontextmanager
async def shared_box(folder: Path) -> AsyncIterator[Runtime]:
    settings = Settings(model_path=str(tiny_model("llama")), engine_path=engine_arguments("llama-server")[1])
    settings = replace(settings, share_devices=True, share_port=free_port("127.0.0.1"), slots=2, context_size=8192)
    async with opened(folder / "box", settings) as box:
        await box.start_serving()
        await box.api_server.follow_settings()
        yield box


@contextlib.asynccontextmanager
async def laptop_of(box: Runtime, home: Path, address: str = "") -> AsyncIterator[tuple[Runtime, PairedComputer]]:
    sharing = box.api_server.sharing
    found = await pair(address or f"127.0.0.1:{sharing.port}", sharing.show_code())
    PairedComputerStore(resolve_paths({"KVCHAT_HOME": str(home)}).ensure()).save(found)
    async with opened(home, Settings(engine_url=found.url, model_titles=False)) as laptop:
        await laptop.engine.ready()
        yield laptop, found


async def until_ready(laptop: Runtime) -> None:
    async with asyncio.timeout(120):
        while laptop.engine.status.state is not EngineState.READY:  # noqa: ASYNC110 - nobody asks for the engine
            await asyncio.sleep(0.1)


def first_token(laptop: Runtime) -> asyncio.Event:
    """Return an event that the next first token sets."""
    begun = asyncio.Event()
    laptop.events.subscribe(lambda event: begun.set() if isinstance(event, FirstToken) else None)
    return begun


def receipt_of(reply: Message | None) -> Receipt:
    assert reply is not None
    assert reply.receipt is not None
    return reply.receipt


async def owners_on(box: Runtime) -> list[str]:
    return [entry.conversation_id for entry in (await box.save_points.usage()).conversations]


@pytest.mark.parametrize("silently", [False, True])
async def test_link_cut_in_mid_reply(tmp_path: Path, silently: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a reply is kept on the laptop, and “Continue” goes on warm once the link is back."""
    monkeypatch.setattr(lease, "LONG_PREFILL_MS", 0.0)
    async with shared_box(tmp_path) as box:
        assert box.api_server.sharing.port is not None
        link = Link(box.api_server.sharing.port)
        link.mend()
        async with await asyncio.start_server(link.relay, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with laptop_of(box, tmp_path / "laptop", address) as (laptop, _found):
                chat = (await laptop.chat.new_conversation()).id
                begun = first_token(laptop)
                sending = laptop.chat.send(chat, notes(150), LONG)
                async with asyncio.timeout(120):
                    await begun.wait()
                    link.fail(silently=silently)
                    await sending
                half = (await laptop.chat.messages(chat))[-1]
                assert half.state is MessageState.INTERRUPTED
                assert half.content
                link.mend()
                await until_ready(laptop)
                assert (await memory_on(box))[chat].tokens >= 2000, "the box keeps what it has processed"
                whole = await laptop.chat.continue_reply(half, SHORT)
                receipt = receipt_of(whole)
                assert receipt.cached_tokens >= 0.9 * receipt.prompt_tokens
                assert whole is not None
                assert whole.content.startswith(half.content)
                assert len(whole.content) > len(half.content)


async def test_devices_do_not_reach_each_others_memory(tmp_path: Path) -> None:
    """They have the same prompts and names of chats, and guess each other's."""
    async with (
        shared_box(tmp_path) as box,
        laptop_of(box, tmp_path / "one") as (one, _),
        laptop_of(box, tmp_path / "two") as (two, found),
    ):
        chats = [(await laptop.chat.new_conversation()).id for laptop in (one, two)]
        text = notes(150)
        mine = receipt_of(await one.chat.send(chats[0], text, SHORT))
        assert chats[0] in await memory_on(box)
        forecast = await two.chat.forecasts.forecast_message(chats[1], text)
        assert forecast is not None
        assert forecast.source is Source.COLD
        theirs = receipt_of(await two.chat.send(chats[1], text, SHORT))
        assert theirs.source is Source.COLD
        assert theirs.cached_tokens < 0.1 * theirs.prompt_tokens
        assert mine.prompt_tokens == theirs.prompt_tokens
        devices = zip((one, two), chats, strict=True)
        for reply in await asyncio.gather(
            *(laptop.chat.send(chat, "And the first?", SHORT) for laptop, chat in devices)
        ):
            assert receipt_of(reply).cached_tokens > 0.9 * theirs.prompt_tokens
        await memory_on(box)
        device, other = box.api_server.sharing.devices
        headers = {"authorization": f"Bearer {found.key}"}
        async with httpx2.AsyncClient(
            base_url=found.url, verify=pinned_context(found.certificate), headers=headers, timeout=60, trust_env=False
        ) as client:
            listed = (await client.get("/kvchat/chats")).json()["chats"]
            assert [entry["chat"] for entry in listed] == [chats[1]]
            for name in (chats[0], device.id, f"..{device.id}", f"../@{device.id}/{chats[0]}", f"@{device.id}"):
                for path in (name, name.replace("/", "%2f")):
                    for method, content in (("DELETE", None), ("PUT", {"keep": "always"})):
                        answer = await client.request(method, f"/kvchat/chats/{path}", json=content)
                        assert answer.status_code in (200, 307, 400, 404, 405), "200: a chat of its own by this name"
            requests = (await client.get("/kvchat/requests")).json()
            assert {entry["program"] for entry in requests["last"]} == {other.program}
            assert all(slot["owner"] == other.program for slot in requests["slots"])
        usage = {entry.conversation_id: entry for entry in (await box.save_points.usage()).conversations}
        ours = usage[program_owner(device.program, chats[0])]
        assert ours.tokens >= mine.prompt_tokens, "the other device deleted nothing"
        assert not ours.pinned
        again = receipt_of(await one.chat.send(chats[0], "And the second?", SHORT))
        assert again.cached_tokens > 0.9 * again.prompt_tokens


async def test_device_removed_in_mid_reply(tmp_path: Path) -> None:
    async with (
        shared_box(tmp_path) as box,
        laptop_of(box, tmp_path / "one") as (one, _),
        laptop_of(box, tmp_path / "two") as (two, _found),
    ):
        first, second = one.chat, two.chat
        chats = [(await chat.new_conversation()).id for chat in (first, second)]
        begun = first_token(one)
        sending = first.send(chats[0], notes(50), LONG)
        async with asyncio.timeout(120):
            await begun.wait()
            sharing = box.api_server.sharing
            sharing.remove(sharing.devices[0].id)
            await sending
        half = (await first.messages(chats[0]))[-1]
        assert half.state is MessageState.INTERRUPTED
        assert half.content
        assert await first.send(chats[0], "Hello?", SHORT) is None, "its key is refused"
        assert receipt_of(await second.send(chats[1], notes(20), SHORT)).prompt_tokens
        (left,) = sharing.devices
        await second.recently_deleted.purge_chat(chats[1])
        async with asyncio.timeout(60):
            while program_owner(left.program, chats[1]) in await owners_on(box):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
