"""The real app that does whatever comes to its mind, until it is killed. No display is needed.

`python -m tests.soak.life HOME SEED [FATE]`. It begins with the next turn of the newest chat. What must not be lost is
said on standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from kvchat import app, application
from kvchat.chat.events import EngineChanged, Event, MessagesChanged, Notice, ReplyDelta, TurnFailed
from kvchat.chat.record.messages import Conversation, Message, MessageState, Role
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.wire import Sampling
from kvchat.kvstore.restorer import Restorer
from kvchat.kvstore.savepoint import Fingerprint, Miss, RestorePlan, SavePoint, Tokens, common_prefix
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from kvchat.system.paths import Paths
from tests.e2e.home import notes
from tests.soak.moments import Fate, Fulfilment, say
from tests.store_contents import StoreContents

GREEDY = Sampling(max_tokens=24, temperature=0.0, seed=1)
LONG = Sampling(max_tokens=200, temperature=0.0, seed=1)
MAX_CHATS = 8
MOST_ACTS = 30  # by then every moment should have come
SAID_EVERY_S = 0.1  # of a reply that is streaming

Act = Callable[[], Coroutine[Any, Any, None]]


class Life:
    def __init__(self, runtime: Runtime, home: Path, seed: int, fulfilment: Fulfilment) -> None:
        self._runtime, self._kept, self._dice = runtime, StoreContents(home), random.Random(seed)
        self._fulfilment = fulfilment
        self._asking: dict[str, str] = {}  # words on their way to the disk, by chat
        self._streamed: dict[str, tuple[int, float]] = {}  # by message: characters that have come, and when it was said
        self._ready = asyncio.Event()
        self._made = 0
        self._mark = f"{seed}-"
        runtime.events.subscribe(self._hear)

    async def live(self) -> None:
        if self._runtime.engine.status.state is not EngineState.READY:
            await self._ready.wait()
        self._fulfilment.watching = True
        await self._first_turn()
        say(begun=True)
        leading = {
            "saving": (self._talk,),
            "absorbing": (self._talk, self._new),
            "restoring": (self._look, self._talk),
            "pruning": (self._prune,),
            "deleting": (self._delete,),
            "forgetting": (self._delete,),
            "exporting": (self._carry,),
            "importing": (self._carry,),
            "quitting": (self._quit,),
        }
        fate = self._fulfilment.fate
        wanted = leading.get(fate.moment, ()) if fate else ()
        acts = (self._talk, self._talk, self._new, self._change, self._look, self._delete, self._prune, self._carry)
        for _ in range(MOST_ACTS):
            if self._fulfilment.struck:
                await self._recover()
            await self._dice.choice((*acts, *(len(acts) * wanted)))()
        say(spent=True)

    async def _recover(self) -> None:
        for _ in range(3):  # what was being said when it died may have failed
            reply = await self._ask((await self._some_chat() or await self._make_chat()).id)
            if reply is not None and reply.state in (MessageState.COMPLETE, MessageState.LIMITED):
                say(recovered=True)
                await asyncio.sleep(self._dice.random())
                return

    async def _first_turn(self) -> None:
        """The newest chat goes on: what was kept of it is used, or the reason is said."""
        chats = await self._runtime.chat.conversations()
        if not chats:
            return
        usable = await asyncio.to_thread(self._kept.save_points)
        asked: list[tuple[Fingerprint, Tokens, bool]] = []
        find = Restorer.find

        def heard(
            store: Restorer, fingerprint: Fingerprint, prompt: Tokens, *, can_cut: bool, conversation_id: str
        ) -> RestorePlan | Miss:
            asked.append((fingerprint, prompt, can_cut))
            return find(store, fingerprint, prompt, can_cut=can_cut, conversation_id=conversation_id)

        Restorer.find = heard  # type: ignore[method-assign]
        try:
            reply = await self._ask(chats[0].id)
        finally:
            Restorer.find = find  # type: ignore[method-assign]
        if reply is not None and (receipt := reply.receipt) is not None:
            say(
                first=reply.id,
                source=receipt.source.value,
                why=receipt.miss_reason and receipt.miss_reason.code,
                cached=receipt.cached_tokens,
                prompt=receipt.prompt_tokens,
                kept=max((_serves(usable, *one) for one in asked), default=0),
            )

    def _hear(self, event: Event) -> None:
        if isinstance(event, MessagesChanged) and (words := self._asking.pop(event.conversation_id, None)):
            say(asked=words, chat=event.conversation_id)
        elif isinstance(event, ReplyDelta):
            length, told_at = self._streamed.get(event.message_id, (0, 0.0))
            length += len(event.text)
            if time.time() - told_at > SAID_EVERY_S:
                told_at = time.time()
                say(streamed=event.message_id, chat=event.conversation_id, length=length, when=told_at)
            self._streamed[event.message_id] = length, told_at
        elif isinstance(event, EngineChanged) and event.status.state is EngineState.READY:
            self._ready.set()
        elif isinstance(event, Notice):
            say(notice=event.title, detail=event.detail)
        elif isinstance(event, TurnFailed):
            say(failed=event.error.title, detail=event.error.detail)

    async def _ask(self, chat: str, sampling: Sampling = GREEDY) -> Message | None:
        self._made += 1
        words = f"Question {self._mark}{self._made}: how long is bridge {self._dice.randrange(60)}?"
        self._asking[chat] = words
        reply = await self._runtime.chat.send(chat, words, sampling)
        self._told(reply)
        return reply

    def _told(self, reply: Message | None) -> None:
        if reply is not None:
            say(replied=reply.id, chat=reply.conversation_id, length=len(reply.content))

    async def _some_chat(self) -> Conversation | None:
        chats = await self._runtime.chat.conversations()
        return self._dice.choice(chats) if chats else None

    async def _make_chat(self) -> Conversation:
        system = "Answer from these notes.\n" + notes(self._dice.choice((10, 30)), start=self._dice.choice((0, 500)))
        return await self._runtime.chat.new_conversation(system)

    async def _talk(self) -> None:
        chat = await self._some_chat() or await self._make_chat()
        await self._ask(chat.id, LONG if self._dice.random() < 0.1 else GREEDY)
        if self._dice.random() < 0.5:  # else the next act comes while this one is saved
            await self._runtime.chat.idle()

    async def _new(self) -> None:
        if len(await self._runtime.chat.conversations()) < MAX_CHATS:
            await self._ask((await self._make_chat()).id)

    async def _change(self) -> None:
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
            asking = self._runtime.chat.send(chat.id, "Say a lot.", LONG)
            await asyncio.sleep(self._dice.random())
            self._runtime.chat.stop(chat.id)
            await asking

    async def _look(self) -> None:
        for _ in range(self._dice.randrange(1, 5)):
            if chat := await self._some_chat():
                self._runtime.chat.select(chat.id)
                await asyncio.sleep(self._dice.random() / 5)

    async def _delete(self) -> None:
        chat = await self._some_chat()
        if chat is not None and self._dice.random() < 0.6:
            say(deleting=chat.id)
            if self._dice.random() < 0.5:  # while it is being answered and saved
                asking = self._runtime.chat.send(chat.id, "And more?", GREEDY)
                await asyncio.sleep(self._dice.random() / 5)
                await self._runtime.chat.recently_deleted.purge_chat(chat.id)
                await asking
            else:
                await self._runtime.chat.recently_deleted.purge_chat(chat.id)
            say(deleted=chat.id)

    async def _prune(self) -> None:
        usage = await self._runtime.save_points.usage()
        plan = await self._runtime.save_points.plan_prune(int(usage.physical_bytes * self._dice.random()))
        await self._runtime.save_points.prune(plan)

    async def _carry(self) -> None:
        chats = await self._runtime.chat.conversations()
        if not chats:
            return
        file = self._runtime.paths.state.parent / "export.json"
        some = self._dice.sample(chats, self._dice.randrange(1, len(chats) + 1))
        await self._runtime.transfer.export([chat.id for chat in some], file, lambda done, total: None)
        if len(chats) < MAX_CHATS:
            await self._runtime.transfer.import_files([file], lambda done, total: None)

    async def _quit(self) -> None:
        if self._dice.random() < 0.5 and (chat := await self._some_chat()):
            self._runtime.chat.send(chat.id, "Goodbye.", GREEDY)
            await asyncio.sleep(self._dice.random() / 5)
        os.kill(os.getpid(), 15)
        await asyncio.sleep(3600)


def _serves(points: list[SavePoint], fingerprint: Fingerprint, prompt: Tokens, can_cut: bool) -> int:
    """How many of the prompt's tokens the best of the save points serves: by looking at each."""
    best = 0
    for point in points:
        if point.fingerprint == fingerprint:
            shared = min(common_prefix(point.tokens, prompt), len(prompt) - 1)
            best = max(best, shared if can_cut or shared == point.n_tokens else 0)
    return best


def main(home: Path, seed: int, fate: Fate | None) -> int:
    fulfilment = Fulfilment(fate)
    open_runtime, begin = application.open_runtime, Runtime.begin
    lives: list[asyncio.Task[None]] = []

    def bury(life: asyncio.Task[None]) -> None:
        if not life.cancelled() and (error := life.exception()):
            say(bug="".join(traceback.format_exception(error)))

    async def opened(paths: Paths, settings: Settings) -> Runtime:
        say(opening=True)
        return await open_runtime(paths, settings)

    async def begun(runtime: Runtime) -> None:
        await begin(runtime)
        lives.append(asyncio.create_task(Life(runtime, home, seed, fulfilment).live()))
        lives[0].add_done_callback(bury)

    application.open_runtime, Runtime.begin = opened, begun  # type: ignore[method-assign]
    application.Application._handle_exception = lambda self, loop, context: say(bug=str(context))  # type: ignore[method-assign]
    return app.run(starter=False, hidden=False)


if __name__ == "__main__":
    told = json.loads(sys.argv[3]) if len(sys.argv) > 3 else None
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), Fate(**told) if told else None))
