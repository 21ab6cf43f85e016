"""`kvchat ask` and `kvchat serve`: the same turns as the window's, without Qt."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

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
from kvchat.chat.record.messages import Attachment, Message
from kvchat.chat.turn.receipts import receipt_sentence
from kvchat.cli.arguments import AskOptions, EngineOptions, ServeOptions
from kvchat.cli.chats import named_chat
from kvchat.cli.owned import Commands
from kvchat.cli.terminal import as_json, current_terminal, remark, say, show_progress, shows_progress, shows_text
from kvchat.engine.speaking.connection import EngineState, EngineStatus
from kvchat.engine.speaking.errors import EngineFailure
from kvchat.engine.speaking.wire import Sampling
from kvchat.errors import KvchatError
from kvchat.library.remote.starter import READY, fetch_starter
from kvchat.runtime import Runtime
from kvchat.session.events import MakingRoom, RestoreFailed, Saved, SaveSkipped
from kvchat.settings import Settings
from kvchat.words.language import N_, _, number, sentences
from kvchat.words.safe_text import calm
from kvchat.words.wording import one_line, roughly
from kvchat.words.wording import size as size_in_words

TOLD_OF_RECEIPT = (
    *("ttft_ms", "restore_ms", "prefill_ms", "prompt_tokens", "cached_tokens", "predicted_tokens"),
    "source",
)
WAITING = N_("Another reply is being generated; waiting…")
SAID_AFTER_S = 1.0  # report slower saves
PROMPT = "> "
_ENDS = N_("Press Ctrl+C to stop a reply, Ctrl+D to quit.")


class NoModelForCommand(KvchatError):
    def __init__(self) -> None:
        super().__init__(
            _("No model is chosen yet"),
            "",
            _("Specify one with --model PATH, or add --starter to download the small starter model (98 MB)."),
        )


async def opened_runtime(commands: Commands, options: EngineOptions) -> Runtime:
    if commands.is_open and options.engine:
        advice = _("Omit --engine, choose the engine in the kvchat settings, or quit kvchat first.")
        raise KvchatError(_("kvchat is already running with another engine"), "", advice)
    return await commands.runtime(await _chosen_settings(commands, options))


async def _chosen_settings(commands: Commands, options: EngineOptions) -> Settings:
    settings = with_options(await asyncio.to_thread(lambda: commands.settings), options)
    if settings.model_path or settings.engine_url:
        return settings
    terminal, starter = current_terminal.get(), options.starter
    if not starter and terminal and terminal.asks:
        prompt = _("No model is chosen yet. Download the small starter model (98 MB)? [Y/n]") + " "
        answer = await terminal.read_line(prompt)
        starter = answer is not None and answer.strip().lower() in ("", "y", "yes")
    if not starter:
        raise NoModelForCommand
    path = str(await fetch_starter(commands.paths.models, show_starter))
    await commands.change_settings(model_path=path)
    return dataclasses.replace(settings, model_path=path)


def with_options(settings: Settings, options: EngineOptions) -> Settings:
    if options.engine:
        settings = dataclasses.replace(settings, engine_path=str(options.engine.absolute()), engine_url=None)
    if options.model:
        settings = dataclasses.replace(settings, model_path=str(options.model.absolute()), engine_url=None)
    return settings


def show_starter(stage: str, done: int, total: int) -> None:
    show_progress(_("Starter model: {value}", value=_(stage)), done, total)
    if stage == READY and shows_progress():
        remark("")


async def serve(options: ServeOptions, commands: Commands) -> int:
    """Serve other programs until SIGINT or SIGTERM, which is no error. Raises KvchatError."""
    from kvchat.gateway.keys import read_key_file

    if not commands.is_own:
        sentence = N_("The engine belongs to {name} (process {pid}), and the model is not loaded twice.")
        raise KvchatError(
            _("kvchat is already running"),
            _(sentence, name=commands.name, pid=os.getpid()),
            _("Enable the API server in the kvchat settings, or quit kvchat first."),
        )
    commands.lasts = True
    keys = await asyncio.to_thread(read_key_file, options.key_file) if options.key_file else None
    settings = await _chosen_settings(commands, options)
    settings = dataclasses.replace(
        settings,
        door=True,
        door_host=options.host or settings.door_host,
        door_port=options.port or settings.door_port,
        slots=settings.slots if options.slots is None else options.slots,
    )
    runtime = await commands.runtime(settings)
    runtime.events.subscribe(_hear)
    if problem := runtime.save_points.problem:
        remark(str(problem))
    url = await runtime.door.open(settings.door_host, settings.door_port, keys)
    await runtime.serve()
    say(f"ready {url}")
    runtime.events.subscribe(_report_engine_failure)  # earlier failures are raised
    with contextlib.suppress(asyncio.CancelledError):  # a normal end of this command
        await asyncio.Event().wait()
    return 0


def _hear(event: Event) -> None:
    match event:
        case Notice(title=title, detail=detail):
            remark(sentences(title, detail))
        case EngineChanged(status=EngineStatus(EngineState.STARTING, EngineFailure() as failure)):
            remark(_("{title}. {detail} Trying again…", title=failure.title, detail=failure.detail))


def _report_engine_failure(event: Event) -> None:
    match event:
        case EngineChanged(status=EngineStatus(EngineState.FAILED, EngineFailure() as failure)):
            remark(sentences(failure.title, failure.detail, failure.advice))


@dataclass
class _Printer:
    as_json: bool
    chat_id: str = ""
    error: KvchatError | None = None
    tells_saves: bool = True  # False if the user types the next question meanwhile
    heard: bool = False  # from turn start to save; other events belong to another command's turn

    def begin(self) -> None:
        self.heard = True

    def hear(self, event: Event) -> None:
        chat = getattr(event, "conversation_id", "")
        if chat and (chat != self.chat_id or not (self.heard or isinstance(event, TurnFailed | QuestionNotStored))):
            return
        if isinstance(event, Saved | SaveSkipped):
            self.heard = False
        match event:
            case ReplyDelta(text=text) if not self.as_json:
                say(calm(text) if shows_text() else text, end="")
            case ReplyFinished(receipt=receipt):
                if not self.as_json:
                    say()
                    remark(receipt_sentence(receipt) if receipt else _("stopped"))
            case WaitingForChat():
                remark(_(WAITING))
            case MakingRoom(done=False):
                remark(_("increasing the context length..."))
            case RestoreFailed(reason=reason):
                remark(_("the save point was not used: {reason}", reason=reason.words))
            case Saved(bytes=size, ms=ms) if self.tells_saves:
                remark(_("saved {size} in {ms} ms", size=size_in_words(size), ms=number(ms)))
            case SaveSkipped(reason=reason) if self.tells_saves:
                remark(_("not saved: {reason}", reason=reason.words))
            case TurnFailed(error=error) | QuestionNotStored(error=error):
                self.error = error
            case EngineChanged(status=EngineStatus(EngineState.FAILED)):
                pass  # reported by the turn
            case _:
                _hear(event)


@dataclass
class Talk:
    runtime: Runtime
    chat_id: str
    printer: _Printer
    sampling: Sampling
    attachments: tuple[Attachment, ...]  # for the next question
    new: NewChat | None  # unset once its first question is stored

    async def ask(self, question: str) -> Message | None:
        """Print and return the answer, None on failure; stops if cancelled. Raises KvchatError."""
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
        self.runtime.chat.stop(self.chat_id)


@contextlib.asynccontextmanager
async def open_talk(options: AskOptions, commands: Commands) -> AsyncIterator[Talk]:
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
        sampling = Sampling(options.max_tokens, options.temperature, options.seed)
        yield Talk(runtime, chat_id, printer, sampling, attachments, new)
    finally:
        unsubscribe()


async def _conversation(runtime: Runtime, options: AskOptions) -> str | NewChat:
    known = await runtime.chat.conversations()
    if options.chat_id is not None:
        return named_chat(known, options.chat_id).id
    if options.on is None:
        return known[0].id if known and not options.new else await runtime.chat.new_chat(options.system)
    library = runtime.chat.library
    prepared = await library.find(options.on)
    usage = () if runtime.save_points.problem else (await runtime.save_points.usage()).conversations
    (standing,) = await library.statuses(await runtime.engine.states_now(), usage, only=prepared)
    if why := standing.reprocess_reason:
        name = calm(options.on)
        if standing.time:
            time = roughly(standing.time)
            remark(_("“{name}” must be processed first, which takes {time}: {why}", name=name, time=time, why=why))
        else:
            remark(_("“{name}” must be processed first: {why}", name=name, why=why))
    return library.new_chat(prepared)


async def ask(options: AskOptions, commands: Commands) -> int:
    if not options.prompt:
        return await _converse(options, commands)
    async with open_talk(options, commands) as talk:
        error: KvchatError | None = None
        reply: Message | None = None
        try:
            reply = await talk.ask(options.prompt)
        except KvchatError as failed:
            error = failed  # reported after cleanup
        if commands.is_own:
            await _kept(talk.runtime)
            if (finding := talk.runtime.engine.finding) and not finding.strategy.saves:
                remark(finding.words)
        if error:
            raise error
        if options.as_json and reply:
            receipt = reply.receipt and {name: getattr(reply.receipt, name) for name in TOLD_OF_RECEIPT}
            if reply.receipt and receipt:
                why = reply.receipt.miss_reason
                receipt |= {"miss_reason": why.english if why else None, "miss_code": why.code if why else None}
            say(as_json({"chat_id": talk.chat_id, "reply": reply.content, "receipt": receipt}))
        return 0 if reply else 1


async def _kept(runtime: Runtime) -> None:
    """Wait until the reply is saved; Ctrl+C quits without it."""
    idle = asyncio.ensure_future(runtime.chat.idle())
    try:
        await asyncio.wait({idle}, timeout=SAID_AFTER_S)
        if not idle.done():
            _tell_unfinished(runtime)
        await idle
    except asyncio.CancelledError:
        runtime.give_up_saving()
        raise


def _tell_unfinished(runtime: Runtime) -> bool:
    if (unfinished := runtime.unfinished) is None:
        return False
    words = _(
        "saving the memory of this chat ({words}); press Ctrl+C to quit without saving it", words=unfinished.words
    )
    remark(words)
    return True


async def _converse(options: AskOptions, commands: Commands) -> int:
    terminal = current_terminal.get()
    assert terminal is not None
    commands.lasts = commands.is_own or commands.lasts
    async with open_talk(options, commands) as talk:
        talk.printer.tells_saves = False
        terminal.send("converse")
        terminal.stop = talk.stop
        conversation = await talk.runtime.chat.conversation(talk.chat_id)
        title = one_line(calm(conversation.title)) if conversation else ""
        remark(f"{f'“{title}”. ' if title else ''}{_(_ENDS)}")
        while (question := await terminal.read_line(PROMPT)) is not None:
            if not question.strip():
                remark(_(_ENDS))
                continue
            try:
                await talk.ask(question)
            except KvchatError as error:  # already reported; continue
                remark("\n  ".join(filter(None, (error.title, error.detail, error.advice))))
        if commands.is_own and _tell_unfinished(talk.runtime):
            terminal.stop = talk.runtime.give_up_saving
            await talk.runtime.chat.idle()
    return 0
