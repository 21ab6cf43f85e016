"""`kvchat engines`: the engines of this computer, trying one out, and having one for the graphics card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kvchat.cli import owned
from kvchat.cli.command_runtime import run_until_interrupted
from kvchat.cli.options import EnginesOptions
from kvchat.cli.terminal import say, show_progress
from kvchat.engine.finding.discovery import EngineEntry, EngineLocation, find_engine, take_inventory, usable_engine
from kvchat.engine.finding.graphics import Backend, find_graphics, install_advice
from kvchat.engine_host.fetching import EngineFetcher, FetchedEngine, Stage
from kvchat.engine_host.setup import EngineSetup, trial_model
from kvchat.engine_host.trial import Trial, TrialStep, try_engine
from kvchat.errors import KvchatError
from kvchat.settings import Settings, load_settings
from kvchat.system.paths import Paths, resolve_paths
from kvchat.words.language import _
from kvchat.words.wording import size


def run(options: EnginesOptions) -> int:
    """List the engines, or try one. Returns the exit code: 1 where none can be used. Raises KvchatError."""
    paths = resolve_paths()
    settings = load_settings(paths.settings_file)
    match options.action:
        case "test":
            return _test(paths, settings, options)
        case "get" | "remove":
            return owned.run("engines", options)
    fetched = EngineFetcher(paths.engines, lambda: None).fetched()
    entries = take_inventory(settings.engine_path, [one.location for one in fetched])
    print(json.dumps(_fields(entries, fetched), indent=2) if options.as_json else "\n".join(lines(entries, fetched)))
    return 0 if any(entry.chosen for entry in entries) else 1


def lines(entries: tuple[EngineEntry, ...], fetched: Sequence[FetchedEngine] = ()) -> list[str]:
    """The list as a person reads it; the engine in use is marked."""
    told = [line for entry in entries for line in _entry_lines(entry)] or [_("No engine was found.")]
    told += [
        "  " + _("Fetched: {name} ({size}); `kvchat engines remove {name}`", name=one.name, size=size(one.size))
        for one in fetched
    ]
    graphics = find_graphics()
    if not any(entry.backends for entry in entries):
        cards = _(" and ").join(maker.value for maker in graphics.makers)
        told += [
            "",
            _("Graphics: {cards}. To use it:", cards=cards) if cards else _("Graphics:"),
            *install_advice(graphics),
        ]
    return told


def _entry_lines(entry: EngineEntry) -> Iterator[str]:
    yield f"{'*' if entry.chosen else ' '} {entry.location}"
    if entry.problem:
        yield f"    {entry.problem}"
        return
    yield f"    {entry.version}"
    for device in entry.devices:
        memory = f" ({size(device.total_bytes)})" if device.total_bytes else ""
        yield f"    {device.name}: {device.description}{memory}"
    if not entry.devices:
        yield "    " + _("the processor alone")


def _fields(entries: tuple[EngineEntry, ...], fetched: Sequence[FetchedEngine]) -> dict[str, Any]:
    """The list as JSON. Sizes in bytes."""
    graphics = find_graphics()
    return {
        "engines": [
            {
                "kind": entry.location.kind.value,
                "path": str(entry.location.path) if entry.location.path else None,
                "chosen": entry.chosen,
                "version": entry.version,
                "build": entry.build,
                "backends": list(entry.backends),
                "devices": [vars(device) for device in entry.devices],
                "problem": str(entry.problem) if entry.problem else None,
            }
            for entry in entries
        ],
        "fetched": [{"name": one.name, "path": str(one.location.path), "bytes": one.size} for one in fetched],
        "graphics": [maker.value for maker in graphics.makers],
        "advice": list(install_advice(graphics)),
    }


def _test(paths: Paths, settings: Settings, options: EnginesOptions) -> int:
    location = _wanted(settings, options.path)

    def tell(step: TrialStep) -> None:
        if not options.as_json:
            _show_step(step)

    if not options.as_json:
        print(location, flush=True)

    async def test() -> int:
        trial = await try_engine(location, trial_model(paths, settings), tell)
        if options.as_json:
            print(json.dumps(_trial_fields(location, trial), indent=2))
        return 0 if trial.works else 1

    return run_until_interrupted(test())


def _show_step(step: TrialStep) -> None:
    say(f"{'!' if step.error else ' '} {step.name}: {step.detail}".rstrip(": "))
    if step.error and step.error.advice:
        say(f"    {step.error.advice}")


async def change(options: EnginesOptions, commands: owned.Commands) -> int:
    """Fetch an engine or remove a fetched one. Returns the exit code. Raises KvchatError."""
    if commands.is_open:
        return await _change((await commands.runtime()).engines, options, commands)

    async def use(path: str | None) -> None:
        await commands.change_settings(engine_path=path)

    setup = EngineSetup(commands.paths, lambda: commands.settings, use)
    try:
        return await _change(setup, options, commands)
    finally:
        await setup.close()


async def _change(setup: EngineSetup, options: EnginesOptions, commands: owned.Commands) -> int:
    if options.action == "remove":
        await setup.remove(options.name)
        say(json.dumps({"removed": options.name}) if options.as_json else _("{name} is removed.", name=options.name))
        return 0
    shown = 0
    stage: Stage | None = None

    def tell() -> None:
        nonlocal stage, shown
        now = setup.fetching
        if now is None or options.as_json:
            return
        if now.build and now.stage is not stage:
            stage = now.stage
            if stage is Stage.FETCHING:
                say(
                    _(
                        "{name} ({size}) from {source}",
                        name=now.build.name,
                        size=size(now.build.size),
                        source=setup.fetcher.source,
                    ),
                )
            elif stage is Stage.TRYING:
                say(_("Trying it out:"))
        if now.build and now.stage in (Stage.FETCHING, Stage.CHECKING, Stage.UNPACKING):
            show_progress(f"{_(now.stage.value).capitalize()}:", now.done, now.build.size)
        for step in now.steps[shown:]:
            _show_step(step)
        shown = len(now.steps)

    unsubscribe = setup.subscribe(tell)
    wanted = next((backend for backend in Backend if backend.value.lower() == options.backend), None)
    try:
        trial = await setup.get(wanted)
    finally:
        unsubscribe()
    if trial is None:
        raise KvchatError(_("The engine was not fetched"), _("It was cancelled, or another one is being fetched."))
    path = commands.settings.engine_path
    if options.as_json:
        say(json.dumps(_trial_fields(path, trial), indent=2))
    elif trial.works:
        say(_("In use now: {path}", path=path))
    else:
        say(_("It is not used; the engine you had stays. The same command tries it again without a download."))
    return 0 if trial.works else 1


def _wanted(settings: Settings, path: str | None) -> EngineLocation:
    """The engine that was named, or the one kvchat would start."""
    return find_engine(path) if path else usable_engine(settings.engine_path)[0]


def _trial_fields(engine: object, trial: Trial) -> dict[str, Any]:
    """A trial as JSON. `engine`: the one tried or, after a fetch, the one in use."""
    return {
        "engine": str(engine),
        "works": trial.works,
        "steps": [{"name": step.name, "detail": step.detail, "failed": step.error is not None} for step in trial.steps],
    }
