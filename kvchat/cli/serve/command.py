"""`kvchat serve`: one engine and one store behind an address, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from pathlib import Path

from kvchat.chat.events import EngineChanged, Event, Notice
from kvchat.cli import owned
from kvchat.cli.command_runtime import chosen_settings
from kvchat.cli.options import ServeOptions
from kvchat.cli.terminal import remark, say
from kvchat.engine.speaking.connection import EngineState, EngineStatus
from kvchat.engine.speaking.errors import EngineFailure
from kvchat.errors import KvchatError
from kvchat.settings import Settings
from kvchat.words.language import _, sentences


class GatewayElsewhere(KvchatError):
    """Another kvchat has the data, and its API server."""

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(
            _("kvchat is running"),
            _("{name} (process {pid}) has the engine; the model is not loaded a second time.", name=name, pid=pid),
            _("Switch the API server on in its settings, or quit it first."),
        )


def run(options: ServeOptions) -> int:
    """Serve until SIGINT or SIGTERM, which is no fault. Returns the exit code. Raises KvchatError."""
    return owned.run("serve", options)


async def serve(options: ServeOptions, commands: owned.Commands) -> int:
    """As `run`."""
    if not commands.is_own:
        raise GatewayElsewhere(commands.name, os.getpid())
    keys = await asyncio.to_thread(_keys, options.key_file)
    settings = _with_options(await chosen_settings(commands, options), options)
    runtime = await commands.runtime(settings)
    runtime.events.subscribe(_hear)
    if problem := runtime.save_points.problem:
        remark(str(problem))
    url = await runtime.door.open(settings.door_host, settings.door_port, keys)
    await runtime.serve()
    say(f"ready {url}")
    with contextlib.suppress(asyncio.CancelledError):  # told to end, it has done what it was to do
        await asyncio.Event().wait()
    return 0


def _keys(file: Path | None) -> dict[str, str] | None:
    """Those in the file, None without one: then the user's own are asked for."""
    from kvchat.gateway.keys import read_key_file

    return read_key_file(file) if file is not None else None


def _with_options(settings: Settings, options: ServeOptions) -> Settings:
    host, port = options.host or settings.door_host, options.port or settings.door_port
    slots = settings.slots if options.slots is None else options.slots
    return dataclasses.replace(settings, door=True, door_host=host, door_port=port, slots=slots)


def _hear(event: Event) -> None:
    match event:
        case Notice(title=title, detail=detail):
            remark(sentences(title, detail))
        case EngineChanged(status=EngineStatus(EngineState.FAILED, EngineFailure() as failure)):
            remark(str(failure))
        case EngineChanged(status=EngineStatus(EngineState.STARTING, EngineFailure() as failure)):
            remark(_("{title}. {detail} Trying again…", title=failure.title, detail=failure.detail))
