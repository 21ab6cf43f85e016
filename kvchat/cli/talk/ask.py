"""`kvchat ask QUESTION`: the same turn as in the window, without Qt: restore, stream, settle, save, stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvchat.chat.attachments import read_attachment
from kvchat.chat.events import (
    EngineChanged,
    Event,
    Notice,
    QuestionNotStored,
    ReplyDelta,
    ReplyFinished,
    TurnFailed,
    WaitingForChat,
)
from kvchat.chat.options import NewChat
from kvchat.chat.record.messages import Attachment, Message, Receipt
from kvchat.chat.turn.receipts import receipt_sentence
from kvchat.cli import owned
from kvchat.cli.chats.named import named_chat
from kvchat.cli.command_runtime import opened_runtime
from kvchat.cli.options import AskOptions
from kvchat.cli.terminal import remark, say, shows_text
from kvchat.engine.speaking.connection import EngineState, EngineStatus
from kvchat.engine.speaking.errors import EngineFailure
from kvchat.engine.speaking.wire import Sampling
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.session.events import MakingRoom, RestoreFailed, Saved, SaveSkipped
from kvchat.words.language import N_, _, number, sentences
from kvchat.words.safe_text import calm
from kvchat.words.wording import roughly
from kvchat.words.wording import size as size_in_words

TOLD_OF_RECEIPT = (
    *("ttft_ms", "restore_ms", "prefill_ms", "prompt_tokens", "cached_tokens", "predicted_tokens"),
    "source",
)
WAITING = N_("Another reply is being written; waiting…")
SAID_AFTER_S = 1.0  # so long a save goes on without a word


def run(options: AskOptions) -> int:
    """Ask one question, or have a conversation where none is given. Returns the exit code. Raises KvchatError."""
    return owned.run("ask", options)


@dataclass
class _Printer:
    """Prints one chat's reply as it comes, and remembers what went wrong."""

    as_json: bool
    chat_id: str = ""
    error: KvchatError | None = None
    receipts: list[Receipt] = field(default_factory=list)
    tells_saves: bool = True  # in a conversation they come while the next question is typed
    heard: bool = False  # from the turn's beginning to its save; else another command is answered in the chat

    def begin(self) -> None:
        """Its turn begins."""
        self.heard = True

    def hear(self, event: Event) -> None:
        """Take an event of the runtime's; those of other chats are not for this terminal."""
        chat = getattr(event, "conversation_id", "")
        if chat and (chat != self.chat_id or not (self.heard or isinstance(event, TurnFailed | QuestionNotStored))):
            return
        if isinstance(event, Saved | SaveSkipped):
            self.heard = False
        match event:
            case ReplyDelta(text=text) if not self.as_json:
                say(calm(text) if shows_text() else text, end="")
            case ReplyFinished(receipt=receipt):
                if receipt:
                    self.receipts.append(receipt)
                if not self.as_json:
                    say()
                    remark(receipt_sentence(receipt) if receipt else _("stopped"))
            case WaitingForChat():
                remark(_(WAITING))
            case MakingRoom(done=False):
                remark(_("making room for a longer chat..."))
            case RestoreFailed(reason=reason):
                remark(_("the save point was not used: {reason}", reason=reason.words))
            case Saved(bytes=size, ms=ms) if self.tells_saves:
                remark(_("saved {size} in {ms} ms", size=size_in_words(size), ms=number(ms)))
            case SaveSkipped(reason=reason) if self.tells_saves:
                remark(_("not saved: {reason}", reason=reason.words))
            case Notice(title=title, detail=detail):
                remark(sentences(title, detail))
            case EngineChanged(status=EngineStatus(EngineState.STARTING, EngineFailure() as failure)):
                remark(_("{title}. {detail} Trying again…", title=failure.title, detail=failure.detail))
            case TurnFailed(error=error) | QuestionNotStored(error=error):
                self.error = error


@dataclass
class Talk:
    """A chat on the terminal: made by `open_talk`, asked in, left."""

    runtime: Runtime
    chat_id: str
    printer: _Printer
    sampling: Sampling
    attachments: tuple[Attachment, ...]  # go with the next question
    new: NewChat | None  # the chat, until its first question is on disk

    async def ask(self, question: str) -> Message | None:
        """Have it answered, printed as it comes; None where it was not. Raises KvchatError.

        Cancelled, it is stopped.
        """
        self.printer.error, attachments = None, self.attachments
        self.attachments = ()
        if self.runtime.chat.is_answering(self.chat_id):
            remark(_(WAITING))
        reply = await self.runtime.chat.send(
            self.chat_id, question, self.sampling, attachments=attachments, new=self.new, waits=self.printer.begin
        )
        if self.new and await self.runtime.chat.conversation(self.chat_id):
            self.new = None
        if self.printer.error:
            raise self.printer.error
        return reply

    def stop(self) -> None:
        """End the reply; what has come of it is kept."""
        self.runtime.chat.stop(self.chat_id)

    async def title(self) -> str:
        """What the chat is called."""
        conversation = await self.runtime.chat.conversation(self.chat_id)
        return conversation.title if conversation else ""


@asynccontextmanager
async def open_talk(options: AskOptions, commands: owned.Commands) -> AsyncIterator[Talk]:
    """The chat that was named, or a new one, with nothing asked in it yet. Raises KvchatError."""
    runtime = await opened_runtime(commands, options)
    printer = _Printer(options.as_json)
    unsubscribe = runtime.events.subscribe(printer.hear)
    try:
        if problem := runtime.save_points.problem:
            remark(str(problem))
        attachments = tuple([await asyncio.to_thread(read_attachment, path) for path in options.attach])
        chosen = await _conversation(runtime, options)
        new = chosen if isinstance(chosen, NewChat) else None
        printer.chat_id = chat_id = chosen.id if isinstance(chosen, NewChat) else chosen
        if options.model is not None:
            model = str(options.model)
            if new is not None:
                new = new.answered_by(model)
            else:
                await runtime.chat.use_model(chat_id, model)
        yield Talk(runtime, chat_id, printer, _sampling(options), attachments, new)
    finally:
        unsubscribe()


async def ask(options: AskOptions, commands: owned.Commands) -> int:
    """Ask one question; the reply goes to standard output. Returns the exit code. Raises KvchatError."""
    async with open_talk(options, commands) as talk:
        error: KvchatError | None = None
        reply: Message | None = None
        try:
            reply = await talk.ask(options.prompt)
        except KvchatError as failed:
            error = failed  # told when all is put away
        if commands.is_own:
            await _kept(talk.runtime)
            if (finding := talk.runtime.engine.current.finding) and not finding.strategy.saves:
                remark(finding.words)
        if error:
            raise error
        if options.as_json and reply:
            say(json.dumps(_answer(talk.chat_id, reply), ensure_ascii=False))
        return 0 if reply else 1


async def _kept(runtime: Runtime) -> None:
    """Wait until the reply is saved. Where that takes long it is said, and Ctrl+C ends kvchat without."""
    idle = asyncio.ensure_future(runtime.chat.idle())
    try:
        await asyncio.wait({idle}, timeout=SAID_AFTER_S)
        if not idle.done() and (unfinished := runtime.unfinished):
            remark(_("saving the memory of this chat ({words}); Ctrl+C ends kvchat without it", words=unfinished.words))
        await idle
    except asyncio.CancelledError:
        runtime.give_up_saving()
        raise


def _sampling(options: AskOptions) -> Sampling:
    """What was given on the command line; the rest is the conversation's, the settings' and the model's to say."""
    return Sampling(options.max_tokens, options.temperature, options.seed)


async def _conversation(runtime: Runtime, options: AskOptions) -> str | NewChat:
    """The id of the conversation to go on with, or a new one."""
    if options.chat_id is not None:
        return named_chat(await runtime.chat.conversations(), options.chat_id).id
    if options.on is not None:
        return await _begun_on(runtime, options.on)
    known = await runtime.chat.conversations()
    if known and not options.new:
        return known[0].id
    return await runtime.chat.new_chat(options.system)


async def _begun_on(runtime: Runtime, name: str) -> NewChat:
    """A new chat on what was prepared under that name; where it has to be read again that is said before."""
    library = runtime.chat.library
    one = await library.named(name)
    usage = () if runtime.save_points.problem else (await runtime.save_points.usage()).conversations
    for standing in await library.standings(await runtime.engine.states_now(), usage):
        if standing.prepared.id == one.id and standing.why_not:
            told, why = calm(name), standing.why_not
            words = _("“{name}” is read first: {why}", name=told, why=why)
            if standing.time:
                time = roughly(standing.time)
                words = _("“{name}” is read first in {time}: {why}", name=told, time=time, why=why)
            remark(words)
    return library.new_chat(one)


def _answer(chat_id: str, reply: Message) -> dict[str, object]:
    """The object `--json` prints. Times in ms."""
    receipt = reply.receipt and {name: getattr(reply.receipt, name) for name in TOLD_OF_RECEIPT}
    if reply.receipt and receipt:
        why = reply.receipt.miss_reason
        receipt["source"] = reply.receipt.source.value
        receipt |= {"miss_reason": why.english if why else None, "miss_code": why.code if why else None}
    return {"chat_id": chat_id, "reply": reply.content, "receipt": receipt}
