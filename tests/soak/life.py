"""A kvchat without a window that does whatever comes to its mind, until it is killed.

`python -m tests.soak.life HOME MODEL SEED`. It begins with the next turn of the newest chat. What must not be lost is
said on standard output first.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path

from kvchat.chat.events import Event, MessagesChanged
from kvchat.chat.record.messages import Conversation, Message, Role
from kvchat.engine.speaking.wire import Sampling
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.e2e.home import notes

GREEDY = Sampling(max_tokens=24, temperature=0.0, seed=1)
MOST_CHATS = 8


def say(**what: object) -> None:
    """A line in one write: the process may be killed at any moment."""
    os.write(1, (json.dumps(what) + "\n").encode())


class Life:
    """One run."""

    def __init__(self, runtime: Runtime, seed: int) -> None:
        self._runtime, self._dice = runtime, random.Random(seed)
        self._asking: dict[str, str] = {}  # words on their way to the disk, by chat
        self._made = 0
        self._mark = f"{seed}-"
        runtime.events.subscribe(self._hear)

    async def live(self) -> None:
        """Until killed."""
        chats = await self._runtime.chat.conversations()
        if chats:
            await self._ask(chats[0].id)
        say(begun=True)
        acts = (self._talk, self._talk, self._talk, self._new, self._change, self._look, self._delete, self._prune)
        while True:
            await self._dice.choice((*acts, self._carry))()

    def _hear(self, event: Event) -> None:
        if isinstance(event, MessagesChanged) and (words := self._asking.pop(event.conversation_id, None)):
            say(asked=words, chat=event.conversation_id)

    async def _ask(self, chat: str) -> Message | None:
        self._made += 1
        words = f"Question {self._mark}{self._made}: how long is bridge {self._dice.randrange(60)}?"
        self._asking[chat] = words
        reply = await self._runtime.chat.send(chat, words, GREEDY)
        self._told(reply)
        return reply

    def _told(self, reply: Message | None) -> None:
        if reply is not None:
            found = reply.receipt
            say(
                replied=reply.id,
                chat=reply.conversation_id,
                length=len(reply.content),
                source=found.source.value if found else None,
                why=found.miss_reason if found else None,
                share=found.cached_tokens / max(1, found.prompt_tokens) if found else None,
            )

    async def _some_chat(self) -> Conversation | None:
        chats = await self._runtime.chat.conversations()
        return self._dice.choice(chats) if chats else None

    async def _talk(self) -> None:
        chat = await self._some_chat()
        if chat is None:
            await self._new()
        else:
            await self._ask(chat.id)
            if self._dice.random() < 0.5:  # else the next act comes while this one is saved
                await self._runtime.chat.idle()

    async def _new(self) -> None:
        if len(await self._runtime.chat.conversations()) >= MOST_CHATS:
            return
        chat = await self._runtime.chat.new_conversation("Answer from these notes.\n" + notes(40))
        await self._ask(chat.id)

    async def _change(self) -> None:
        """Regenerate, edit, or stop half-way."""
        chat = await self._some_chat()
        if chat is None:
            return
        messages = await self._runtime.chat.messages(chat.id)
        replies = [one for one in messages if one.role is Role.ASSISTANT]
        questions = [one for one in messages if one.role is Role.USER]
        if replies and self._dice.random() < 0.4:
            self._told(await self._runtime.chat.regenerate(self._dice.choice(replies), GREEDY))
        elif questions and self._dice.random() < 0.6:
            self._told(await self._runtime.chat.edit(questions[-1], f"Edited {self._mark}{self._made}", GREEDY))
        else:
            asking = self._runtime.chat.send(chat.id, "Say a lot.", GREEDY)
            await asyncio.sleep(self._dice.random() / 5)
            self._runtime.chat.stop(chat.id)
            await asking

    async def _look(self) -> None:
        for _ in range(self._dice.randrange(1, 5)):
            if chat := await self._some_chat():
                self._runtime.chat.select(chat.id)
                await asyncio.sleep(self._dice.random() / 10)

    async def _delete(self) -> None:
        chat = await self._some_chat()
        if chat is not None and self._dice.random() < 0.4:
            say(deleting=chat.id)
            await self._runtime.chat.delete(chat.id)

    async def _prune(self) -> None:
        usage = await self._runtime.save_points.usage()
        plan = await self._runtime.save_points.plan_prune(int(usage.physical_bytes * self._dice.random()))
        await self._runtime.save_points.prune(plan)

    async def _carry(self) -> None:
        """Export all chats and take one of them in again."""
        file = self._runtime.paths.state / f"{self._mark}{self._made}.json"
        chats = await self._runtime.chat.conversations()
        await self._runtime.keeping.export([chat.id for chat in chats[:1]], file, lambda done, total: None)
        if len(chats) < MOST_CHATS:
            await self._runtime.keeping.take_in([file], lambda done, total: None)
        file.unlink()


async def main(home: Path, model: Path, seed: int) -> None:
    """Open, live."""
    settings = Settings(model_path=str(model), context_size=8192, free_floor_bytes=0, model_titles=False)
    runtime = await open_runtime(resolve_paths({"KVCHAT_HOME": str(home)}), settings)
    runtime.chat.forget_left_behind()
    await Life(runtime, seed).live()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
