"""What commands share: the settings with the command line's options, and an event loop that signals end."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvchat.cli.options import AskOptions, PrepareOptions, ServeOptions
from kvchat.cli.owned import Commands
from kvchat.cli.terminal import current_terminal, remark, show_progress, shows_progress
from kvchat.errors import KvchatError
from kvchat.library.remote.starter import StarterProgress, StarterStage, fetch_starter
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from kvchat.system.concurrency import Threads
from kvchat.words.language import _


class NoModelForCommand(KvchatError):
    """A command that needs a model was given none."""

    def __init__(self) -> None:
        super().__init__(
            _("No model is chosen yet"),
            "",
            _("Give one with --model PATH, or add --starter to fetch the small starter model (98 MB)."),
        )


class EngineRuns(KvchatError):
    """An engine was named, and kvchat runs with another."""

    def __init__(self) -> None:
        super().__init__(
            _("kvchat is running with its own engine"),
            "",
            _("Leave --engine out, choose the engine in its settings, or quit it first."),
        )


async def opened_runtime(commands: Commands, options: AskOptions | PrepareOptions | ServeOptions) -> Runtime:
    """The runtime, with this call's model and engine where it is opened for this call. Raises KvchatError."""
    if commands.is_open and options.engine:
        raise EngineRuns
    return await commands.runtime(await chosen_settings(commands, options))


async def chosen_settings(commands: Commands, options: AskOptions | PrepareOptions | ServeOptions) -> Settings:
    """The user's settings, with this call's model and engine in their place. Raises KvchatError without a model."""
    settings = with_options(await asyncio.to_thread(lambda: commands.settings), options.model, options.engine)
    if settings.model_path or settings.engine_url:
        return settings
    if not options.starter and not await _starter_is_wanted():
        raise NoModelForCommand
    path = str(await fetch_starter(commands.paths.models, show_starter))
    await commands.change_settings(model_path=path)
    return dataclasses.replace(settings, model_path=path)


async def _starter_is_wanted() -> bool:
    """Ask on the terminal whether the user wants the starter model; nobody is asked elsewhere."""
    terminal = current_terminal.get()
    if terminal is None or not terminal.asks:
        return False
    answer = await terminal.read_line(_("No model is chosen yet. Fetch the small starter model, 98 MB? [Y/n]") + " ")
    return answer is not None and answer.strip().lower() in ("", "y", "yes")


def with_options(settings: Settings, model: Path | None, engine: Path | None) -> Settings:
    """Return the settings with a model and an engine that a command names."""
    if engine:
        settings = dataclasses.replace(settings, engine_path=str(engine.absolute()), engine_url=None)
    if model:
        settings = dataclasses.replace(settings, model_path=str(model.absolute()), engine_url=None)
    return settings


def run_until_interrupted(work: Coroutine[Any, Any, int]) -> int:
    """Run a command's coroutine; Ctrl+C or SIGTERM cancels it, so that its clean-up still stops the engine.

    A second one ends the process, whatever is not done yet.
    """
    signals = (signal.SIGINT, signal.SIGTERM)

    async def supervised() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        loop.set_default_executor(Threads())
        told: list[int] = []

        def end(number: int) -> None:
            told.append(number)
            task.cancel()
            for one in signals:
                loop.remove_signal_handler(one)
                signal.signal(one, signal.SIG_DFL)

        for number in signals:
            with suppress(NotImplementedError):  # Windows: Ctrl+C arrives as KeyboardInterrupt instead
                loop.add_signal_handler(number, end, number)
        try:
            return await task
        except asyncio.CancelledError:
            return 128 + (told[0] if told else signal.SIGINT)  # as a shell has it

    return asyncio.run(supervised())


def show_starter(progress: StarterProgress) -> None:
    """Print how far the starter model is."""
    show_progress(_("Starter model: {value}", value=_(progress.stage.value)), progress.done, progress.total or 0)
    if progress.stage is StarterStage.READY and shows_progress():
        remark("")
