"""The real app performing random actions until it is killed, without a display.

`python -m tests.soak.life HOME SEED [PLAN]`. It starts with the next turn of the newest chat, and reports what must not
be lost on standard output.
"""

import asyncio
import json
import os
import random
import sys
import time
import traceback
from pathlib import Path

from kvchat import app, application
from kvchat.chat.events import EngineChanged, Event, MessagesChanged, Notice, ReplyDelta, TurnFailed
from kvchat.chat.record.messages import Conversation, Message, MessageState, Role
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.wire import Sampling
from kvchat.kvstore.restorer import Restorer
from kvchat.kvstore.savepoint import Fingerprint, RestoreMiss, RestorePlan, SavePoint, Tokens, common_prefix
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from kvchat.system.paths import Paths
from tests.e2e.home import notes
from tests.soak.moments import Kill, Killer, report
from tests.store_contents import StoreContents

GREEDY = Sampling(max_tokens=24, temperature=0.0, seed=1)
LONG = Sampling(max_tokens=200, temperature=0.0, seed=1)
MAX_CHATS = 8
MAX_ACTIONS = 30  # enough for every operation
REPORT_INTERVAL_S = 0.1  # while a reply is streaming


class RandomUser:
    def __init__(self, runtime: Runtime, home: Path, seed: int, killer: Killer) -> None:
        self._runtime, self._kept, self._dice = runtime, StoreContents(home), random.Random(seed)
        self._killer = killer
        self._asking: dict[str, str] = {}  # texts not stored yet, by chat
        self._streamed: dict[str, tuple[int, float]] = {}  # by message: characters received, time of the report
        self._ready = asyncio.Event()
        self._questions = 0
        self._prefix = f"{seed}-"
        runtime.events.subscribe(self._on_event)

    async def run(self) -> None:
        if self._runtime.engine.status.state is not EngineState.READY:
            await self._ready.wait()
        self._killer.watching = True
        await self._first_turn()
        report(begun=True)
        leading_actions = {
            "saving": (self._talk,),
            "absorbing": (self._talk, self._new),
            "restoring": (self._look, self._talk),
            "pruning": (self._prune,),
            "deleting": (self._delete,),
            "forgetting": (self._delete,),
            "exporting": (self._export_and_import,),
            "importing": (self._export_and_import,),
            "quitting": (self._quit,),
        }
        plan = self._killer.plan
        wanted = leading_actions.get(plan.moment, ()) if plan else ()
        actions = (
            self._talk,
            self._talk,
            self._new,
            self._change,
            self._look,
            self._delete,
            self._prune,
            self._export_and_import,
        )
        for _ in range(MAX_ACTIONS):
            if self._killer.has_struck:
                await self._recover()
            await self._dice.choice((*actions, *(len(actions) * wanted)))()
        report(spent=True)

    async def _recover(self) -> None:
        for _ in range(3):  # the interrupted one may have failed
            reply = await self._ask((await self._random_chat() or await self._create_chat()).id)
            if reply is not None and reply.state in (MessageState.COMPLETE, MessageState.LIMITED):
                report(recovered=True)
                await asyncio.sleep(self._dice.random())
                return

    async def _first_turn(self) -> None:
        """Continue the newest chat: its save points are used, or a reason is given."""
        chats = await self._runtime.chat.conversations()
        if not chats:
            return
        points = await asyncio.to_thread(self._kept.save_points)
        searches: list[tuple[Fingerprint, Tokens, bool]] = []
        find = Restorer.find

        def record_search(
            store: Restorer, fingerprint: Fingerprint, prompt: Tokens, *, can_cut: bool, conversation_id: str
        ) -> RestorePlan | RestoreMiss:
            searches.append((fingerprint, prompt, can_cut))
            return find(store, fingerprint, prompt, can_cut=can_cut, conversation_id=conversation_id)

        Restorer.find = record_search  # type: ignore[method-assign]
        try:
            reply = await self._ask(chats[0].id)
        finally:
            Restorer.find = find  # type: ignore[method-assign]
        if reply is not None and (receipt := reply.receipt) is not None:
            report(
                first=reply.id,
                source=receipt.source.value,
                why=receipt.miss_reason and receipt.miss_reason.code,
                cached=receipt.cached_tokens,
                prompt=receipt.prompt_tokens,
                kept=max((_usable_tokens(points, *search) for search in searches), default=0),
            )

    def _on_event(self, event: Event) -> None:
        if isinstance(event, MessagesChanged) and (text := self._asking.pop(event.conversation_id, None)):
            report(asked=text, chat=event.conversation_id)
        elif isinstance(event, ReplyDelta):
            length, reported_at = self._streamed.get(event.message_id, (0, 0.0))
            length += len(event.text)
            if time.time() - reported_at > REPORT_INTERVAL_S:
                reported_at = time.time()
                report(streamed=event.message_id, chat=event.conversation_id, length=length, when=reported_at)
            self._streamed[event.message_id] = length, reported_at
        elif isinstance(event, EngineChanged) and event.status.state is EngineState.READY:
            self._ready.set()
        elif isinstance(event, Notice):
            report(notice=event.title, detail=event.detail)
        elif isinstance(event, TurnFailed):
            report(failed=event.error.title, detail=event.error.detail)

    async def _ask(self, chat: str, sampling: Sampling = GREEDY) -> Message | None:
        self._questions += 1
        text = f"Question {self._prefix}{self._questions}: how long is bridge {self._dice.randrange(60)}?"
        self._asking[chat] = text
        reply = await self._runtime.chat.send(chat, text, sampling)
        self._report_reply(reply)
        return reply

    def _report_reply(self, reply: Message | None) -> None:
        if reply is not None:
            report(replied=reply.id, chat=reply.conversation_id, length=len(reply.content))

    async def _random_chat(self) -> Conversation | None:
        chats = await self._runtime.chat.conversations()
        return self._dice.choice(chats) if chats else None

    async def _create_chat(self) -> Conversation:
        system = "Answer from these notes.\n" + notes(self._dice.choice((10, 30)), start=self._dice.choice((0, 500)))
        return await self._runtime.chat.new_conversation(system)

    async def _talk(self) -> None:
        chat = await self._random_chat() or await self._create_chat()
        await self._ask(chat.id, LONG if self._dice.random() < 0.1 else GREEDY)
        if self._dice.random() < 0.5:  # else the next action runs during the save
            await self._runtime.chat.wait_until_idle()

    async def _new(self) -> None:
        if len(await self._runtime.chat.conversations()) < MAX_CHATS:
            await self._ask((await self._create_chat()).id)

    async def _change(self) -> None:
        chat = await self._random_chat()
        if chat is None:
            return
        messages = await self._runtime.chat.messages(chat.id)
        replies = [message for message in messages if message.role is Role.ASSISTANT]
        questions = [message for message in messages if message.role is Role.USER]
        if replies and self._dice.random() < 0.4:
            self._report_reply(await self._runtime.chat.regenerate(self._dice.choice(replies), GREEDY))
        elif questions and self._dice.random() < 0.6:
            self._report_reply(
                await self._runtime.chat.edit(questions[-1], f"Edited {self._prefix}{self._questions}", GREEDY)
            )
        else:
            asking = self._runtime.chat.send(chat.id, "Say a lot.", LONG)
            await asyncio.sleep(self._dice.random())
            self._runtime.chat.stop(chat.id)
            await asking

    async def _look(self) -> None:
        for _ in range(self._dice.randrange(1, 5)):
            if chat := await self._random_chat():
                self._runtime.chat.select(chat.id)
                await asyncio.sleep(self._dice.random() / 5)

    async def _delete(self) -> None:
        chat = await self._random_chat()
        if chat is not None and self._dice.random() < 0.6:
            report(deleting=chat.id)
            if self._dice.random() < 0.5:  # during its answer and save
                asking = self._runtime.chat.send(chat.id, "And more?", GREEDY)
                await asyncio.sleep(self._dice.random() / 5)
                await self._runtime.chat.recently_deleted.purge_chat(chat.id)
                await asking
            else:
                await self._runtime.chat.recently_deleted.purge_chat(chat.id)
            report(deleted=chat.id)

    async def _prune(self) -> None:
        usage = await self._runtime.save_points.usage()
        plan = await self._runtime.save_points.plan_prune(int(usage.physical_bytes * self._dice.random()))
        await self._runtime.save_points.prune(plan)

    async def _export_and_import(self) -> None:
        chats = await self._runtime.chat.conversations()
        if not chats:
            return
        file = self._runtime.paths.state.parent / "export.json"
        sample = self._dice.sample(chats, self._dice.randrange(1, len(chats) + 1))
        await self._runtime.transfer.export([chat.id for chat in sample], file, lambda done, total: None)
        if len(chats) < MAX_CHATS:
            await self._runtime.transfer.import_files([file], lambda done, total: None)

    async def _quit(self) -> None:
        if self._dice.random() < 0.5 and (chat := await self._random_chat()):
            self._runtime.chat.send(chat.id, "Goodbye.", GREEDY)
            await asyncio.sleep(self._dice.random() / 5)
        os.kill(os.getpid(), 15)
        await asyncio.sleep(3600)


def _usable_tokens(points: list[SavePoint], fingerprint: Fingerprint, prompt: Tokens, can_cut: bool) -> int:
    """Return how many tokens of the prompt the best save point serves, by trying each."""
    best = 0
    for point in points:
        if point.fingerprint == fingerprint:
            shared = min(common_prefix(point.tokens, prompt), len(prompt) - 1)
            best = max(best, shared if can_cut or shared == point.n_tokens else 0)
    return best


def main(home: Path, seed: int, plan: Kill | None) -> int:
    killer = Killer(plan)
    open_runtime, begin = application.open_runtime, Runtime.start
    tasks: list[asyncio.Task[None]] = []

    def report_bug(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            report(bug="".join(traceback.format_exception(error)))

    async def report_opening(paths: Paths, settings: Settings) -> Runtime:
        report(opening=True)
        return await open_runtime(paths, settings)

    async def begin_and_run(runtime: Runtime) -> None:
        await begin(runtime)
        tasks.append(asyncio.create_task(RandomUser(runtime, home, seed, killer).run()))
        tasks[0].add_done_callback(report_bug)

    application.open_runtime, Runtime.start = report_opening, begin_and_run  # type: ignore[method-assign, attr-defined, assignment]
    application.Application._handle_exception = lambda self, loop, context: report(bug=str(context))  # type: ignore[method-assign]
    return app.run(starter=False, hidden=False)


if __name__ == "__main__":
    plan = json.loads(sys.argv[3]) if len(sys.argv) > 3 else None
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), Kill(**plan) if plan else None))
