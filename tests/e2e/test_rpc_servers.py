"""A model on two RPC servers: what each holds, chats restored after a restart, and servers that are lost."""

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.events import ReplyDelta, TurnFailed
from kvchat.chat.record.messages import MessageState
from kvchat.engine.api.wire import Sampling
from kvchat.session.events import Saving
from kvchat.session.proof import Source
from tests.bench.size import write_kv_model
from tests.e2e.home import Home, notes
from tests.e2e.restarts import settings
from tests.e2e.test_faults import Watched
from tests.rpc_engine import RpcServer, rpc_program
from tests.running import opened

pytestmark = pytest.mark.e2e

QUESTION = "Which?"  # short, because the large model has a token per byte
SHORT = Sampling(max_tokens=8, temperature=0.0)


@pytest.fixture
def servers() -> Iterator[tuple[RpcServer, RpcServer]]:
    pair = RpcServer(), RpcServer()
    yield pair
    for server in pair:
        server.kill()


@asynccontextmanager
async def spread(home: Path, model: Path, *servers: RpcServer) -> AsyncIterator[Watched]:
    """Open kvchat with a model on RPC servers."""
    addresses, engine = ",".join(server.address for server in servers), str(rpc_program("llama-server"))
    chosen = replace(settings(model, "embedded"), engine_path=engine, rpc_workers=addresses)
    async with opened(home, chosen) as runtime:
        yield Watched(runtime)


@pytest.mark.parametrize("size", ["20 MB", "320 MB"])
def test_chat_is_restored_onto_both_servers(tmp_path, servers, smollm2, size):
    model = smollm2 if size == "20 MB" else write_kv_model(tmp_path / "kv.gguf")
    home = Home(tmp_path / "home")
    home.write_settings(
        model_path=str(model),
        engine_path=str(rpc_program("llama-server")),
        rpc_workers=" ".join(server.address for server in servers),
        context_size=4096,
        free_floor_bytes=0,
    )
    cold = home.ask("--new", notes(60))
    untouched = home.copy(tmp_path / "without save points")
    shutil.rmtree(untouched.kept.folder)
    restored = home.ask("--chat", cold["chat_id"], QUESTION)
    receipt = restored["receipt"]
    assert receipt["source"] == "disk", receipt
    assert receipt["cached_tokens"] >= 0.98 * receipt["prompt_tokens"]
    from_scratch = untouched.ask("--chat", cold["chat_id"], QUESTION)
    assert (from_scratch["receipt"]["source"], from_scratch["reply"]) == ("cold", restored["reply"])


async def test_lost_servers_are_named_and_the_chat_continues(tmp_path, servers, smollm2):
    first, second = servers
    async with spread(tmp_path / "home", smollm2, *servers) as app:
        chat = (await app.runtime.chat.new_conversation()).id
        assert await app.send(chat, notes(60), SHORT) is not None
        uses = {use.name: use for use in app.runtime.engine.memory_uses}
        assert list(uses) == [first.address, second.address, "System memory"]
        assert all(uses[server.address].weights > 0 < uses[server.address].kv for server in servers)
        capacity = await app.runtime.engine.capacity()  # without a query, which busy servers would not answer
        assert [device.is_remote for device in capacity.memory.devices] == [True, True]

        deltas = len(app.of(ReplyDelta))
        app.hook = lambda event: second.kill() if len(app.of(ReplyDelta)) > deltas + 2 else None
        assert await app.send(chat, "Count to a hundred in words.") is None
        app.hook = lambda event: None
        failure = app.of(TurnFailed)[-1]
        assert isinstance(failure, TurnFailed)
        assert second.address in str(failure.error)
        assert first.address not in str(failure.error)
        partial = (await app.runtime.chat.messages(chat))[-1]
        assert partial.state is MessageState.INTERRUPTED
        assert partial.content

        assert await app.send(chat, "And now?", SHORT) is None, "the server is still away"
        failure = app.of(TurnFailed)[-1]
        assert isinstance(failure, TurnFailed)
        assert second.address in str(failure.error)
        second.start()
        again = await app.runtime.chat.retry(chat, SHORT)
        await app.runtime.chat.wait_until_idle()
        assert again is not None
        assert again.receipt is not None
        assert again.receipt.source is Source.WARM, again.receipt

        app.hook = lambda event: second.kill() if isinstance(event, Saving) else None
        assert await app.send(chat, "Thank you.", SHORT) is not None, "only its save is lost"
        app.hook = lambda event: None
        second.start()
        first.kill()  # between two turns
        first.start()
        after = await app.send(chat, "Goodbye.", SHORT)
        assert after is not None
        assert after.receipt is not None
        assert after.receipt.source in (Source.WARM, Source.DISK)
