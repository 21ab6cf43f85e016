"""`kvchat engines`: list this computer's engines, test one, download one for the graphics card."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kvchat.cli.arguments import EngineName, EngineToGet, EngineToTest, JsonOptions
from kvchat.cli.owned import Commands
from kvchat.cli.terminal import say, show, show_progress
from kvchat.engine.finding.discovery import EngineEntry, find_engine, take_inventory, usable_engine
from kvchat.engine.finding.graphics import Backend, find_graphics, install_advice
from kvchat.engine_host.setup import EngineSetup, FetchedEngine, Stage, fetched_engines, trial_model
from kvchat.engine_host.trial import Trial, TrialStep, try_engine
from kvchat.errors import KvchatError
from kvchat.settings import load_settings
from kvchat.system.paths import resolve_paths
from kvchat.words.language import _
from kvchat.words.wording import size


def show_all(options: JsonOptions) -> int:
    paths = resolve_paths()
    fetched = fetched_engines(paths.engines)
    entries = take_inventory(load_settings(paths.settings_file).engine_path, [engine.location for engine in fetched])
    graphics = find_graphics()
    fields = {
        "engines": [
            {
                "kind": entry.location.kind,
                "path": entry.location.path,
                "chosen": entry.chosen,
                "version": entry.version,
                "build": entry.build,
                "backends": entry.backends,
                "devices": entry.devices,
                "problem": str(entry.problem) if entry.problem else None,
            }
            for entry in entries
        ],
        "fetched": [{"name": engine.name, "path": engine.location.path, "bytes": engine.size} for engine in fetched],
        "graphics": graphics.makers,
        "advice": install_advice(graphics),
    }
    show(options.as_json, fields, lines(entries, fetched))
    return 0 if any(entry.chosen for entry in entries) else 1


def lines(entries: tuple[EngineEntry, ...], fetched: Sequence[FetchedEngine] = ()) -> list[str]:
    told = []
    for entry in entries:
        told.append(f"{'*' if entry.chosen else ' '} {entry.location}")
        if entry.problem:
            told.append(f"    {entry.problem}")
            continue
        told.append(f"    {entry.version}")
        for device in entry.devices:
            memory = f" ({size(device.total_bytes)})" if device.total_bytes else ""
            told.append(f"    {device.name}: {device.description}{memory}")
        if not entry.devices:
            told.append("    " + _("CPU only"))
    told = told or [_("No engine was found.")]
    told += [
        "  "
        + _(
            "Downloaded: {name} ({size}); to delete: `kvchat engines remove {name}`",
            name=engine.name,
            size=size(engine.size),
        )
        for engine in fetched
    ]
    if not any(entry.backends for entry in entries):
        graphics = find_graphics()
        cards = _(" and ").join(maker.value for maker in graphics.makers)
        told += [
            "",
            _("GPU: {cards}. To use it:", cards=cards) if cards else _("GPU:"),
            *install_advice(graphics),
        ]
    return told


async def test(options: EngineToTest, commands: Commands) -> int:
    settings = commands.settings
    location = find_engine(options.path) if options.path else usable_engine(settings.engine_path)[0]

    def tell(step: TrialStep) -> None:
        if not options.as_json:
            _show_step(step)

    if not options.as_json:
        say(str(location))
    trial = await try_engine(location, trial_model(commands.paths, settings), tell)
    if options.as_json:
        show(True, _trial_fields(location, trial), ())
    return 0 if trial.works else 1


def _show_step(step: TrialStep) -> None:
    say(f"{'!' if step.error else ' '} {step.name}: {step.detail}".rstrip(": "))
    if step.error and step.error.advice:
        say(f"    {step.error.advice}")


def _trial_fields(engine: object, trial: Trial) -> dict[str, Any]:
    steps = [{"name": step.name, "detail": step.detail, "failed": step.error is not None} for step in trial.steps]
    return {"engine": str(engine), "works": trial.works, "steps": steps}


@asynccontextmanager
async def _setup(commands: Commands) -> AsyncIterator[EngineSetup]:
    if commands.is_open:
        yield (await commands.runtime()).engines
        return

    async def use(path: str | None) -> None:
        await commands.change_settings(engine_path=path)

    setup = EngineSetup(commands.paths, lambda: commands.settings, use)
    try:
        yield setup
    finally:
        await setup.close()


async def remove(options: EngineName, commands: Commands) -> int:
    async with _setup(commands) as setup:
        await setup.remove(options.name)
    return show(options.as_json, {"removed": options.name}, [_("{name} was removed.", name=options.name)])


async def get(options: EngineToGet, commands: Commands) -> int:
    wanted = next((backend for backend in Backend if backend.value.lower() == options.backend), None)
    async with _setup(commands) as setup:
        unsubscribe = setup.subscribe(lambda: None if options.as_json else progress.tell())
        progress = _Progress(setup)
        try:
            trial = await setup.get(wanted)
        finally:
            unsubscribe()
    if trial is None:
        raise KvchatError(
            _("The engine was not downloaded"), _("The download was canceled, or another one is in progress.")
        )
    path = commands.settings.engine_path
    used = _("Now in use: {path}", path=path)
    kept = _(
        "The new engine is not used; the previous engine stays in use. Run the command again to "
        "repeat the test without a download."
    )
    show(options.as_json, _trial_fields(path, trial), [used if trial.works else kept])
    return 0 if trial.works else 1


class _Progress:
    def __init__(self, setup: EngineSetup) -> None:
        self._setup = setup
        self._stage: Stage | None = None
        self._shown = 0

    def tell(self) -> None:
        now = self._setup.fetching
        if now is None:
            return
        if now.build and now.stage is not self._stage:
            self._stage = now.stage
            if now.stage is Stage.FETCHING:
                build, source = now.build, self._setup.source
                say(_("{name} ({size}) from {source}", name=build.name, size=size(build.size), source=source))
            elif now.stage is Stage.TRYING:
                say(_("Testing:"))
        if now.build and now.stage in (Stage.FETCHING, Stage.CHECKING, Stage.UNPACKING):
            show_progress(f"{_(now.stage.value).capitalize()}:", now.done, now.build.size)
        for step in now.steps[self._shown :]:
            _show_step(step)
        self._shown = len(now.steps)
