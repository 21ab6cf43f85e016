"""Waiting times of programs at the API server, compared with the engine itself and hearth-llm.

Each client has its own agent-like prompt. The first has ten turns, some of them after a restart of everything; then two
alternate, with one slot and with two, and eight share four slots. An engine that keeps nothing processes everything
again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import THINGS, BenchFailed, bench_home
from kvchat.cli.terminal import print_err
from kvchat.system.paths import resolve_paths
from tests.bench.servers import Address, Answer, Body, Ours, Server, other_servers

REPLY_TOKENS = 16
TURNS = 10  # of the first client alone
RESTARTS = 3  # among them
ALTERNATIONS = 3  # of each client, in each number of slots
PROGRAMS, SLOTS = 8, 4  # that share them
PAIRS = 15  # of a request through the server and directly
MESSAGE_TOKENS = 2500  # of the clients after their prompts, in each slot
TOOLS = ("bash", "edit", "glob", "grep", "list", "read", "task", "fetch", "write")


@dataclass
class _Client:
    system: str
    messages: list[Body] = field(default_factory=list)

    def body(self, tokens: int = REPLY_TOKENS, *, stream: bool = True) -> Body:
        messages = [{"role": "system", "content": self.system}, *self.messages]
        greedy = {"max_tokens": tokens, "temperature": 0, "seed": 1}
        return {"messages": messages, "tools": _tools(), "stream": stream, **greedy}

    async def turn(self, address: Address) -> Answer:
        self.add_question()
        return await self.send(address)

    def add_question(self) -> None:
        number = len(self.messages)
        question = f"Look for the {THINGS[number % len(THINGS)]} in note {number + 1}, and say what is written there."
        self.messages.append({"role": "user", "content": question})

    async def send(self, address: Address) -> Answer:
        answer = await address.ask(self.body())
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer


@dataclass
class _Measurement:
    server: Server
    clients: list[_Client]
    texts: list[str] = field(default_factory=list)

    @property
    def first(self) -> _Client:
        return self.clients[0]

    async def figures(self, row_bytes: float) -> tuple[dict[str, Any], Answer]:
        """Return all figures and the tenth turn. Times to the first word in ms, medians; ratios are to the hot one.

        None: does not apply to this server. `row_bytes`: per token. `overhead_ms`: of a hot request, compared with
        asking its engine directly. `disk_ratio`: to the row bytes of the conversation's tokens.
        """
        server = self.server
        print_err(f"{server.name}: {TURNS} turns …")
        address, first, second = await server.open(1), self.first, self.clients[1]
        cold = await self._turn(first, address)
        hot, restarted = [], []
        for _ in range(RESTARTS if server.has_memory else 1):
            hot.append(await self._turn(first, address))
            address = await server.open(1)
            restarted.append(await self._turn(first, address))
        while len(first.messages) < 2 * TURNS:
            hot.append(await self._turn(first, address))
        last, disk = hot[-1], await server.disk_bytes()
        overhead, first_byte = await self._overheads(address)

        print_err(f"{server.name}: two clients …")
        await self._turn(second, address)
        turns = (first, second) * ALTERNATIONS
        alternating = [await self._turn(client, address) for client in turns]
        print_err(f"{server.name}: killed …")
        address, killed = await self._killed(address)
        in_two, in_four, repeated = list[Answer](), list[Answer](), list[Answer]()
        if server.max_slots > 1:
            await self._turn(second, address)
            in_two = [await self._turn(client, address) for client in turns]
            print_err(f"{server.name}: {len(self.clients)} clients in {SLOTS} slots …")
            address = await server.open(SLOTS)
            for client in self.clients:
                await self._turn(client, address)
            for client in self.clients * ALTERNATIONS:
                in_four.append(await self._turn(client, address))
                repeated.append(await self._turn(client, address))
        figures: dict[str, Any] = {"name": server.name, "cold_ttft_ms": cold.ttft_ms, "hot_ttft_ms": _ttft(hot)}
        measured = {"restarted": restarted, "alternating": alternating, "two_slots": in_two, "killed": [killed]}
        for name, answers in measured.items():
            ms = _ttft(answers) if answers else None
            figures |= {f"{name}_ttft_ms": ms, f"{name}_ratio": ms and ms / figures["hot_ttft_ms"]}
        many, beside = (_ttft(in_four), _ttft(repeated)) if in_four else (None, None)
        return figures | {
            "four_slots_ttft_ms": many,
            "four_slots_ratio": many and beside and many / beside,  # to the same client's next turn
            "restarted_cached": min(answer.cached for answer in restarted),
            "restarted_read": max(answer.prompt - answer.cached for answer in restarted),
            "disk_bytes": disk,
            "disk_ratio": disk / (row_bytes * (last.prompt + last.predicted)),
            "overhead_ms": overhead,
            "first_byte_overhead_ms": first_byte,
        }, last

    async def _turn(self, client: _Client, address: Address) -> Answer:
        answer = await client.turn(address)
        await self.server.wait_until_idle()
        self.texts.append(answer.text)
        return answer

    async def _killed(self, address: Address) -> tuple[Address, Answer]:
        """Kill the engine in the middle of the first client's reply; return the answer to the repeated request."""
        self.first.add_question()
        with await address.open_stream(self.first.body(tokens=500)):
            await self.server.kill()
        address = await self.server.open(self.server.max_slots)
        answer = await self.first.send(address)
        await self.server.wait_until_idle()
        self.texts.append(answer.text)
        return address, answer

    async def _overheads(self, address: Address) -> tuple[float | None, float | None]:
        """Return the added ms of a hot request, and of a stream's first byte, compared with the engine itself."""
        direct = await self.server.direct()
        if direct is None:
            return None, None
        self.first.add_question()
        whole, first = [], []
        for stream in (False, True):
            body = self.first.body(tokens=1, stream=stream)
            for number in range(PAIRS + 1):
                through = await address.ask(body)
                await self.server.wait_until_idle()
                beside = await direct.ask(body | {"id_slot": 0})
                if number and stream:  # the first one processes the question
                    first.append(through.first_byte_ms - beside.first_byte_ms)
                elif number:
                    whole.append(through.total_ms - beside.total_ms)
        self.first.messages.pop()
        return median(whole), median(first)


async def measure(options: BenchOptions) -> dict[str, Any]:
    """Measure kvchat's API server, the engine itself, and hearth if installed. Raises KvchatError.

    `replies_agree`: the greedy replies equal those of the engine itself.
    """
    runs: list[_Measurement] = []
    async with bench_home(
        options, context_size=SLOTS * (options.tokens + MESSAGE_TOKENS), reply_tokens=REPLY_TOKENS
    ) as home:
        prompts = [await home.make_notes(options.tokens - 1000, first) for first in range(1, 5000 * PROGRAMS, 5000)]
        choice, row = home.runtime.engine.choice, (await home.runtime.engine.ready()).kv_bytes_per_token
        if choice is None:
            raise BenchFailed("There is no engine of kvchat's own", "An engine is started again and again here.")
        runs.append(_run(Ours(home), prompts))
        ours, last = await runs[0].figures(row)
    figures = [ours]
    async with other_servers(choice.location, choice.plan, resolve_paths().cache) as servers:
        for server in servers:
            runs.append(_run(server, prompts))
            figures.append((await runs[-1].figures(row))[0])
            await server.close()
    for server_figures, run in zip(figures, runs, strict=True):
        server_figures["replies_agree"] = all(map(str.__eq__, run.texts, runs[1].texts))
    rows = round(row * (last.prompt + last.predicted))
    return {"prompt_tokens": last.prompt, "unique_rows_bytes": rows, "servers": figures}


def _run(server: Server, prompts: Sequence[str]) -> _Measurement:
    tools = json.dumps(_tools(), indent=1)
    return _Measurement(server, [_Client(f"You are an agent.\n{tools}\n{notes}") for notes in prompts])


def _tools() -> list[Body]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    told = [{"name": name, "description": f"Use {name} for what its name says."} for name in TOOLS]
    return [{"type": "function", "function": tool | {"parameters": parameters}} for tool in told]


def _ttft(answers: Sequence[Answer]) -> float:
    return median(answer.ttft_ms for answer in answers)
