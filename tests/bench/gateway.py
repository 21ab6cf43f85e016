"""What other programs wait for at the API server, beside the engine itself and hearth-llm.

Two clients with prompts of an agent's shape, each its own. The first has ten turns, of which some come after a restart
of everything; then both take turns, in one slot and in two. An engine that keeps nothing reads all of it again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import THINGS, BenchFailed, bench_home
from kvchat.cli.terminal import columns, remark
from kvchat.system.paths import resolve_paths
from kvchat.words.wording import duration, size
from tests.bench.doors import Address, Answer, Body, Door, Ours, others

REPLY_TOKENS = 16
TURNS = 10  # of the first client alone
RESTARTS = 3  # among them
ALTERNATIONS = 3  # of each client, in each number of slots
PAIRS = 15  # of a request through the door and directly
ROOM = 2500  # tokens for what is said after the prompts, of both
TOOLS = ("bash", "edit", "glob", "grep", "list", "read", "task", "fetch", "write")


@dataclass(frozen=True)
class DoorFigures:
    """What one of them brought. Times to the first word in ms, medians of all rounds; None: it has no such thing."""

    name: str
    cold_ttft_ms: float
    hot_ttft_ms: float
    restarted_ttft_ms: float  # after a restart of the engine and of all before it
    restarted_ratio: float  # to the hot one
    restarted_cached: int  # tokens that did not have to be read then, the least of the rounds
    restarted_read: int  # tokens that had to, the most of the rounds
    alternating_ttft_ms: float  # two clients, one slot
    alternating_ratio: float
    two_slots_ttft_ms: float | None  # two clients, two slots
    two_slots_ratio: float | None
    killed_ttft_ms: float  # the engine was killed in the middle of the very reply
    killed_ratio: float
    disk_bytes: int  # after ten turns
    disk_ratio: float  # by the rows of the conversation's tokens
    overhead_ms: float | None  # of a hot request, by the same engine asked directly: medians of pairs
    first_byte_overhead_ms: float | None  # the same of a stream's first byte
    replies_agree: bool  # the greedy replies are those of the engine asked directly


@dataclass(frozen=True)
class GatewayFigures:
    """One run. `--json` prints these names as keys."""

    prompt_tokens: int  # of the first client, at its tenth turn
    unique_rows_bytes: int  # of its tokens by then
    doors: tuple[DoorFigures, ...]


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
    door: Door
    one: _Client
    other: _Client
    texts: list[str] = field(default_factory=list)

    async def figures(self, row_bytes: float) -> tuple[DoorFigures, Answer]:
        """All of them, and the tenth turn. `row_bytes`: of a token."""
        door = self.door
        remark(f"{door.name}: {TURNS} turns …")
        where = await door.open(1)
        cold = await self._turn(self.one, where)
        hot, restarted = [], []
        for _ in range(RESTARTS if door.keeps else 1):
            hot.append(await self._turn(self.one, where))
            where = await door.open(1)
            restarted.append(await self._turn(self.one, where))
        while len(self.one.said) < 2 * TURNS:
            hot.append(await self._turn(self.one, where))
        last, disk = hot[-1], await door.disk_bytes()
        overhead, first_byte = await self._overheads(where)

        remark(f"{door.name}: two clients …")
        await self._turn(self.other, where)
        turns = (self.one, self.other) * ALTERNATIONS
        alternating = [await self._turn(client, where) for client in turns]
        remark(f"{door.name}: killed …")
        where, killed = await self._killed(where)
        in_two: list[Answer] = []
        if door.most_slots > 1:
            await self._turn(self.other, where)
            in_two = [await self._turn(client, where) for client in turns]
        usual = median(one.ttft_ms for one in hot)
        return DoorFigures(
            name=door.name,
            cold_ttft_ms=cold.ttft_ms,
            hot_ttft_ms=usual,
            restarted_ttft_ms=_ttft(restarted),
            restarted_ratio=_ttft(restarted) / usual,
            restarted_cached=min(one.cached for one in restarted),
            restarted_read=max(one.prompt - one.cached for one in restarted),
            alternating_ttft_ms=_ttft(alternating),
            alternating_ratio=_ttft(alternating) / usual,
            two_slots_ttft_ms=_ttft(in_two) if in_two else None,
            two_slots_ratio=_ttft(in_two) / usual if in_two else None,
            killed_ttft_ms=killed.ttft_ms,
            killed_ratio=killed.ttft_ms / usual,
            disk_bytes=disk,
            disk_ratio=disk / (row_bytes * (last.prompt + last.predicted)),
            overhead_ms=overhead,
            first_byte_overhead_ms=first_byte,
            replies_agree=True,
        ), last

    async def _turn(self, client: _Client, where: Address) -> Answer:
        answer = await client.turn(where)
        await self.door.idle()
        self.texts.append(answer.text)
        return answer

    async def _killed(self, where: Address) -> tuple[Address, Answer]:
        """The first client's request, sent once more when the engine has died in the middle of its reply."""
        self.one.asks()
        with await where.begin(self.one.body(tokens=500)):
            await self.door.kill()
        where = await self.door.open(self.door.most_slots)
        answer = await self.one.again(where)
        await self.door.idle()
        self.texts.append(answer.text)
        return where, answer

    async def _overheads(self, where: Address) -> tuple[float | None, float | None]:
        """By how much a hot request, and a stream's first byte, come later than from the engine behind the door."""
        direct = await self.door.direct()
        if direct is None:
            return None, None
        self.one.asks()
        whole, first = [], []
        for stream in (False, True):
            body = self.one.body(tokens=1, stream=stream)
            for number in range(PAIRS + 1):
                through = await where.ask(body)
                await self.door.idle()
                beside = await direct.ask(body | {"id_slot": 0})
                if number and stream:  # the first of them reads the question
                    first.append(through.first_byte_ms - beside.first_byte_ms)
                elif number:
                    whole.append(through.total_ms - beside.total_ms)
        self.one.said.pop()
        return median(whole), median(first)


async def measure(options: BenchOptions) -> GatewayFigures:
    """kvchat's door, then the engine asked directly, then hearth if there is one. Raises KvchatError."""
    runs: list[_Run] = []
    async with bench_home(options, context_size=2 * options.tokens + ROOM, reply_tokens=REPLY_TOKENS) as home:
        prompts = [await home.notes(options.tokens - 1000, first) for first in (1, 5000)]
        choice, row = home.runtime.engine.choice, (await home.runtime.engine.ready()).kv_bytes_per_token
        if choice is None:
            raise BenchFailed("There is no engine of kvchat's own", "An engine is started again and again here.")
        runs.append(_run(Ours(home), prompts))
        ours, last = await runs[0].figures(row)
    paths = resolve_paths()
    figures = [ours]
    async with others(choice.location, choice.plan, paths.cache) as doors:
        for door in doors:
            runs.append(_run(door, prompts))
            figures.append((await runs[-1].figures(row))[0])
            await door.close()
    said = runs[1].texts
    figures = [
        replace(one, replies_agree=all(a == b for a, b in zip(run.texts, said, strict=False)))
        for one, run in zip(figures, runs, strict=True)
    ]
    return GatewayFigures(last.prompt, round(row * (last.prompt + last.predicted)), tuple(figures))


def _run(door: Door, prompts: Sequence[str]) -> _Run:
    tools = json.dumps(_tools(), indent=1)
    one, other = [_Client(f"You are an agent.\n{tools}\n{notes}") for notes in prompts]
    return _Run(door, one, other)


def _tools() -> list[Body]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    told = [{"name": name, "description": f"Use {name} for what its name says."} for name in TOOLS]
    return [{"type": "function", "function": one | {"parameters": parameters}} for one in told]


def _ttft(answers: Sequence[Answer]) -> float:
    return median(one.ttft_ms for one in answers)


def lines(result: GatewayFigures) -> list[str]:
    first = (
        f"Two programs, prompts of about {result.prompt_tokens:,} tokens; their rows: {size(result.unique_rows_bytes)}"
    )
    names = ["", "time to the first word, cold", "  hot", "  after a restart", "  two clients, one slot"]
    names += ["  two clients, two slots", "  killed in the middle of a reply", f"on disk after {TURNS} turns"]
    names += ["more than the engine asked directly", "  first byte of a stream", "same greedy replies as directly"]
    return [first, *columns(list(zip(names, *map(_column, result.doors), strict=True)))]


def _column(one: DoorFigures) -> tuple[str, ...]:
    return (
        one.name,
        duration(one.cold_ttft_ms),
        duration(one.hot_ttft_ms),
        _waited(one.restarted_ttft_ms, one.restarted_ratio),
        _waited(one.alternating_ttft_ms, one.alternating_ratio),
        _waited(one.two_slots_ttft_ms, one.two_slots_ratio),
        _waited(one.killed_ttft_ms, one.killed_ratio),
        f"{size(one.disk_bytes)} ({one.disk_ratio:.2f} x rows)",
        _more(one.overhead_ms),
        _more(one.first_byte_overhead_ms),
        "yes" if one.replies_agree else "no",
    )


def _waited(ms: float | None, ratio: float | None) -> str:
    if ms is None:
        return "—"
    return duration(ms) + (f" ({ratio:.2f} x hot)" if ratio is not None else "")


def _more(ms: float | None) -> str:
    return "—" if ms is None else f"{ms:+.1f} ms"
