"""`kvchat ask` and `kvchat serve`."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator

from kvchat.chat import events
from kvchat.chat.attachments import read_attachment
from kvchat.chat.options import NewChat
from kvchat.chat.record.messages import Attachment, Message
from kvchat.chat.turn.receipts import receipt_sentence
from kvchat.chat.turn.tool_calls import Answer, Decision, PendingCall
from kvchat.cli.arguments import AskOptions, EngineOptions, ServeOptions
from kvchat.cli.chats import find_chat
from kvchat.cli.owned import CommandRunner
from kvchat.cli.terminal import (
    current_terminal,
    print_err,
    print_out,
    show_progress,
    stderr_is_tty,
    stdout_is_tty,
    to_json,
)
from kvchat.cli.tools import check_may_start, check_tools_exist
from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.errors import EngineFailure
from kvchat.engine.api.wire import Sampling
from kvchat.errors import KvchatError
from kvchat.library.remote.starter import READY, fetch_starter
from kvchat.runtime import Runtime
from kvchat.session.events import IncreasingContext, RestoreFailed, Saved, SaveSkipped
from kvchat.settings import Settings
from kvchat.text.formatting import format_estimate, format_size, one_line
from kvchat.text.language import N_, _, format_number, join_sentences
from kvchat.text.safe_text import safe_prose
from kvchat.tools.tool import BUILT_IN

RECEIPT_FIELDS = ["ttft_ms", "restore_ms", "prefill_ms", "prompt_tokens", "cached_tokens", "predicted_tokens", "source"]
WAITING_MESSAGE = N_("Another reply is being generated; waiting…")
SLOW_SAVE_S = 1.0  # slower saves are reported
PROMPT = "> "
_KEYS_HINT = N_("Press Ctrl+C to stop a reply, Ctrl+D to quit.")


class NoModelForCommand(KvchatError):
    def __init__(self) -> None:
        super().__init__(
            _("No model is chosen yet"),
            "",
            _("Specify one with --model PATH, or add --starter to download the small starter model (98 MB)."),
        )


async def open_command_runtime(runner: CommandRunner, options: EngineOptions) -> Runtime:
    if runner.open_runtime and options.engine:
        advice = _("Omit --engine, choose the engine in the kvchat settings, or quit kvchat first.")
        raise KvchatError(_("kvchat is already running with another engine"), "", advice)
    return await runner.runtime(await _settings_with_model(runner, options))


async def _settings_with_model(runner: CommandRunner, options: EngineOptions) -> Settings:
    settings = apply_options(await asyncio.to_thread(lambda: runner.settings), options)
    if settings.model_path or settings.engine_url:
        return settings
    terminal = current_terminal.get()
    if not options.starter:
        if not (terminal and terminal.is_interactive):
            raise NoModelForCommand
        prompt = _("No model is chosen yet. Download the small starter model (98 MB)? [Y/n]") + " "
        answer = await terminal.read_line(prompt)
        if answer is None or answer.strip().lower() not in ("", "y", "yes"):
            raise NoModelForCommand
    path = str(await fetch_starter(runner.paths.models, show_starter_progress))
    await runner.change_settings(model_path=path)
    return dataclasses.replace(settings, model_path=path)


def apply_options(settings: Settings, options: EngineOptions) -> Settings:
    if options.engine:
        settings = dataclasses.replace(settings, engine_path=str(options.engine), engine_url=None)
    if options.model:
        settings = dataclasses.replace(settings, model_path=str(options.model), engine_url=None)
    return settings


def show_starter_progress(stage: str, done: int, total: int) -> None:
    show_progress(_("Starter model: {stage}", stage=_(stage)), done, total)
    if stage == READY and stderr_is_tty():
        print_err("")


async def serve(options: ServeOptions, runner: CommandRunner) -> int:
    """Run the API server until SIGINT or SIGTERM, after which the exit code is 0. Raises KvchatError."""
    from kvchat.gateway.keys import read_key_file

    if not runner.is_own_command:
        detail = _(
            "{name} (process {pid}) is using the engine, and kvchat does not load a model twice.",
            name=runner.name,
            pid=os.getpid(),
        )
        advice = _("Enable the API server in the kvchat settings, or quit kvchat first.")
        raise KvchatError(_("kvchat is already running"), detail, advice)
    runner.is_long_running = True
    keys = await asyncio.to_thread(read_key_file, options.key_file) if options.key_file else None
    settings = await _settings_with_model(runner, options)
    settings = dataclasses.replace(
        settings,
        api_server=True,
        api_host=options.host or settings.api_host,
        api_port=options.port or settings.api_port,
        slots=settings.slots if options.slots is None else options.slots,
        share_devices=options.share or settings.share_devices,
        share_port=options.share_port or settings.share_port,
    )
    runtime = await runner.runtime(settings)
    runtime.events.subscribe(_print_event)
    if problem := runtime.save_points.problem:
        print_err(str(problem))
    url = await runtime.api_server.open(settings.api_host, settings.api_port, keys)
    await runtime.start_serving()
    print_out(f"ready {url}")
    for address in runtime.api_server.sharing.addresses:
        print_out(f"shared {address}")

    def report_engine_failure(event: events.Event) -> None:
        match event:
            case events.EngineChanged(status=EngineStatus(EngineState.FAILED, EngineFailure() as failure)):
                print_err(join_sentences(failure.title, failure.detail, failure.advice))

    runtime.events.subscribe(report_engine_failure)  # before this, start_serving raises failures
    with contextlib.suppress(asyncio.CancelledError):  # the normal end of this command
        await asyncio.Event().wait()
    return 0


def _print_event(event: events.Event) -> None:
    match event:
        case events.Notice(title=title, detail=detail):
            print_err(join_sentences(title, detail))
        case events.EngineChanged(status=EngineStatus(EngineState.STARTING, EngineFailure() as failure)):
            print_err(_("{title}. {detail} Trying again…", title=failure.title, detail=failure.detail))


class ChatSession:
    """A chat in the terminal: sends questions and prints the events of their turns."""

    def __init__(self, runtime: Runtime, options: AskOptions) -> None:
        self.runtime, self.chat_id = runtime, ""
        self.attachments: tuple[Attachment, ...] = ()  # of the next question
        self.new_chat: NewChat | None = None  # None once its first question is stored
        self.reports_saves = True  # False in a conversation, where the user types the next question meanwhile
        self._as_json = options.as_json
        self._sampling = Sampling(options.max_tokens, options.temperature, options.seed)
        self._allow_tools, self._terminal = options.allow_tools, current_terminal.get()
        self._shown_calls: set[tuple[str, bool]] = set()  # ids, and True while waiting for permission
        self._error: KvchatError | None = None
        self._in_turn = False  # True from the start of this command's turn until it is saved
        self._is_answered = False  # its last reply is complete

    async def ask(self, question: str) -> Message | None:
        """Print the answer and return it, or None if there is none. Cancelling stops the reply. Raises KvchatError."""
        attachments, self.attachments, self._error = self.attachments, (), None
        chat = self.runtime.chat
        if chat.is_answering(self.chat_id):
            print_err(_(WAITING_MESSAGE))
        if any(not attachment.data for attachment in attachments):
            attachments = await self._fit(question, attachments)
        sent = chat.send(
            self.chat_id,
            question,
            self._sampling,
            attachments=attachments,
            new=self.new_chat,
            on_start=self._start_turn,
        )
        sent.add_done_callback(self._end_reply)
        reply = await sent
        if self.new_chat and await chat.conversation(self.chat_id):
            self.new_chat = None
        if self._error:
            raise self._error
        return reply

    async def _fit(self, question: str, attachments: tuple[Attachment, ...]) -> tuple[Attachment, ...]:
        """Mark documents that are too long to be quoted in passages, and tell the user. Raises KvchatError."""
        chat_id = None if self.new_chat else self.chat_id
        fitted = await self.runtime.chat.context.quote_longest(chat_id, question, attachments, start_engine=True)
        for attachment in fitted:
            if attachment.whole:
                too_long = _("“{name}” does not fit in the model's context", name=safe_prose(attachment.name))
                remedy = _("kvchat keeps the text with the chat and quotes the passages that match each question.")
                print_err(join_sentences(too_long, remedy))
        return fitted

    def _start_turn(self) -> None:
        self._in_turn, self._is_answered = True, False

    def _end_reply(self, _reply: object) -> None:
        self._is_answered = True

    async def _ask_permission(self, pending: PendingCall) -> None:
        """Ask in the terminal whether a call may run; without a terminal it may not."""
        choices = {"y": Decision.ONCE, "c": Decision.CHAT, "a": Decision.ALWAYS}
        terminal = self._terminal if self._terminal and self._terminal.is_interactive else None
        answer, note = None, "" if terminal else "Nobody can be asked."
        if self._allow_tools:
            answer = "y"
        elif terminal:
            answer = await terminal.read_line(_("Allow this call? [y]es, in this [c]hat, [a]lways, [N]o:") + " ")
        else:
            print_err(_("The call was not allowed: there is no terminal to ask in. Allow calls with --allow-tools."))
        decision = choices.get((answer or "").strip().lower()[:1], Decision.DENY)
        self.runtime.chat.turns.tool_calls.answer(pending.key, Answer(decision, note=note))

    def _show_calls(self) -> None:
        for pending in self.runtime.chat.turns.tool_calls.pending_in(self.chat_id):
            if (shown := (pending.key, pending.is_waiting)) in self._shown_calls:
                continue
            self._shown_calls.add(shown)
            call = f"{pending.tool.source}/{pending.tool.name} {pending.call.arguments}"
            call = one_line(safe_prose(call))
            if pending.is_waiting:
                if not self._allow_tools:
                    print_err(_("The model wants to call {call}", call=call))
                self._asking = asyncio.ensure_future(self._ask_permission(pending))
            else:
                print_err(_("calling {call}", call=call))

    def handle_event(self, event: events.Event) -> None:
        chat = getattr(event, "conversation_id", "")
        if chat and (
            chat != self.chat_id
            or not (self._in_turn or isinstance(event, events.TurnFailed | events.QuestionNotStored))
        ):
            return
        if isinstance(event, Saved | SaveSkipped) and self._is_answered:  # not between the rounds of tool calls
            self._in_turn = False
        match event:
            case events.ReplyDelta(text=text) if not self._as_json:
                print_out(safe_prose(text) if stdout_is_tty() else text, end="")
            case events.ReplyFinished(receipt=receipt):
                if not self._as_json:
                    print_out()
                    print_err(receipt_sentence(receipt) if receipt else _("stopped"))
            case events.CallsChanged():
                self._show_calls()
            case events.WaitingForChat():
                print_err(_(WAITING_MESSAGE))
            case IncreasingContext(is_finished=False):
                print_err(_("increasing the context length..."))
            case RestoreFailed(reason=reason):
                print_err(_("chat memory was not used: {reason}", reason=reason.text))
            case Saved(bytes=saved_bytes, ms=ms) if self.reports_saves:
                print_err(_("saved {size} in {ms} ms", size=format_size(saved_bytes), ms=format_number(ms)))
            case SaveSkipped(reason=reason) if self.reports_saves:
                print_err(_("not saved: {reason}", reason=reason.text))
            case events.TurnFailed(error=error) | events.QuestionNotStored(error=error):
                self._error = error
            case events.EngineChanged(status=EngineStatus(EngineState.FAILED)):
                pass  # reported by the turn
            case _:
                _print_event(event)


@contextlib.asynccontextmanager
async def _open_chat_session(options: AskOptions, runner: CommandRunner) -> AsyncIterator[ChatSession]:
    runtime = await open_command_runtime(runner, options)
    session = ChatSession(runtime, options)
    unsubscribe = runtime.events.subscribe(session.handle_event)
    try:
        if problem := runtime.save_points.problem:
            print_err(str(problem))
        session.attachments = tuple([await asyncio.to_thread(read_attachment, path) for path in options.attach])
        chat = await _select_chat(runtime, options)
        if isinstance(chat, NewChat):
            session.new_chat, session.chat_id = chat, chat.id
            if options.model:
                session.new_chat = dataclasses.replace(chat, model=str(options.model))
        else:
            session.chat_id = chat
            if options.model:
                await runtime.chat.use_model(chat, str(options.model))
        yield session
    finally:
        unsubscribe()


async def _select_chat(runtime: Runtime, options: AskOptions) -> str | NewChat:
    chats = await runtime.chat.conversations()
    if options.tools:
        if options.chat_id is not None or options.prepared is not None:
            title = _("--tools works only with new chats")
            raise KvchatError(title, _("The tools of a chat are chosen when it starts."), _("Omit --chat and --on."))
        for source in {name.partition("/")[0] for name in options.tools} - {BUILT_IN}:
            check_may_start(runtime.mcp_servers, source)
        new = await runtime.chat.new_chat(options.system)
        tools = tuple(name if "/" in name else f"{name}/*" for name in options.tools)
        check_tools_exist(await runtime.chat.tool_choice.offers(tools), tools)
        return dataclasses.replace(new, options=dataclasses.replace(new.options, tools=tools))
    if options.chat_id is not None:
        return find_chat(chats, options.chat_id).id
    if options.prepared is None:
        return chats[0].id if chats and not options.new else await runtime.chat.new_chat(options.system)
    library = runtime.chat.library
    prepared = await library.find(options.prepared)
    usage = () if runtime.save_points.problem else (await runtime.save_points.usage()).conversations
    (status,) = await library.statuses(await runtime.engine.fingerprint_and_limit(), usage, only=prepared)
    if why := status.reprocess_reason:
        name = safe_prose(options.prepared)
        if status.time:
            time = format_estimate(status.time)
            print_err(_("“{name}” must be processed first, which takes {time}: {why}", name=name, time=time, why=why))
        else:
            print_err(_("“{name}” must be processed first: {why}", name=name, why=why))
    return await library.new_chat(prepared)


async def ask(options: AskOptions, runner: CommandRunner) -> int:
    if not options.prompt:
        return await _run_conversation(options, runner)
    async with _open_chat_session(options, runner) as session:
        error: KvchatError | None = None
        reply: Message | None = None
        try:
            reply = await session.ask(options.prompt)
        except KvchatError as failed:
            error = failed  # reported after cleanup
        if runner.is_own_command:
            idle = asyncio.ensure_future(session.runtime.chat.wait_until_idle())
            try:
                await asyncio.wait({idle}, timeout=SLOW_SAVE_S)
                if not idle.done():
                    _report_unfinished_save(session.runtime)
                await idle
            except asyncio.CancelledError:  # Ctrl+C: quit without saving
                session.runtime.cancel_saving()
                raise
            if (finding := session.runtime.engine.finding) and not finding.strategy.supports_saving:
                print_err(finding.description)
        if error:
            raise error
        if options.as_json and reply:
            receipt = reply.receipt and {name: getattr(reply.receipt, name) for name in RECEIPT_FIELDS}
            if reply.receipt and receipt:
                why = reply.receipt.miss_reason
                receipt |= {"miss_reason": why.english if why else None, "miss_code": why.code if why else None}
            print_out(to_json({"chat_id": session.chat_id, "reply": reply.content, "receipt": receipt}))
        return 0 if reply else 1


def _report_unfinished_save(runtime: Runtime) -> bool:
    if (unfinished := runtime.pending_save) is None:
        return False
    text = N_("saving the memory of this chat ({words}); press Ctrl+C to quit without saving it")
    print_err(_(text, words=unfinished.description))
    return True


async def _run_conversation(options: AskOptions, runner: CommandRunner) -> int:
    terminal = current_terminal.get()
    assert terminal is not None
    runner.is_long_running = runner.is_own_command or runner.is_long_running
    async with _open_chat_session(options, runner) as session:
        runtime = session.runtime
        session.reports_saves = False
        terminal.send("converse")
        terminal.stop_reply = lambda: runtime.chat.stop(session.chat_id)
        conversation = await runtime.chat.conversation(session.chat_id)
        title = one_line(safe_prose(conversation.title)) if conversation else ""
        print_err(f"{f'“{title}”. ' if title else ''}{_(_KEYS_HINT)}")
        while (question := await terminal.read_line(PROMPT)) is not None:
            if not question.strip():
                print_err(_(_KEYS_HINT))
                continue
            try:
                await session.ask(question)
            except KvchatError as error:  # already reported; continue
                print_err("\n  ".join(filter(None, (error.title, error.detail, error.advice))))
        if runner.is_own_command and _report_unfinished_save(runtime):
            terminal.stop_reply = runtime.cancel_saving
            await runtime.chat.wait_until_idle()
    return 0
