"""What `ask` and `bench` share: the settings with the command line's options, and a runtime that is always closed."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvchat.cli.options import AskOptions, BenchOptions, PrepareOptions, ServeOptions
from kvchat.cli.terminal import show_progress
from kvchat.errors import KvchatError
from kvchat.library.remote.starter import StarterProgress, StarterStage, fetch_starter
from kvchat.settings import Settings, load_settings, save_settings
from kvchat.system.concurrency import Threads
from kvchat.system.paths import Paths
from kvchat.transfer.restore import finish_restore, in_use
from kvchat.words.language import _


class NoModelForCommand(KvchatError):
    """A command that needs a model was given none."""

    def __init__(self) -> None:
        super().__init__(
            _("No model is chosen yet"),
            "",
            _("Give one with --model PATH, or add --starter to fetch the small starter model (98 MB)."),
        )


class SettingsInUse(KvchatError):
    """The settings belong to a kvchat that runs."""

    def __init__(self) -> None:
        super().__init__(
            _("kvchat is running, and would not see it"),
            _("It keeps its settings until it ends."),
            _("Change it in its window, or quit it first."),
        )


async def chosen_settings(paths: Paths, options: AskOptions | BenchOptions | PrepareOptions | ServeOptions) -> Settings:
    """The user's settings, with this call's model and engine in their place. Raises KvchatError without a model."""
    finish_restore(paths)
    settings = _overridden(load_settings(paths.settings_file), options.model, options.engine)
    if settings.model_path or settings.engine_url:
        return settings
    if not options.starter and not await asyncio.to_thread(_starter_is_wanted):
        raise NoModelForCommand
    paths.ensure()
    path = str(await fetch_starter(paths.models, _show_progress))
    save_settings(paths.settings_file, dataclasses.replace(load_settings(paths.settings_file), model_path=path))
    return dataclasses.replace(settings, model_path=path)


def _starter_is_wanted() -> bool:
    """Whether the user, asked on the terminal, wants the starter model; nobody is asked elsewhere."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(
        _("No model is chosen yet. Fetch the small starter model, 98 MB? [Y/n]") + " ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    answer = sys.stdin.readline()
    return bool(answer) and answer.strip().lower() in ("", "y", "yes")


def change_settings(paths: Paths, **changes: Any) -> None:
    """Write changes into the settings. Raises SettingsInUse where a kvchat that runs would not see them."""
    if in_use(paths):
        raise SettingsInUse
    save_settings(paths.settings_file, dataclasses.replace(load_settings(paths.settings_file), **changes))


def _overridden(settings: Settings, model: Path | None, engine: Path | None) -> Settings:
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


def _show_progress(progress: StarterProgress) -> None:
    show_progress(_("Starter model: {value}", value=_(progress.stage.value)), progress.done, progress.total or 0)
    if progress.stage is StarterStage.READY and sys.stderr.isatty():
        print(file=sys.stderr)
