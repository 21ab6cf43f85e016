"""`kvchat prepare` and `kvchat prepared`: documents that are read once, and what is kept of them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.chat.events import Event, LibraryChanged
from kvchat.chat.prepared.record import Prepared
from kvchat.chat.prepared.service import why_not_ready
from kvchat.chat.prepared.sources import CannotPrepare, Changes
from kvchat.cli.command_runtime import chosen_settings, run_until_interrupted
from kvchat.cli.options import PrepareOptions
from kvchat.cli.terminal import columns
from kvchat.kvstore.savepoint import ConversationUsage
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import load_settings
from kvchat.system.paths import resolve_paths
from kvchat.words.safe_text import calm
from kvchat.words.wording import duration, roughly, several, size, timestamp


def run_prepare(options: PrepareOptions) -> int:
    """Read documents and keep what the model made of them. Returns the exit code. Raises KvchatError."""
    return run_until_interrupted(_prepare(options))


def run_prepared(options: PrepareOptions) -> int:
    """List what was prepared, or remove one. Returns the exit code. Raises KvchatError."""
    return run_until_interrupted(_prepared(options))


async def _prepare(options: PrepareOptions) -> int:
    paths = resolve_paths()
    runtime = await open_runtime(paths, await chosen_settings(paths, options.model, options.engine))
    library = runtime.chat.library

    def hear(event: Event) -> None:
        if isinstance(event, LibraryChanged) and sys.stderr.isatty():
            for reading in library.reading.values():
                amount = f"{reading.done:,} of {reading.total:,} tokens" if reading.total else ""
                print(f"\rReading: {amount:<30}", end="", file=sys.stderr, flush=True)

    runtime.events.subscribe(hear)
    try:
        one = await _meant(runtime, options)
        try:
            now = await library.read(one)
        except CannotPrepare:
            if not one.is_read:
                await library.remove(one)  # it is of no use, and its name may be wanted again
            raise
        await runtime.chat.idle()
    finally:
        await runtime.close()
    if sys.stderr.isatty():
        print(file=sys.stderr)
    took = f", read in {duration(now.read_ms)}" if now.read_ms else ""
    print(f"“{calm(now.name)}” is prepared: {several(len(now.sources), 'file')}, {now.tokens:,} tokens{took}.")
    return 0


async def _meant(runtime: Runtime, options: PrepareOptions) -> Prepared:
    """The set of that name, or a new one, with an estimate for whoever waits."""
    library = runtime.chat.library
    found = next((one for one in await library.all() if one.name == options.name), None)
    if found is not None:
        given = await asyncio.to_thread(lambda: {str(path.absolute()) for path in options.paths})
        if given and given != set(found.paths):
            words, advice = f"It was made of {', '.join(found.paths)}.", "Choose another name, or remove it first."
            raise CannotPrepare(f"There is something called “{options.name}” already", words, advice)
        return found
    if not options.paths:
        raise CannotPrepare(f"There is nothing called “{options.name}” yet", "", "Say which files or folders to read.")
    files = [Path(path) for path in options.paths]
    now = await runtime.engine.states_now()
    estimate = await library.estimate(files, now[0].model if now else "")
    time = f", {roughly(estimate.seconds)}" if estimate.seconds else ""
    words = f"{several(estimate.files, 'file')}, about {estimate.tokens:,} tokens{time}"
    print(words, file=sys.stderr)
    return await library.add(files, options.name)


@dataclass(frozen=True)
class _Shown:
    """What is told of a set."""

    prepared: Prepared
    usage: ConversationUsage | None
    changes: Changes
    why_not: str
    seconds: float | None

    def fields(self, folder: Path) -> dict[str, Any]:
        """As JSON: sizes in bytes, times in seconds or ISO 8601."""
        one, usage = self.prepared, self.usage
        return {
            "name": one.name,
            "paths": one.paths,
            "files": len(one.sources),
            "place": str(folder),
            "tokens": one.tokens,
            "bytes": usage.bytes if usage else 0,
            "exclusive_bytes": usage.exclusive_bytes if usage else 0,
            "seconds_saved": self.seconds,
            "model": one.model,
            "context_size": one.context_size,
            "read_at": one.created_at.isoformat() if one.is_read else None,
            "stale": bool(self.changes),
            "changes": self.changes.words if self.changes else "",
            "ready": not self.why_not,
            "why_not": self.why_not,
        }

    @property
    def row(self) -> tuple[str, ...]:
        """For a reader."""
        one, seconds = self.prepared, roughly(self.seconds) if self.seconds else "a time never measured"
        return (
            calm(one.name),
            several(len(one.sources), "file"),
            f"{one.tokens:,} tokens",
            size(self.usage.bytes if self.usage else 0),
            f"not ready: {self.why_not}; reading takes {seconds}" if self.why_not else f"saves {seconds}",
            calm(Path(one.model).stem),
            f"read {timestamp(one.created_at)}" if one.is_read else "",
            f"{self.changes.words} since" if self.changes else "",
        )


async def _prepared(options: PrepareOptions) -> int:
    paths = resolve_paths()
    given = options.model or options.engine
    settings = (
        await chosen_settings(paths, options.model, options.engine) if given else load_settings(paths.settings_file)
    )
    runtime = await open_runtime(paths, settings)
    try:
        if options.action == "remove":
            await runtime.chat.library.remove(await runtime.chat.library.named(options.name))
            print(f"“{calm(options.name)}” is removed.")
            return 0
        shown = await _shown(runtime)
    finally:
        await runtime.close()
    if options.as_json:
        print(json.dumps({"prepared": [one.fields(paths.save_points) for one in shown]}, ensure_ascii=False))
    elif not shown:
        print("Nothing is prepared. `kvchat prepare PATH... --name NAME` reads documents once, for chats to begin on.")
    else:
        print("\n".join([f"Kept in {paths.save_points}", *columns([one.row for one in shown])]))
    return 0


async def _shown(runtime: Runtime) -> Sequence[_Shown]:
    library, now = runtime.chat.library, await runtime.engine.states_now()
    fingerprint, limit = now or (None, None)
    usage = {one.conversation_id: one for one in (await runtime.save_points.usage()).conversations}
    return [
        _Shown(
            one,
            usage.get(one.owner),
            await library.changes(one),
            why_not_ready(one, usage.get(one.owner), fingerprint, limit),
            await library.seconds(one, fingerprint),
        )
        for one in await library.all()
    ]
