"""`kvchat serve`: one engine and one store behind an address, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from pathlib import Path

from kvchat.chat.events import EngineChanged, Event, Notice
from kvchat.cli.command_runtime import chosen_settings, run_until_interrupted
from kvchat.cli.options import ServeOptions
from kvchat.engine.speaking.connection import EngineState, EngineStatus
from kvchat.engine.speaking.errors import EngineFailure
from kvchat.engine_host.managed import EngineElsewhere
from kvchat.errors import KvchatError
from kvchat.runtime import open_runtime
from kvchat.settings import Settings
from kvchat.system.ownership import Owner, Ownership
from kvchat.system.paths import resolve_paths
from kvchat.words.language import _, sentences

NAME = "kvchat serve"


class DoorIsOpen(KvchatError):
    """Another kvchat has the engine, and a door to it."""

    def __init__(self, other: Owner) -> None:
        super().__init__(
            _("The engine is in use already"),
            _(
                "{name} (process {pid}) has it; the model is not loaded a second time.",
                name=_(other.name),
                pid=other.pid,
            ),
            _("In its window, Settings, Other programs opens the door to it; or end it first."),
        )


def run(options: ServeOptions) -> int:
    """Serve until SIGINT or SIGTERM, which is no fault. Returns the exit code. Raises KvchatError."""
    return run_until_interrupted(_serve(options))


async def _serve(options: ServeOptions) -> int:
    paths = resolve_paths()
    keys = await asyncio.to_thread(_keys, options.key_file)
    settings = _with_options(await chosen_settings(paths, options), options)
    ownership = Ownership(paths.state, NAME, lasts=True)
    if not settings.engine_url and (other := await asyncio.to_thread(ownership.claim)):
        raise DoorIsOpen(other) if other.lasts else EngineElsewhere(other)
    runtime = await open_runtime(paths, settings, ownership)
    try:
        runtime.events.subscribe(_hear)
        if problem := runtime.save_points.problem:
            _remark(str(problem))
        url = await runtime.door.open(settings.door_host, settings.door_port, keys)
        await runtime.serve()
        print(f"ready {url}", flush=True)
        with contextlib.suppress(asyncio.CancelledError):  # told to end, it has done what it was to do
            await asyncio.Event().wait()
    finally:
        await runtime.close()
    return 0


def _keys(file: Path | None) -> dict[str, str] | None:
    """Those in the file, None without one: then the user's own are asked for."""
    from kvchat.gateway.door.keys import read_key_file

    return read_key_file(file) if file is not None else None


def _with_options(settings: Settings, options: ServeOptions) -> Settings:
    host, port = options.host or settings.door_host, options.port or settings.door_port
    slots = settings.slots if options.slots is None else options.slots
    return dataclasses.replace(settings, door=True, door_host=host, door_port=port, slots=slots)


def _hear(event: Event) -> None:
    match event:
        case Notice(title=title, detail=detail):
            _remark(sentences(title, detail))
        case EngineChanged(status=EngineStatus(EngineState.FAILED, EngineFailure() as failure)):
            _remark(str(failure))
        case EngineChanged(status=EngineStatus(EngineState.STARTING, EngineFailure() as failure)):
            _remark(_("{title}. {detail} Trying again…", title=failure.title, detail=failure.detail))


def _remark(text: str) -> None:
    """All but the first line goes to standard error."""
    print(text, file=sys.stderr, flush=True)
