"""`kvchat prepare` and `kvchat prepared`: create, list and remove prepared documents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kvchat.chat.events import Event, LibraryChanged
from kvchat.chat.prepared.documents import PreparationError, PreparedSet
from kvchat.chat.prepared.library import PreparationTooLong, PreparedStatus
from kvchat.cli.answering import open_command_runtime
from kvchat.cli.arguments import EngineOptions, PreparedNameOptions, PreparedOptions, PrepareOptions
from kvchat.cli.owned import Commands
from kvchat.cli.terminal import columns, padded, print_err, print_out, print_result, stderr_is_tty
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_duration, format_estimate, format_size, format_timestamp
from kvchat.text.language import N_, _, format_number, join_list, plural
from kvchat.text.safe_text import safe_prose


async def prepare(options: PrepareOptions, commands: Commands) -> int:
    runtime = await open_command_runtime(commands, options)
    library, document = runtime.chat.library, await _find_or_add(runtime, options)

    def handle_event(event: Event) -> None:
        reading = library.reading.get(document.id)
        if isinstance(event, LibraryChanged) and stderr_is_tty() and reading is not None:
            done, total = format_number(reading.done), format_number(reading.total)
            amount = _("{done} of {total} tokens", done=done, total=total) if reading.total else ""
            print_err("\r" + _("Processing: {amount}", amount=padded(amount, 30)), end="")

    unsubscribe = runtime.events.subscribe(handle_event)
    try:
        now = await library.read(document)
        if commands.is_local:
            await runtime.chat.idle()
    finally:
        unsubscribe()
    if stderr_is_tty():
        print_err("")
    what = (
        plural(len(now.sources), "{count} file", "{count} files"),
        _("{tokens} tokens", tokens=format_number(now.tokens)),
        _("processed in {time}", time=format_duration(now.read_ms)) if now.read_ms else "",
    )
    print_out(_("“{name}” is prepared: {what}.", name=safe_prose(now.name), what=join_list(what)))
    return 0


async def _find_or_add(runtime: Runtime, options: PrepareOptions) -> PreparedSet:
    library = runtime.chat.library
    found = next((prepared for prepared in await library.all() if prepared.name == options.name), None)
    if found is not None:
        given = await asyncio.to_thread(lambda: {str(path.absolute()) for path in options.paths})
        if given and given != set(found.paths):
            what, advice = (
                _("It was made from {paths}.", paths=join_list(found.paths)),
                _("Choose another name, or remove it first."),
            )
            raise PreparationError(_("“{name}” already exists", name=options.name), what, advice)
        return found
    if not options.paths:
        title = _("“{name}” does not exist yet", name=options.name)
        raise PreparationError(title, "", _("Specify the files or folders to process."))
    now = await runtime.engine.states_now()
    estimate = await library.estimate(options.paths, now)
    expected = (
        plural(estimate.files, "{count} file", "{count} files"),
        _("about {tokens} tokens", tokens=format_number(estimate.tokens)),
        format_estimate(estimate.time) if estimate.time else "",
    )
    print_err(join_list(expected))
    if estimate.is_too_long:
        raise PreparationTooLong(estimate)
    return await library.add(options.paths, options.name)


def _fields(standing: PreparedStatus, folder: Path) -> dict[str, Any]:
    prepared = standing.prepared
    return {
        "name": prepared.name,
        "paths": prepared.paths,
        "files": len(prepared.sources),
        "place": folder,
        "tokens": prepared.tokens,
        "bytes": standing.bytes,
        "reading": standing.time,
        "model": prepared.model,
        "context_size": prepared.context_size,
        "read_at": prepared.created_at if prepared.is_read else None,
        "stale": bool(standing.changes),
        "changes": standing.changes.text if standing.changes else "",
        "ready": not standing.reprocess_reason,
        "why_not": standing.reprocess_reason,
    }


def _row(standing: PreparedStatus) -> tuple[str, ...]:
    prepared, seconds = standing.prepared, format_estimate(standing.time) if standing.time else _("an unknown time")
    return (
        safe_prose(prepared.name),
        plural(len(prepared.sources), "{count} file", "{count} files"),
        plural(prepared.tokens, "{count} token", "{count} tokens"),
        format_size(standing.bytes),
        _("not ready: {why_not}; processing takes {seconds}", why_not=standing.reprocess_reason, seconds=seconds)
        if standing.reprocess_reason
        else _("saves {seconds}", seconds=seconds),
        safe_prose(Path(prepared.model).stem),
        _("processed {timestamp}", timestamp=format_timestamp(prepared.created_at)) if prepared.is_read else "",
        _("{changes} since then", changes=standing.changes.text) if standing.changes else "",
    )


async def _runtime_for(commands: Commands, options: EngineOptions) -> Runtime:
    return await (open_command_runtime(commands, options) if options.model or options.engine else commands.runtime())


async def list_prepared(options: PreparedOptions, commands: Commands) -> int:
    runtime = await _runtime_for(commands, options)
    usage = await runtime.save_points.usage()
    standings = await runtime.chat.library.statuses(await runtime.engine.states_now(), usage.conversations)
    folder = commands.paths.save_points
    nothing = N_(
        "No prepared documents. Run `kvchat prepare PATH... --name NAME` to process documents in advance for new chats."
    )
    lines = [_(nothing)]
    if standings:
        lines = [_("Saved in {save_points}", save_points=folder), *columns(list(map(_row, standings)))]
    return print_result(options.as_json, {"prepared": [_fields(standing, folder) for standing in standings]}, lines)


async def remove(options: PreparedNameOptions, commands: Commands) -> int:
    library = (await _runtime_for(commands, options)).chat.library
    await library.remove(await library.find(options.name))
    print_out(_("“{name}” was removed.", name=safe_prose(options.name)))
    return 0
