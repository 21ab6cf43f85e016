"""A person who switches, types, pastes, deletes and sends at random, with all background work running.

Every greedy reply must equal a cold engine's to the same messages.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

from kvchat.chat.events import Event, ReadAheadProgress
from kvchat.chat.record.messages import Message, MessageState, Role, prompt_messages
from kvchat.chat.turn import read_ahead
from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.wire import Sampling
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import LaunchPlan
from kvchat.engine.process.supervisor import EngineSupervisor, RestartPolicy
from kvchat.runtime import Runtime
from kvchat.session.events import Restored
from kvchat.settings import Settings
from tests.e2e.home import notes
from tests.e2e.test_branches import TIE, cold_tokens, verdict
from tests.running import opened

GREEDY = Sampling(max_tokens=6, temperature=0.0, seed=1)
CHATS = 5
CONTEXT = 4096
MAX_TIE = 0.01  # difference of natural logarithms


class Person:
    """Performs random actions, mostly without waiting for their results."""

    def __init__(self, runtime: Runtime, dice: random.Random) -> None:
        self.runtime, self.dice = runtime, dice
        self.chats: list[str] = []  # in use
        self.all_chats: list[str] = []
        self.current = ""
        self.draft = ""
        self.actions: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.errors: list[str] = []
        self._number = 0
        runtime.events.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        match event:
            case ReadAheadProgress(done_tokens=done, total=total, draft=draft) if done == total:
                self.events["draft read" if draft else "chat read"] += 1
            case Restored():
                self.events["restored"] += 1

    async def start(self) -> None:
        while len(self.chats) < CHATS:
            await self.new_chat()
            await self.send()

    async def act(self) -> None:
        frequent = (self.switch,) * 5 + (self.type,) * 6 + (self.paste,) * 2 + (self.erase,) * 2 + (self.send,) * 5
        rare = (self.look_around, self.stop, self.edit, self.regenerate, self.delete_message, self.new_chat)
        action = self.dice.choice((*frequent, *rare, self.forget_saved))
        self.actions[action.__name__] += 1
        await action()
        await asyncio.sleep(self.dice.choice((0, 0, 0.02, 0.1, 0.3)))

    async def switch(self) -> None:
        self.current, self.draft = self.dice.choice(self.chats), ""
        self.runtime.chat.select(self.current)

    async def look_around(self) -> None:
        for _ in range(5):
            await self.switch()

    async def type(self) -> None:
        self._write(f"{self.draft} {self._text(self.dice.randint(3, 40))}".strip())

    async def paste(self) -> None:
        self._write(f"{self.draft} {self._text(400)}".strip())

    async def erase(self) -> None:
        self._write("" if self.dice.random() < 0.5 else self.draft[: len(self.draft) // 2])

    async def send(self) -> None:
        text, self.draft = self.draft or self._text(8), ""
        replied = self.runtime.chat.send(self.current, text, GREEDY)
        self.runtime.chat.prepare(self.current, "")
        if self.dice.random() < 0.6:
            await replied

    async def stop(self) -> None:
        self.runtime.chat.stop(self.current)

    async def edit(self) -> None:
        if question := await self._pick_message(Role.USER):
            await self.runtime.chat.edit(question, self._text(10), GREEDY)

    async def regenerate(self) -> None:
        if reply := await self._pick_message(Role.ASSISTANT):
            await self.runtime.chat.regenerate(reply, GREEDY)

    async def delete_message(self) -> None:
        message = await self._pick_message(Role.USER)
        if message and message.parent_id and not self.runtime.chat.is_answering(self.current):
            await self.runtime.chat.delete_message(message)

    async def new_chat(self) -> None:
        self.current = (await self.runtime.chat.new_conversation(self._text(60))).id
        self.all_chats.append(self.current)
        self.chats = self.all_chats[-CHATS:]
        self.runtime.chat.select(self.current)

    async def forget_saved(self) -> None:
        await asyncio.to_thread(self.runtime._store.inventory.delete_conversation, self.current)

    def _write(self, draft: str) -> None:
        self.draft = draft
        self.runtime.chat.prepare(self.current, draft)

    def _text(self, count: int) -> str:
        self._number += count
        return " ".join(notes(count // 12 + 1, start=self._number * 7).split()[:count])

    async def _pick_message(self, role: Role) -> Message | None:
        messages = [message for message in await self.runtime.chat.messages(self.current) if message.role is role]
        return self.dice.choice(messages) if messages else None


async def run(
    folder: Path,
    model: Path,
    engine: str | None,
    count: int,
    seed: int,
    report: Callable[[str], None] = print,
    slots: int = 1,
) -> Counter[str]:
    """Perform `count` actions; return the events. Raises AssertionError if a reply differs from a cold engine's."""
    settings = Settings(
        model_path=str(model), engine_path=engine, context_size=CONTEXT, free_floor_bytes=0, model_titles=False,
        read_ahead="always", kv_type="f32", slots=slots,
    )  # fmt: skip
    with mock.patch.multiple(read_ahead, TYPING_PAUSE_S=0.05, DWELL_S=0.1):
        async with opened(folder / "home", settings) as runtime:
            person = Person(runtime, random.Random(seed))
            await person.start()
            for number in range(count):
                await person.act()
                if (number + 1) % 100 == 0:
                    report(f"{number + 1}: {dict(person.events)}")
            await runtime.chat.wait_until_idle()
            replies = [path for chat in person.all_chats for path in await replies_of(runtime, chat)]
            sources = Counter(r.source.value for path in replies if (r := path[-1].receipt))
    differences = await compare(folder, model, engine, replies)
    report(f"{dict(person.actions)}, {len(replies)} replies, {dict(sources)}, events {dict(person.events)}")
    assert not differences, f"{len(differences)} of {len(replies)} replies differ: {differences[:3]}"
    return person.events


async def replies_of(runtime: Runtime, chat: str) -> list[list[Message]]:
    """Return the path to each finished reply of the chat on any branch, including the reply."""
    with runtime._database.reading() as db:
        query = "SELECT id FROM messages WHERE conversation_id = ? AND role = 'assistant' AND state IN (?, ?)"
        ended = MessageState.COMPLETE.value, MessageState.LIMITED.value
        return [runtime._database.path(row["id"]) for row in db.execute(query, (chat, *ended)).fetchall()]


@asynccontextmanager
async def cold_engine(folder: Path, model: Path, engine: str | None, context: int) -> AsyncIterator[LlamaServerClient]:
    """Start an engine with an empty slot that computes like those of the soak tests."""
    location = EngineLocation(Path(engine)) if engine else EngineLocation()
    slots = folder / "cold"
    slots.mkdir()
    supervisor = EngineSupervisor(policy=RestartPolicy(max_deaths=1))
    await supervisor.start(location, iter([LaunchPlan(model, context, slots, kv_type="f32")]))
    try:
        client = await supervisor.ready()
        assert isinstance(client, LlamaServerClient)
        yield client
    finally:
        await supervisor.close()


async def compare(folder: Path, model: Path, engine: str | None, replies: list[list[Message]]) -> list[str]:
    """Return the replies that differ from a cold engine's.

    Equally likely tokens may be swapped: the engine rounds differently if it processes a prompt in other pieces or
    beside another chat. Of 227 replies three differed, where the logarithms were 0.0003, 0.0005 and 0.0043 apart; the
    engine alone differed there, too (b11434, llama).
    """
    differences = []
    async with cold_engine(folder, model, engine, CONTEXT) as client:
        for path in replies:
            await client.erase_slot()
            messages = prompt_messages(path[:-1])
            reply = "".join([chunk.text async for chunk in client.chat(messages, GREEDY)])
            if reply == path[-1].content:
                continue
            await client.erase_slot()
            if verdict(path[-1].content, await cold_tokens(client, messages), max_tie=MAX_TIE) != TIE:
                receipt = path[-1].receipt
                differences.append(f"{path[-1].content!r} instead of {reply!r} ({receipt and receipt.source})")
    return differences
