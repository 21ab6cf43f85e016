"""A laptop that uses the model of a box over a slow and lossy network, compared with the box's own chats."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from kvchat.cli.bench import BenchReply, BenchSetup
from kvchat.cli.terminal import print_err
from kvchat.engine.api.errors import EngineError
from kvchat.engine.process.plan import free_port
from kvchat.engine_host.paired_computer import PairedComputerStore, pair
from kvchat.runtime import open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.bench.link import BOX_ADDRESS, Link, joined_namespaces
from tests.e2e.home import Home, engine_arguments, notes
from tests.e2e.serving import KVCHAT, serving
from tests.e2e.sharing import shown_code
from tests.models import tiny_model

ROUND_TRIPS_MS, LOSS = (5.0, 200.0), 0.01  # of the links; the loss is that of each direction
TOKENS, TOKENS_PER_NOTE = 6000, 16.7
RESTARTS = 5  # of which the fastest counts: the others wait for lost packets or other programs
REPLY_TOKENS = 16
_QUIET_S = 3.0  # before each message
ALLOWED_ROUND_TRIPS = 3  # connection, TLS and request
_SETTINGS: dict[str, Any] = {"context_size": 12_288, "slots": 1, "free_floor_bytes": 0, "model_titles": False}


async def measure(tokens: int = TOKENS) -> dict[str, Any]:
    """Measure a chat after restarts of kvchat, first without a network and then from the laptop over each link.

    Times are those to the first token in ms. Raises KvchatError.
    """
    question = notes(round(tokens / TOKENS_PER_NOTE))
    with joined_namespaces() as link, tempfile.TemporaryDirectory(prefix="kvchat-bench-") as folder:
        local = await _measure_local(Path(folder) / "local", question)
        links = []
        for number, round_trip_ms in enumerate(ROUND_TRIPS_MS):
            with link.up(round_trip_ms / 1000, LOSS):
                figures = await _measure_link(Path(folder) / str(number), link, question)
            allowed_ms = min(local["restarted_ttft_ms"]) + ALLOWED_ROUND_TRIPS * round_trip_ms
            figures |= {"restarted_ratio": min(figures["restarted_ttft_ms"]) / allowed_ms}
            links.append({"round_trip_ms": round_trip_ms, "loss": LOSS} | figures)
    return {"local": local, "links": links}


async def _measure_local(folder: Path, question: str) -> dict[str, Any]:
    engine = engine_arguments("llama-server")[1]
    settings = Settings(model_path=str(tiny_model("llama")), engine_path=engine, **_SETTINGS)
    async with _kvchat(Home(folder), settings) as kvchat:
        print_err("Without a network…")
        chat = (await kvchat.runtime.chat.new_conversation()).id
        replies = [await _ask(kvchat, chat, question), await _ask(kvchat, chat, "And the first?")]
        for number in range(RESTARTS):
            await kvchat.runtime.close()
            Home(folder).make_prefill_expensive()
            await kvchat.restart()
            replies.append(await _ask(kvchat, chat, f"And number {number + 2}?"))
        return _figures(replies)


async def _measure_link(folder: Path, link: Link, question: str) -> dict[str, Any]:
    box, laptop = Home(folder / "box"), Home(folder / "laptop")
    engine = engine_arguments("llama-server")[1]
    box.write_settings(model_path=str(tiny_model("llama")), engine_path=engine, **_SETTINGS)
    port = free_port("127.0.0.1")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_sharing(box, link, port))
        print_err("Pairing…")
        with shown_code(box) as code:
            began = time.perf_counter()
            paired = await pair(f"{BOX_ADDRESS}:{port}", code)
            pair_ms = 1000 * (time.perf_counter() - began)
        PairedComputerStore(resolve_paths({"KVCHAT_HOME": str(laptop.folder)}).ensure()).save(paired)
        async with _kvchat(laptop, Settings(engine_url=paired.url, **_SETTINGS)) as kvchat:
            chat = (await kvchat.runtime.chat.new_conversation()).id
            replies = [await _ask(kvchat, chat, question), await _ask(kvchat, chat, "And the first?")]
            for number in range(RESTARTS):
                print_err(f"Restart {number + 1} of {RESTARTS}…")
                stack.close()
                box.make_prefill_expensive()
                stack.enter_context(_sharing(box, link, port))
                replies.append(await _ask(kvchat, chat, f"And number {number + 2}?"))
            return {"pair_ms": pair_ms} | _figures(replies)


@contextlib.contextmanager
def _sharing(box: Home, link: Link, port: int) -> Iterator[None]:
    program = ("ip", "netns", "exec", link.box, *KVCHAT)
    with serving(box, "--share", "--share-port", str(port), port=free_port("127.0.0.1"), program=program):
        yield


@contextlib.asynccontextmanager
async def _kvchat(home: Home, settings: Settings) -> AsyncIterator[BenchSetup]:
    paths = resolve_paths({"KVCHAT_HOME": str(home.folder)}).ensure()
    kvchat = BenchSetup(paths, settings, await open_runtime(paths, settings), REPLY_TOKENS)
    try:
        yield kvchat
    finally:
        await kvchat.runtime.close()


async def _ask(kvchat: BenchSetup, chat: str, text: str) -> BenchReply:
    """Send a message once the model is loaded and nothing else is going on."""
    while True:
        with contextlib.suppress(EngineError):
            await (await kvchat.runtime.engine.ready()).engine.facts()
            break
        await asyncio.sleep(0.2)
    await asyncio.sleep(_QUIET_S)
    return await kvchat.ask(chat, text)


def _figures(replies: list[BenchReply]) -> dict[str, Any]:
    cold, hot, *restarted = (reply.receipt for reply in replies)
    return {
        "prompt_tokens": cold.prompt_tokens,
        "cold_ttft_ms": cold.ttft_ms,
        "hot_ttft_ms": hot.ttft_ms,
        "restarted_ttft_ms": [receipt.ttft_ms for receipt in restarted],
        "restarted_rest_ms": [receipt.first_token_ms for receipt in restarted],  # without restoring and processing
        "hot_reused": hot.cached_tokens / hot.prompt_tokens,
        "restarted_reused": min(receipt.cached_tokens / receipt.prompt_tokens for receipt in restarted),
        "sources": [reply.receipt.source for reply in replies],
    }
