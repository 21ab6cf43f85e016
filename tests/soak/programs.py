"""Eight programs at the API server, that come and go as they like, beside a chat of the window's own.

The engine is killed and started anew, what is kept is pruned, clients leave in the middle of what they asked. Every
reply is the one a cold engine gives, greedily, to the same request; the chat is answered throughout; nothing is left.
"""

from __future__ import annotations

import asyncio
import json
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
from kvchat.gateway.dialects.request import GENERATING, ParsedRequest
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.e2e.home import notes
from tests.soak.crowd import RUDE, crowd
from tests.soak.person import cold_engine
from tests.soak.turns import Grew, Look, look

CLIENTS, CONTEXT, TOKENS = 8, 8192, 8
GREEDY = Sampling(max_tokens=TOKENS, temperature=0.0, seed=1)
TROUBLE_S = 15.0  # between two troubles, at most twice that
CHAT_S = 2.0  # between two questions of the window's
LOOK_S = 10.0
CROWD = 20  # connections for each second: 12,000 at full length
GROWTH, SOME = 8_000_000, 4  # bytes of memory in minutes; descriptors or threads
# Descriptors that stay: the store's list, of each thread that asyncio may have work; what is kept ready in memory.
USED = 2 * min(32, (os.cpu_count() or 1) + 4) + 4
TIE = 0.01  # between the logarithms of two words' probabilities
TURNS = 6  # of a client's conversation before it begins another
Body = dict[str, Any]


@dataclass(frozen=True)
class Said:
    path: str
    body: Body
    words: str


@dataclass
class Soak:
    runtime: Runtime
    url: str
    dice: random.Random
    said: list[bytes] = field(default_factory=list)  # `Said`, packed: thousands must not look like something that grows
    happened: Counter[str] = field(default_factory=Counter)
    longest_wait_s: float = 0.0  # of the window's chat
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def all_heard(self) -> bool:
        return all(self.happened[one] for one in ("window", *DIALECTS))

    async def client(self, number: int) -> None:
        """A program: some go on from the same beginning, and each speaks all dialects in turn."""
        dice = random.Random(self.dice.random())
        async with httpx2.AsyncClient(base_url=self.url, timeout=300, trust_env=False) as http:
            while not self.over.is_set():
                system = "Answer from these notes.\n" + notes(40, start=1000 * (number % 5))
                path, turns = dice.choice(list(DIALECTS)), list[tuple[str, str]]()
                for turn in range(dice.randint(1, TURNS)):
                    words = f"Client {number}, question {turn}: how long is bridge {dice.randrange(40)}?"
                    body = DIALECTS[path](system, turns, words) | {"stream": dice.random() < 0.6}
                    reply = await self._asked(http, dice, path, body)
                    if reply is None or self.over.is_set():
                        break
                    turns.append((words, reply))

    async def _asked(self, http: httpx2.AsyncClient, dice: random.Random, path: str, body: Body) -> str | None:
        """The words of the whole answer; None where there was none, or the client has left before its end."""
        leaves = dice.random() < 0.2
        try:
            async with asyncio.timeout(dice.random() * 2 if leaves else 300):
                answer = await http.post(path, json=body)
        except TimeoutError:
            assert leaves, "a request was never answered"
            self.happened["left"] += 1
            return None
        except httpx2.HTTPError:  # the engine died in the middle of it
            self.happened["broken off"] += 1
            return None
        if answer.status_code in (429, 502, 503):
            self.happened[str(answer.status_code)] += 1
            await self._pause(0.5)
            return None
        assert answer.status_code == 200, answer.text
        words = _heard(body, answer)
        if words is None:
            self.happened["broken off"] += 1
            return None
        self.happened[path] += 1
        self.said.append(zlib.compress(pickle.dumps(Said(path, body, words))))
        return words

    async def window(self) -> None:
        """The chat of whoever sits there; a question of theirs is answered, whatever else goes on."""
        chat = (await self.runtime.chat.new_conversation("The window's.\n" + notes(30, start=9000))).id
        while not self.over.is_set():
            began = time.monotonic()
            reply = await self.runtime.chat.send(chat, f"How long is bridge {self.dice.randrange(30)}?", GREEDY)
            self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began)
            if reply is not None and reply.state in (MessageState.COMPLETE, MessageState.LIMITED):
                self.happened["window"] += 1
            else:
                self.happened["window broken off"] += 1
            await self._pause(CHAT_S)
            if self.happened["window"] % 20 == 19:
                chat = (await self.runtime.chat.new_conversation("The window's.\n" + notes(30, start=9000))).id

    async def trouble(self) -> None:
        while not self.over.is_set():
            await self._pause(TROUBLE_S * (0.5 + self.dice.random()))
            kind = self.dice.choice(("kill", "restart", "prune", "prune", "forget"))
            self.happened[kind] += 1
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
            for bytes_said in RUDE:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.write(bytes_said)
                    await self._pause(self.dice.random())
                    writer.transport.abort()
                    self.happened["rude"] += 1

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.over.wait()


def _chat(system: str, turns: list[tuple[str, str]], words: str) -> Body:
    told = [{"role": "system", "content": system}, *_alternating(turns, words)]
    return {"messages": told, "max_tokens": TOKENS, "temperature": 0}


def _messages(system: str, turns: list[tuple[str, str]], words: str) -> Body:
    return {"system": system, "messages": _alternating(turns, words), "max_tokens": TOKENS, "temperature": 0}


def _responses(system: str, turns: list[tuple[str, str]], words: str) -> Body:
    kinds = {"user": "input_text", "assistant": "output_text"}
    said = [
        {"type": "message", "role": one["role"], "content": [{"type": kinds[one["role"]], "text": one["content"]}]}
        for one in _alternating(turns, words)
    ]
    return {"instructions": system, "input": said, "max_output_tokens": TOKENS, "temperature": 0}


def _completion(system: str, turns: list[tuple[str, str]], words: str) -> Body:
    said = "".join(f"{question}\n{reply}\n" for question, reply in turns)
    return {"prompt": f"{system}\n{said}{words}\n", "max_tokens": TOKENS, "temperature": 0}


def _alternating(turns: list[tuple[str, str]], words: str) -> list[Body]:
    said = [one for turn in turns for one in zip(("user", "assistant"), turn, strict=True)]
    return [{"role": role, "content": text} for role, text in (*said, ("user", words))]


DIALECTS: dict[str, Callable[[str, list[tuple[str, str]], str], Body]] = {
    "/v1/chat/completions": _chat,
    "/v1/messages": _messages,
    "/v1/responses": _responses,
    "/v1/completions": _completion,
}


def _heard(body: Body, answer: httpx2.Response) -> str | None:
    """The words of the whole answer; None if a stream was broken off."""
    return _words(answer.text) if body["stream"] else _whole(answer.json())


def _words(stream: str) -> str | None:
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    ended = "data: [DONE]" in stream or any(one.get("type") in ("message_stop", "response.completed") for one in events)
    return "".join(_delta(one) for one in events) if ended else None


def _delta(event: Body) -> str:
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    if event.get("type") == "content_block_delta":
        return str(event["delta"].get("text") or "")
    return "".join(
        one.get("text") or (one.get("delta") or {}).get("content") or "" for one in event.get("choices") or ()
    )


def _whole(answer: Body) -> str:
    if "output" in answer:
        return "".join(part["text"] for item in answer["output"] for part in item.get("content") or ())
    if "content" in answer:
        return "".join(block.get("text") or "" for block in answer["content"])
    (choice,) = answer["choices"]
    return str(choice["text"] if "text" in choice else choice["message"]["content"] or "")


async def run(
    folder: Path, model: Path, engine: str | None, seconds: int, seed: int, tell: Callable[[str], None] = print
) -> Counter[str]:
    """For so long, and until everybody has been answered; what happened.

    Raises AssertionError where a reply is not a cold engine's, or something is left.
    """
    settings = Settings(
        model_path=str(model), engine_path=engine, context_size=CONTEXT, free_floor_bytes=0, model_titles=False,
        kv_type="f32", slots=2,
    )  # fmt: skip
    runtime = await open_runtime(resolve_paths({"KVCHAT_HOME": str(folder / "home")}), settings)
    try:
        await runtime.engine.ready()
        before, looks = look(runtime, 0), list[Look]()
        soak = Soak(runtime, await runtime.api_server.open("127.0.0.1", 0, {}), random.Random(seed))
        ends = time.monotonic() + seconds
        doing = [soak.client(number) for number in range(CLIENTS)]
        tasks = [asyncio.create_task(one) for one in (*doing, soak.window(), soak.trouble(), soak.rude())]
        try:
            while (time.monotonic() < ends or not soak.all_heard) and not any(task.done() for task in tasks):
                await asyncio.sleep(min(LOOK_S, max(0.1, ends - time.monotonic())))
                looks.append(look(runtime, len(soak.said)))
                tell(f"{looks[-1]}, {dict(soak.happened)}")
            soak.over.set()
            await asyncio.gather(*tasks)
            soak.happened += await crowd(soak.url, seconds * CROWD)
        finally:
            for task in tasks:
                task.cancel()
        await _nothing_left(runtime)
        _judge(looks, before, look(runtime, len(soak.said)))
    finally:
        await runtime.close()
    wrong = await _compared(folder, model, engine, soak.said)
    tell(f"{dict(soak.happened)}; the window waited {soak.longest_wait_s:.1f} s at most")
    assert not wrong, f"{len(wrong)} of {len(soak.said)} replies differ: {wrong[:3]}"
    return soak.happened


async def _nothing_left(runtime: Runtime) -> None:
    await runtime.api_server.idle()
    await runtime.chat.idle()
    gateway = runtime.api_server.gateway
    while ours := _connections(gateway.url):  # those that were broken off close a moment later
        await asyncio.sleep(0.1)
        del ours
    assert not gateway.log.active
    assert gateway.runner.active == 0


def _judge(looks: list[Look], before: Look, after: Look) -> None:
    """What is held once all have gone beside what was held before they came; and what grew after a first third."""
    faults = [f"descriptors: {before} … {after}"] if after.descriptors > before.descriptors + USED else []
    third = len(looks) // 3
    if third >= 4:
        early, late = looks[third : 2 * third], looks[-third:]
        if median(one.memory for one in late) - median(one.memory for one in early) > GROWTH:
            faults.append(f"memory: {early[0]} … {late[-1]}")
        if median(one.threads for one in late) - median(one.threads for one in early) > SOME:
            faults.append(f"threads: {early[0]} … {late[-1]}")
    if faults:
        raise Grew(", ".join(faults))


def _connections(url: str | None) -> list[Any]:
    port = int(str(url).rpartition(":")[2])
    mine = psutil.Process().net_connections(kind="tcp4")
    return [one for one in mine if one.status != psutil.CONN_LISTEN and port in (one.laddr.port, *one.raddr[1:])]


async def _compared(folder: Path, model: Path, engine: str | None, said: list[bytes]) -> list[str]:
    wrong = []
    async with cold_engine(folder, model, engine, CONTEXT) as client:
        headers = {"authorization": f"Bearer {client.key}"}
        alone = httpx2.Limits(max_keepalive_connections=0)  # the engine closes a connection after a stream
        async with httpx2.AsyncClient(
            base_url=client.base_url, headers=headers, timeout=300, trust_env=False, limits=alone
        ) as http:
            for packed in said:
                one: Said = pickle.loads(zlib.decompress(packed))
                await client.erase_slot()
                answer = await http.post(one.path, json=one.body | {"id_slot": 0})
                words = _heard(one.body, answer)  # of a letter that is not whole a stream says nothing
                if words != one.words and (lead := await _lead(http, one)) > TIE:
                    wrong.append(f"{one.path}: {one.words!r} instead of {words!r}, by {lead}")
    return wrong


async def _lead(http: httpx2.AsyncClient, one: Said) -> float:
    """How much better the cold engine's first other word was: two slots that are read at once round otherwise."""
    prompt = one.body.get("prompt")
    if prompt is None:
        rendered = await http.post("/apply-template", json=ParsedRequest(GENERATING[one.path], b"", one.body).chat)
        prompt = rendered.json()["prompt"]
    asked = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "n_probs": 200, "id_slot": 0}
    asked |= {"cache_prompt": False}  # from its first token: what is read again in another piece rounds otherwise, too
    said = ""
    for word in (await http.post("/completion", json=asked)).json()["completion_probabilities"]:
        if not one.words.startswith(said + word["token"]):
            others = [other for other in word["top_logprobs"] if one.words.startswith(said + other["token"])]
            return min((word["logprob"] - other["logprob"] for other in others), default=1.0)
        said += word["token"]
    return 1.0
