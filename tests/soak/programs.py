"""Eight programs at the API server beside a chat of the window, while engines are killed and save points pruned.

Clients also leave during their requests. Every greedy reply must equal a cold engine's, the chat must be answered
throughout, and nothing may be left.
"""

import asyncio
import os
import pickle
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import psutil

from kvchat.chat.record.messages import MessageState
from kvchat.engine.api.wire import Sampling
from kvchat.gateway.dialects.request import GENERATING_PATHS, ParsedRequest
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.api_dialects import DIALECTS, Body, answer_text, request_body
from tests.e2e.home import notes
from tests.soak.crowd import RUDE, crowd
from tests.soak.person import cold_engine
from tests.soak.turns import Usage, UsageGrew, measure_usage

CLIENTS, CONTEXT, TOKENS = 8, 8192, 8
GREEDY = Sampling(max_tokens=TOKENS, temperature=0.0, seed=1)
TROUBLE_INTERVAL_S = 15.0  # on average
CHAT_INTERVAL_S = 2.0
MEASURE_INTERVAL_S = 10.0
CROWD = 20  # connections per second: 12,000 at full length
MAX_MEMORY_GROWTH, MAX_THREAD_GROWTH = 8_000_000, 4  # bytes, threads
# Descriptors that stay: the store's list in each thread asyncio may use, and what is staged in memory.
LASTING_DESCRIPTORS = 2 * min(32, (os.cpu_count() or 1) + 4) + 4
TIE = 0.01  # difference of logarithms of two tokens' probabilities
MAX_TURNS = 6  # of a client's conversation


@dataclass(frozen=True)
class Exchange:
    path: str
    body: Body
    reply: str


@dataclass
class Soak:
    runtime: Runtime
    url: str
    dice: random.Random
    exchanges: list[bytes] = field(default_factory=list)  # compressed: thousands must not look like a leak
    counts: Counter[str] = field(default_factory=Counter)  # what happened
    longest_wait_s: float = 0.0  # of the window's chat
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_answered_all(self) -> bool:
        return all(self.counts[name] for name in ("window", *DIALECTS))

    async def client(self, number: int) -> None:
        """Hold conversations in all dialects; some clients share the beginning."""
        dice = random.Random(self.dice.random())
        async with httpx2.AsyncClient(base_url=self.url, timeout=300, trust_env=False) as http:
            while not self.over.is_set():
                system = "Answer from these notes.\n" + notes(40, start=1000 * (number % 5))
                path, turns = dice.choice(DIALECTS), list[tuple[str, str]]()
                for turn in range(dice.randint(1, MAX_TURNS)):
                    question = f"Client {number}, question {turn}: how long is bridge {dice.randrange(40)}?"
                    body = request_body(path, question, system=system, turns=turns, max_tokens=TOKENS)
                    reply = await self._ask(http, dice, path, body | {"stream": dice.random() < 0.6})
                    if reply is None or self.over.is_set():
                        break
                    turns.append((question, reply))

    async def _ask(self, http: httpx2.AsyncClient, dice: random.Random, path: str, body: Body) -> str | None:
        """Return the reply; None if there was none or the client left early."""
        leaves = dice.random() < 0.2
        try:
            async with asyncio.timeout(dice.random() * 2 if leaves else 300):
                answer = await http.post(path, json=body)
        except TimeoutError:
            assert leaves, "a request was never answered"
            self.counts["left"] += 1
            return None
        except httpx2.HTTPError:  # the engine died
            self.counts["broken off"] += 1
            return None
        if answer.status_code in (429, 502, 503):
            self.counts[str(answer.status_code)] += 1
            await self._pause(0.5)
            return None
        assert answer.status_code == 200, answer.text
        if (reply := answer_text(answer)) is None:
            self.counts["broken off"] += 1
            return None
        self.counts[path] += 1
        self.exchanges.append(zlib.compress(pickle.dumps(Exchange(path, body, reply))))
        return reply

    async def window(self) -> None:
        """Ask in a chat of the window, which is answered whatever else happens."""
        chat = ""
        while not self.over.is_set():
            if self.counts["window"] % 20 == 19 or not chat:
                chat = (await self.runtime.chat.new_conversation("The window's.\n" + notes(30, start=9000))).id
            began = time.monotonic()
            reply = await self.runtime.chat.send(chat, f"How long is bridge {self.dice.randrange(30)}?", GREEDY)
            self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began)
            is_complete = reply is not None and reply.state in (MessageState.COMPLETE, MessageState.LIMITED)
            self.counts["window" if is_complete else "window broken off"] += 1
            await self._pause(CHAT_INTERVAL_S)

    async def trouble(self) -> None:
        while not self.over.is_set():
            await self._pause(TROUBLE_INTERVAL_S * (0.5 + self.dice.random()))
            kind = self.dice.choice(("kill", "restart", "prune", "prune", "forget"))
            self.counts[kind] += 1
            match kind:
                case "kill":
                    if (pid := self.runtime.engine.engine_pid) is not None:
                        with suppress(psutil.NoSuchProcess):
                            psutil.Process(pid).kill()
                case "restart":
                    await self.runtime.restart_engine()
                case "prune":
                    usage = await self.runtime.save_points.usage()
                    plan = await self.runtime.save_points.plan_prune(int(usage.physical_bytes * self.dice.random()))
                    await self.runtime.save_points.prune(plan)
                case _:
                    await self.runtime.save_points.delete(None)

    async def rude(self) -> None:
        host, port = self.url.removeprefix("http://").split(":")
        while not self.over.is_set():
            for data in RUDE:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.write(data)
                    await self._pause(self.dice.random())
                    writer.transport.abort()
                    self.counts["rude"] += 1

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.over.wait()


async def run(
    folder: Path, model: Path, engine: str | None, seconds: int, seed: int, report: Callable[[str], None] = print
) -> Counter[str]:
    """Run for `seconds`, then until all requests are answered; return counts of outcomes.

    Raises AssertionError if a reply differs from a cold engine's, or something is left.
    """
    settings = Settings(
        model_path=str(model), engine_path=engine, context_size=CONTEXT, free_floor_bytes=0, model_titles=False,
        kv_type="f32", slots=2,
    )  # fmt: skip
    runtime = await open_runtime(resolve_paths({"KVCHAT_HOME": str(folder / "home")}), settings)
    try:
        await runtime.engine.ready()
        before, usages = measure_usage(runtime, 0), list[Usage]()
        soak = Soak(runtime, await runtime.api_server.open("127.0.0.1", 0, {}), random.Random(seed))
        end = time.monotonic() + seconds
        work = [*(soak.client(number) for number in range(CLIENTS)), soak.window(), soak.trouble(), soak.rude()]
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        try:
            while (time.monotonic() < end or not soak.has_answered_all) and not any(task.done() for task in tasks):
                await asyncio.sleep(min(MEASURE_INTERVAL_S, max(0.1, end - time.monotonic())))
                usages.append(measure_usage(runtime, len(soak.exchanges)))
                report(f"{usages[-1]}, {dict(soak.counts)}")
            soak.over.set()
            await asyncio.gather(*tasks)
            soak.counts += await crowd(soak.url, seconds * CROWD)
        finally:
            for task in tasks:
                task.cancel()
        await runtime.api_server.wait_until_idle()
        await runtime.chat.wait_until_idle()
        gateway = runtime.api_server.gateway
        while _has_connections(gateway.url):  # noqa: ASYNC110 - broken ones close a moment later
            await asyncio.sleep(0.1)
        assert not gateway.log.active
        assert gateway.runner.active_count == 0
        _check_usage(usages, before, measure_usage(runtime, len(soak.exchanges)))
    finally:
        await runtime.close()
    differences = await _compare(folder, model, engine, soak.exchanges)
    report(f"{dict(soak.counts)}; the window waited {soak.longest_wait_s:.1f} s at most")
    assert not differences, f"{len(differences)} of {len(soak.exchanges)} replies differ: {differences[:3]}"
    return soak.counts


def _check_usage(usages: list[Usage], before: Usage, after: Usage) -> None:
    """Compare descriptors after all have left with those before, and the last third with the second."""
    faults = []
    if after.descriptors > before.descriptors + LASTING_DESCRIPTORS:
        faults.append(f"descriptors: {before} … {after}")
    third = len(usages) // 3
    if third >= 4:
        early, late = usages[third : 2 * third], usages[-third:]
        for name, limit in (("memory", MAX_MEMORY_GROWTH), ("threads", MAX_THREAD_GROWTH)):
            first, last = (median(getattr(usage, name) for usage in part) for part in (early, late))
            if last - first > limit:
                faults.append(f"{name}: {early[0]} … {late[-1]}")
    if faults:
        raise UsageGrew(", ".join(faults))


def _has_connections(url: str | None) -> bool:
    port = int(str(url).rpartition(":")[2])
    connections = psutil.Process().net_connections(kind="tcp4")
    open_ones = [connection for connection in connections if connection.status != psutil.CONN_LISTEN]
    return any(port in (connection.laddr.port, *connection.raddr[1:]) for connection in open_ones)


async def _compare(folder: Path, model: Path, engine: str | None, exchanges: list[bytes]) -> list[str]:
    differences = []
    async with cold_engine(folder, model, engine, CONTEXT) as client:
        headers = {"authorization": f"Bearer {client.key}"}
        limits = httpx2.Limits(max_keepalive_connections=0)  # the engine closes a connection after a stream
        async with httpx2.AsyncClient(
            base_url=client.base_url, headers=headers, timeout=300, trust_env=False, limits=limits
        ) as http:
            for packed in exchanges:
                exchange: Exchange = pickle.loads(zlib.decompress(packed))
                await client.erase_slot()
                reply = answer_text(await http.post(exchange.path, json=exchange.body | {"id_slot": 0}))
                if reply != exchange.reply and (lead := await _lead(http, exchange)) > TIE:
                    differences.append(f"{exchange.path}: {exchange.reply!r} instead of {reply!r}, by {lead}")
    return differences


async def _lead(http: httpx2.AsyncClient, exchange: Exchange) -> float:
    """Return the log-probability lead of the cold engine's first different token: parallel slots round differently."""
    prompt = exchange.body.get("prompt")
    if prompt is None:
        chat = ParsedRequest(GENERATING_PATHS[exchange.path], b"", exchange.body).chat
        prompt = (await http.post("/apply-template", json=chat)).json()["prompt"]
    body: Body = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "n_probs": 200, "id_slot": 0}
    answer: Any = (await http.post("/completion", json=body | {"cache_prompt": False})).json()
    text = ""
    for token in answer["completion_probabilities"]:
        if not exchange.reply.startswith(text + token["token"]):
            others = [other for other in token["top_logprobs"] if exchange.reply.startswith(text + other["token"])]
            return min((token["logprob"] - other["logprob"] for other in others), default=1.0)
        text += token["token"]
    return 1.0
