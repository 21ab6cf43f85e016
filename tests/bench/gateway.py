"""What other programs wait for at the API server, beside the engine itself and hearth-llm.

Two clients with prompts of an agent's shape, each its own. The first has ten turns, of which some come after a restart
of everything; then both take turns, in one slot and in two. An engine that keeps nothing reads all of it again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import THINGS, BenchFailed, bench_home
from kvchat.cli.terminal import print_err
from kvchat.system.paths import resolve_paths
from tests.bench.servers import Address, Answer, Body, Ours, Server, others

REPLY_TOKENS = 16
TURNS = 10  # of the first client alone
RESTARTS = 3  # among them
ALTERNATIONS = 3  # of each client, in each number of slots
PAIRS = 15  # of a request through the server and directly
ROOM = 2500  # tokens for what is said after the prompts, of both
TOOLS = ("bash", "edit", "glob", "grep", "list", "read", "task", "fetch", "write")


@dataclass
class _Client:
    system: str
    said: list[Body] = field(default_factory=list)

    def body(self, tokens: int = REPLY_TOKENS, *, stream: bool = True) -> Body:
        messages = [{"role": "system", "content": self.system}, *self.said]
        greedy = {"max_tokens": tokens, "temperature": 0, "seed": 1}
        return {"messages": messages, "tools": _tools(), "stream": stream, **greedy}

    async def turn(self, where: Address) -> Answer:
        self.asks()
        return await self.again(where)

    def asks(self) -> None:
        number = len(self.said)
        words = f"Look for the {THINGS[number % len(THINGS)]} in note {number + 1}, and say what is written there."
        self.said.append({"role": "user", "content": words})

    async def again(self, where: Address) -> Answer:
        answer = await where.ask(self.body())
        self.said.append({"role": "assistant", "content": answer.text})
        return answer


@dataclass
class _Run:
    server: Server
    one: _Client
    other: _Client
    texts: list[str] = field(default_factory=list)

    async def figures(self, row_bytes: float) -> tuple[dict[str, Any], Answer]:
        """Return all figures and the tenth turn. Times to the first word in ms, medians; ratios are to the hot one.

        None: it has no such thing. `row_bytes`: of a token. `overhead_ms`: of a hot request, over the same engine
        asked directly. `disk_ratio`: by the rows of the conversation's tokens.
        """
        server = self.server
        print_err(f"{server.name}: {TURNS} turns …")
        where = await server.open(1)
        cold = await self._turn(self.one, where)
        hot, restarted = [], []
        for _ in range(RESTARTS if server.keeps else 1):
            hot.append(await self._turn(self.one, where))
            where = await server.open(1)
            restarted.append(await self._turn(self.one, where))
        while len(self.one.said) < 2 * TURNS:
            hot.append(await self._turn(self.one, where))
        last, disk = hot[-1], await server.disk_bytes()
        overhead, first_byte = await self._overheads(where)

        print_err(f"{server.name}: two clients …")
        await self._turn(self.other, where)
        turns = (self.one, self.other) * ALTERNATIONS
        alternating = [await self._turn(client, where) for client in turns]
        print_err(f"{server.name}: killed …")
        where, killed = await self._killed(where)
        in_two: list[Answer] = []
        if server.most_slots > 1:
            await self._turn(self.other, where)
            in_two = [await self._turn(client, where) for client in turns]
        figures: dict[str, Any] = {"name": server.name, "cold_ttft_ms": cold.ttft_ms, "hot_ttft_ms": _ttft(hot)}
        measured = {"restarted": restarted, "alternating": alternating, "two_slots": in_two, "killed": [killed]}
        for name, answers in measured.items():
            ms = _ttft(answers) if answers else None
            figures |= {f"{name}_ttft_ms": ms, f"{name}_ratio": ms and ms / figures["hot_ttft_ms"]}
        return figures | {
            "restarted_cached": min(answer.cached for answer in restarted),
            "restarted_read": max(answer.prompt - answer.cached for answer in restarted),
            "disk_bytes": disk,
            "disk_ratio": disk / (row_bytes * (last.prompt + last.predicted)),
            "overhead_ms": overhead,
            "first_byte_overhead_ms": first_byte,
        }, last

    async def _turn(self, client: _Client, where: Address) -> Answer:
        answer = await client.turn(where)
        await self.server.idle()
        self.texts.append(answer.text)
        return answer

    async def _killed(self, where: Address) -> tuple[Address, Answer]:
        """The first client's request, sent once more when the engine has died in the middle of its reply."""
        self.one.asks()
        with await where.begin(self.one.body(tokens=500)):
            await self.server.kill()
        where = await self.server.open(self.server.most_slots)
        answer = await self.one.again(where)
        await self.server.idle()
        self.texts.append(answer.text)
        return where, answer

    async def _overheads(self, where: Address) -> tuple[float | None, float | None]:
        """By how much a hot request, and a stream's first byte, come later than from the engine behind it."""
        direct = await self.server.direct()
        if direct is None:
            return None, None
        self.one.asks()
        whole, first = [], []
        for stream in (False, True):
            body = self.one.body(tokens=1, stream=stream)
            for number in range(PAIRS + 1):
                through = await where.ask(body)
                await self.server.idle()
                beside = await direct.ask(body | {"id_slot": 0})
                if number and stream:  # the first of them reads the question
                    first.append(through.first_byte_ms - beside.first_byte_ms)
                elif number:
                    whole.append(through.total_ms - beside.total_ms)
        self.one.said.pop()
        return median(whole), median(first)


async def measure(options: BenchOptions) -> dict[str, Any]:
    """Measure kvchat's API server, the engine asked directly, and hearth if there is one. Raises KvchatError.

    `replies_agree`: the greedy replies are those of the engine asked directly.
    """
    runs: list[_Run] = []
    async with bench_home(options, context_size=2 * options.tokens + ROOM, reply_tokens=REPLY_TOKENS) as home:
        prompts = [await home.notes(options.tokens - 1000, first) for first in (1, 5000)]
        choice, row = home.runtime.engine.choice, (await home.runtime.engine.ready()).kv_bytes_per_token
        if choice is None:
            raise BenchFailed("There is no engine of kvchat's own", "An engine is started again and again here.")
        runs.append(_run(Ours(home), prompts))
        ours, last = await runs[0].figures(row)
    figures = [ours]
    async with others(choice.location, choice.plan, resolve_paths().cache) as servers:
        for server in servers:
            runs.append(_run(server, prompts))
            figures.append((await runs[-1].figures(row))[0])
            await server.close()
    for server_figures, run in zip(figures, runs, strict=True):
        server_figures["replies_agree"] = all(map(str.__eq__, run.texts, runs[1].texts))
    rows = round(row * (last.prompt + last.predicted))
    return {"prompt_tokens": last.prompt, "unique_rows_bytes": rows, "servers": figures}


def _run(server: Server, prompts: Sequence[str]) -> _Run:
    tools = json.dumps(_tools(), indent=1)
    one, other = [_Client(f"You are an agent.\n{tools}\n{notes}") for notes in prompts]
    return _Run(server, one, other)


def _tools() -> list[Body]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    told = [{"name": name, "description": f"Use {name} for what its name says."} for name in TOOLS]
    return [{"type": "function", "function": one | {"parameters": parameters}} for one in told]


def _ttft(answers: Sequence[Answer]) -> float:
    return median(answer.ttft_ms for answer in answers)
