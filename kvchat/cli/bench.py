"""`kvchat bench`, `prepare` and `prepared`: prompts processed in advance, to measure the benefit or to use it.

The benchmark measures response times of the user's model, and bytes written to disk. Each of several short turns is
answered three times: with the prompt in the slot (hot), after an engine restart (warm), and restored from disk after a
restart of kvchat. The last turn is also answered without save points (cold).
"""

import asyncio
import dataclasses
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from kvchat.chat.events import Event, LibraryChanged, QuestionNotStored, TurnFailed
from kvchat.chat.prepared.documents import PreparationError, PreparedSet
from kvchat.chat.prepared.library import PreparationTooLong, PreparedStatus
from kvchat.chat.record.messages import Message, Receipt
from kvchat.cli.answering import NoModelForCommand, apply_options, open_command_runtime, show_starter_progress
from kvchat.cli.arguments import BenchOptions, EngineOptions, PreparedNameOptions, PreparedOptions, PrepareOptions
from kvchat.cli.owned import CommandRunner
from kvchat.cli.terminal import format_columns, pad_to_width, print_err, print_out, print_result, stderr_is_tty
from kvchat.engine.api.wire import ChatMessage, Sampling
from kvchat.errors import KvchatError
from kvchat.library.remote.starter import fetch_starter
from kvchat.runtime import Runtime, open_runtime
from kvchat.session.events import Saved
from kvchat.session.proof import Source
from kvchat.settings import Settings, load_settings
from kvchat.system.paths import Paths, resolve_paths
from kvchat.text.formatting import format_duration, format_estimate, format_size, format_timestamp
from kvchat.text.language import N_, _, format_number, join_list, plural
from kvchat.text.safe_text import safe_prose

DEFAULT_TOKENS = 3000  # approximate length of the chat
QUESTIONS = (  # one per round
    "Which of these notes was the first? Answer in one sentence.",
    "Which of these notes was the last? Answer in one sentence.",
    "Who of them left the most things? Answer in one sentence.",
)
PEOPLE = ("Ada", "Bram", "Chen", "Dana", "Elif", "Femi", "Goro", "Hana", "Ivan", "Juno", "Kofi", "Lena", "Mina")
THINGS = ("river", "lamp", "garden", "letter", "bridge", "violin", "harbour", "engine", "orchard", "mirror")
SAMPLED_NOTES = 40  # number of notes tokenized to measure their average length
REPLY_TOKENS = 32


class BenchFailed(KvchatError):
    pass


@dataclass(frozen=True)
class BenchReply:
    text: str
    receipt: Receipt


class BenchSetup:
    """A kvchat with a temporary data folder. It can be restarted, and its replies use greedy sampling."""

    def __init__(self, paths: Paths, settings: Settings, runtime: Runtime, reply_tokens: int) -> None:
        self.paths, self.settings = paths, settings  # changed settings apply at the next restart
        self.greedy_sampling = Sampling(reply_tokens, temperature=0.0, seed=1)
        self._error: KvchatError | None = None
        self.saves: list[Saved] = []  # of all turns so far
        self.runtime = runtime
        runtime.events.subscribe(self._handle_event)

    async def ask(self, chat_id: str, text: str | None, *, save: bool = True) -> BenchReply:
        """Send a message, or regenerate the last reply if `text` is None. Raises KvchatError."""
        chat = self.runtime.chat
        if text is None:
            return await self.wait_for(chat.retry(chat_id, self.greedy_sampling, save=save))
        return await self.wait_for(chat.send(chat_id, text, self.greedy_sampling, save=save))

    def check_save_count(self, times: int) -> None:
        if len(self.saves) != times:
            raise BenchFailed("A chat could not be saved", "", "See `kvchat doctor` for the free disk space.")

    async def wait_for(self, turn: asyncio.Future[Message | None]) -> BenchReply:
        message = await turn
        await self.runtime.chat.wait_until_idle()
        if message is None or message.receipt is None:
            raise self._error or BenchFailed("The model did not reply", "", "Try another model.")
        return BenchReply(message.content, message.receipt)

    async def make_notes(self, tokens: int, first: int = 1) -> str:
        engine = (await self.runtime.engine.ready()).engine
        sample = [ChatMessage("user", _numbered_notes(SAMPLED_NOTES, first))]
        tokens_per_note = len(await engine.prompt_tokens(sample)) / SAMPLED_NOTES
        return _numbered_notes(max(1, round(tokens / tokens_per_note)), first)

    async def restart_engine(self) -> None:
        await self.runtime.stop_engine()
        await self.runtime.engine.ready()

    async def restart(self) -> None:
        await self.runtime.close()
        self.runtime = await open_runtime(self.paths, self.settings)
        self.runtime.events.subscribe(self._handle_event)
        await self.runtime.engine.ready()

    def _handle_event(self, event: Event) -> None:
        match event:
            case Saved():
                self.saves.append(event)
            case TurnFailed(error=error) | QuestionNotStored(error=error):
                self._error = error


@asynccontextmanager
async def bench_home(
    options: BenchOptions, context_size: int | None = None, reply_tokens: int = REPLY_TOKENS
) -> AsyncIterator[BenchSetup]:
    paths = resolve_paths()
    settings = apply_options(load_settings(paths.settings_file), options)
    if not (settings.model_path or settings.engine_url):
        if not options.starter:
            raise NoModelForCommand
        model = await fetch_starter(paths.ensure().models, show_starter_progress)
        settings = dataclasses.replace(settings, model_path=str(model))
    # With more slots, a chat could stay loaded instead of being restored.
    settings = dataclasses.replace(
        settings, context_size=context_size or settings.context_size, read_ahead="always", slots=1
    )
    paths.ensure()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=paths.cache) as folder:
        paths = Paths(*(Path(folder) / name for name in ("config", "data", "cache", "state")))
        home = BenchSetup(paths, settings, await open_runtime(paths, settings), reply_tokens)
        try:
            yield home
        finally:
            await home.runtime.close()


def median_ttft(replies: Sequence[BenchReply]) -> float:
    return median(reply.receipt.ttft_ms for reply in replies)


def median_ttft_ratio(replies: Sequence[BenchReply], baseline: Sequence[BenchReply]) -> float:
    pairs = zip(replies, baseline, strict=True)
    return median(reply.receipt.ttft_ms / other.receipt.ttft_ms for reply, other in pairs)


def _numbered_notes(count: int, first: int) -> str:
    lines = [
        f"Note {i}: on day {i * 7 % 365}, {PEOPLE[i % 13]} left the {THINGS[i % 10]} by the {THINGS[(i * 3 + 1) % 10]}"
        f" and wrote down the number {i * 7919 % 10007}."
        for i in range(first, first + count)
    ]
    return "Read these notes.\n" + "\n".join(lines)


async def bench(options: BenchOptions, runner: CommandRunner) -> int:
    """Run the benchmark and print its results; progress is printed to standard error. Raises KvchatError."""
    async with bench_home(options) as home:
        figures = await _measure(home, options.tokens or DEFAULT_TOKENS)
    return print_result(options.as_json, figures, format_lines(figures))


async def _measure(home: BenchSetup, tokens: int) -> dict[str, Any]:
    """Return the results under the names that `--json` prints. Times are medians in ms, sizes are in bytes."""
    print_err(f"Creating a chat of about {tokens:,} tokens…")
    chat_id = (await home.runtime.chat.new_conversation()).id
    await home.ask(chat_id, await home.make_notes(tokens - 2 * len(QUESTIONS) * REPLY_TOKENS))
    hot, warm, restored, written = list[BenchReply](), list[BenchReply](), list[BenchReply](), list[int]()
    for number, question in enumerate(QUESTIONS):
        # Before each round, the slot is at the turn boundary of the previous one.
        print_err(f"Round {number + 1} of {len(QUESTIONS)}: hot, after an engine restart, after a restart of kvchat…")
        hot.append(await home.ask(chat_id, question, save=False))
        await home.restart_engine()
        warm.append(await home.ask(chat_id, None, save=False))
        await home.restart()
        before = await home.runtime.save_points.usage()
        restored.append(await home.ask(chat_id, None))
        usage = await home.runtime.save_points.usage()
        written.append(usage.bytes_written - before.bytes_written)
    home.check_save_count(1 + len(QUESTIONS))

    print_err("Cold: after a restart, without save points…")
    await home.runtime.save_points.delete(chat_id)
    await home.restart_engine()
    cold = await home.ask(chat_id, None, save=False)
    row = (await home.runtime.engine.ready()).kv_bytes_per_token
    stays_warm = all(reply.receipt.source is Source.WARM for reply in warm)
    new_rows = [int((after.tokens - before.tokens) * row) for before, after in pairwise(home.saves)]
    return {
        "cold_ttft_ms": cold.receipt.ttft_ms,  # measured once
        "hot_ttft_ms": median_ttft(hot),
        "warm_ttft_ms": median_ttft(warm) if stays_warm else None,  # including the restore
        "warm_ratio": median_ttft_ratio(warm, hot) if stays_warm else None,
        "restored_ttft_ms": median_ttft(restored),  # from disk, restore included
        "restored_ratio": median_ttft_ratio(restored, hot),
        "restore_ms": median(reply.receipt.restore_ms for reply in restored),
        "save_ms": median(saved.ms for saved in home.saves[1:]),
        "prompt_tokens": restored[-1].receipt.prompt_tokens,
        "cached_tokens": restored[-1].receipt.cached_tokens,
        "disk_bytes": usage.physical_bytes,
        "disk_ratio": usage.physical_bytes / max(1.0, home.saves[-1].tokens * row),  # per byte of the chat's KV rows
        "last_reply_bytes_written": written[-1],
        "new_rows_bytes_last_reply": new_rows[-1],  # KV rows of the last turn's own tokens
        "write_ratio": sum(written) / max(1, sum(new_rows)),  # over all short turns
        "outputs_agree": all(  # greedy replies after restores equal the hot ones
            first.text == second.text == third.text for first, second, third in zip(hot, warm, restored, strict=True)
        ),
        # May be False, because processing tokens in batches rounds differently from generating them one by one.
        "cold_output_agrees": hot[-1].text == cold.text,
    }


def format_lines(result: dict[str, Any]) -> list[str]:
    speedup = result["cold_ttft_ms"] / result["restored_ttft_ms"]
    restored = (
        f"{format_duration(result['restored_ttft_ms'])}   ({result['restored_ratio']:.2f} times hot;"
        f" cold takes {speedup:.0f} times as long)"
    )
    warm = "not measured: save points are not kept in memory"
    if result["warm_ttft_ms"] is not None:
        warm = f"{format_duration(result['warm_ttft_ms'])}   ({result['warm_ratio']:.2f} times hot)"
    written = f"{format_size(result['last_reply_bytes_written'])}   ({result['write_ratio']:.2f} times its new rows)"
    rows = [
        ("Time to first token, cold", format_duration(result["cold_ttft_ms"])),
        ("Time to first token, hot", format_duration(result["hot_ttft_ms"])),
        ("Time to first token, from memory", warm),
        ("Time to first token after a restart", restored),
        ("  of which restore", format_duration(result["restore_ms"])),
        ("Tokens reused from the save point", f"{result['cached_tokens']:,} of {result['prompt_tokens']:,}"),
        ("Time to save after a reply", format_duration(result["save_ms"])),
        ("Written for the last reply", written),
        ("Disk used by the chat", f"{format_size(result['disk_bytes'])}   ({result['disk_ratio']:.2f} times its rows)"),
        ("Greedy reply after restoring equals the hot one", "yes" if result["outputs_agree"] else "NO"),
        (
            "Greedy cold reply equals the hot one",
            "yes" if result["cold_output_agrees"] else "no (the engine rounds differently)",
        ),
    ]
    return format_columns(rows)


# Prepared documents.


async def prepare(options: PrepareOptions, runner: CommandRunner) -> int:
    runtime = await open_command_runtime(runner, options)
    library, documents = runtime.chat.library, await _find_or_add(runtime, options)

    def show_progress(event: Event) -> None:
        progress = library.processing.get(documents.id)
        if isinstance(event, LibraryChanged) and stderr_is_tty() and progress is not None:
            done, total = format_number(progress.done_tokens), format_number(progress.total)
            amount = _("{done} of {total} tokens", done=done, total=total) if progress.total else ""
            print_err("\r" + _("Processing: {amount}", amount=pad_to_width(amount, 30)), end="")

    unsubscribe = runtime.events.subscribe(show_progress)
    try:
        documents = await library.process(documents)
        if runner.is_own_command:
            await runtime.chat.wait_until_idle()
    finally:
        unsubscribe()
    if stderr_is_tty():
        print_err("")
    facts = (
        plural(len(documents.sources), "{count} file", "{count} files"),
        _("{tokens} tokens", tokens=format_number(documents.tokens)),
        _("processed in {time}", time=format_duration(documents.read_ms)) if documents.read_ms else "",
    )
    print_out(_("“{name}” is prepared: {what}.", name=safe_prose(documents.name), what=join_list(facts)))
    return 0


async def _find_or_add(runtime: Runtime, options: PrepareOptions) -> PreparedSet:
    library = runtime.chat.library
    for documents in await library.all():
        if documents.name == options.name:
            paths = set(map(str, options.paths))
            if paths and paths != set(documents.paths):
                title, detail = (
                    _("“{name}” already exists", name=options.name),
                    _("It was made from {paths}.", paths=join_list(documents.paths)),
                )
                raise PreparationError(title, detail, _("Choose another name, or remove it first."))
            return documents
    if not options.paths:
        title = _("“{name}” does not exist yet", name=options.name)
        raise PreparationError(title, "", _("Specify the files or folders to process."))
    estimate = await library.estimate(options.paths, await runtime.engine.fingerprint_and_limit())
    facts = (
        plural(estimate.files, "{count} file", "{count} files"),
        _("about {tokens} tokens", tokens=format_number(estimate.tokens)),
        format_estimate(estimate.time) if estimate.time else "",
    )
    print_err(join_list(facts))
    if estimate.is_too_long:
        raise PreparationTooLong(estimate)
    return await library.add(options.paths, options.name)


def _json_fields(status: PreparedStatus, folder: Path) -> dict[str, Any]:
    documents = status.prepared
    return {
        "name": documents.name,
        "paths": documents.paths,
        "files": len(documents.sources),
        "place": folder,
        "tokens": documents.tokens,
        "bytes": status.bytes,
        "reading": status.time,
        "model": documents.model,
        "context_size": documents.context_size,
        "read_at": documents.created_at if documents.is_read else None,
        "stale": bool(status.changes),
        "changes": status.changes.text if status.changes else "",
        "ready": not status.reprocess_reason,
        "why_not": status.reprocess_reason,
    }


def _prepared_row(status: PreparedStatus) -> tuple[str, ...]:
    documents, seconds = status.prepared, format_estimate(status.time) if status.time else _("an unknown time")
    readiness = _("saves {seconds}", seconds=seconds)
    if why_not := status.reprocess_reason:
        readiness = _("not ready: {why_not}; processing takes {seconds}", why_not=why_not, seconds=seconds)
    return (
        safe_prose(documents.name),
        plural(len(documents.sources), "{count} file", "{count} files"),
        plural(documents.tokens, "{count} token", "{count} tokens"),
        format_size(status.bytes),
        readiness,
        safe_prose(Path(documents.model).stem),
        _("processed {timestamp}", timestamp=format_timestamp(documents.created_at)) if documents.is_read else "",
        _("{changes} since then", changes=status.changes.text) if status.changes else "",
    )


async def _runtime_for(runner: CommandRunner, options: EngineOptions) -> Runtime:
    return await (open_command_runtime(runner, options) if options.model or options.engine else runner.runtime())


async def list_prepared(options: PreparedOptions, runner: CommandRunner) -> int:
    runtime = await _runtime_for(runner, options)
    usage = await runtime.save_points.usage()
    statuses = await runtime.chat.library.statuses(await runtime.engine.fingerprint_and_limit(), usage.conversations)
    folder = runner.paths.save_points
    text = N_(
        "No prepared documents. Run `kvchat prepare PATH... --name NAME` to process documents in advance for new chats."
    )
    lines = [_(text)]
    if statuses:
        lines = [_("Saved in {folder}", folder=folder), *format_columns(list(map(_prepared_row, statuses)))]
    return print_result(options.as_json, {"prepared": [_json_fields(status, folder) for status in statuses]}, lines)


async def remove_prepared(options: PreparedNameOptions, runner: CommandRunner) -> int:
    library = (await _runtime_for(runner, options)).chat.library
    await library.remove(await library.find(options.name))
    print_out(_("“{name}” was removed.", name=safe_prose(options.name)))
    return 0
