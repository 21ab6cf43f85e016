"""`kvchat prepare` and `kvchat prepared`."""

import asyncio
from pathlib import Path
from typing import Any

from kvchat.chat.events import Event, LibraryChanged
from kvchat.chat.prepared.documents import PreparationError, PreparedSet
from kvchat.chat.prepared.library import PreparationTooLong, PreparedStatus
from kvchat.cli.answering import open_command_runtime
from kvchat.cli.arguments import EngineOptions, PreparedNameOptions, PreparedOptions, PrepareOptions
from kvchat.cli.owned import CommandRunner
from kvchat.cli.terminal import format_columns, pad_to_width, print_err, print_out, print_result, stderr_is_tty
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_duration, format_estimate, format_size, format_timestamp
from kvchat.text.language import N_, _, format_number, join_list, plural
from kvchat.text.safe_text import safe_prose


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
            paths = await asyncio.to_thread(lambda: {str(path.absolute()) for path in options.paths})
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
