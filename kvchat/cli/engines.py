"""`kvchat engines`: the engines of this computer, trying one out, and having one for the graphics card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kvchat.cli.command_runtime import SettingsInUse, change_settings, run_until_interrupted
from kvchat.cli.options import EnginesOptions
from kvchat.cli.terminal import show_progress
from kvchat.engine.finding.discovery import EngineLocation, find_engine
from kvchat.engine.finding.graphics import Backend, find_graphics, install_advice
from kvchat.engine.finding.probe import EngineEntry, take_inventory, usable_engine
from kvchat.engine_host.fetching import EngineFetcher, FetchedEngine, Stage
from kvchat.engine_host.setup import EngineSetup, trial_model
from kvchat.engine_host.trial import Trial, TrialStep, try_engine
from kvchat.settings import Settings, load_settings
from kvchat.system.paths import Paths, resolve_paths
from kvchat.transfer.restore import in_use
from kvchat.words.language import _
from kvchat.words.wording import size


def run(options: EnginesOptions) -> int:
    """List the engines, or try one. Returns the exit code: 1 where none can be used. Raises KvchatError."""
    paths = resolve_paths()
    settings = load_settings(paths.settings_file)
    match options.action:
        case "test":
            return _test(paths, settings, options)
        case "get":
            return run_until_interrupted(_get(paths, options))
        case "remove":
            return run_until_interrupted(_remove(paths, options))
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
    print(f"{'!' if step.error else ' '} {step.name}: {step.detail}".rstrip(": "), flush=True)
    if step.error and step.error.advice:
        print(f"    {step.error.advice}", flush=True)


async def _get(paths: Paths, options: EnginesOptions) -> int:
    """Fetch an engine, try it out and use it: what the button in the settings does."""
    if in_use(paths.ensure()):
        raise SettingsInUse
    setup, shown = _setup(paths), 0
    stage: Stage | None = None

    def tell() -> None:
        nonlocal stage, shown
        now = setup.fetching
        if now is None or options.as_json:
            return
        if now.build and now.stage is not stage:
            stage = now.stage
            if stage is Stage.FETCHING:
                print(
                    _(
                        "{name} ({size}) from {source}",
                        name=now.build.name,
                        size=size(now.build.size),
                        source=setup.fetcher.source,
                    ),
                    flush=True,
                )
            elif stage is Stage.TRYING:
                print(_("Trying it out:"), flush=True)
        if now.build and now.stage in (Stage.FETCHING, Stage.CHECKING, Stage.UNPACKING):
            show_progress(f"{_(now.stage.value).capitalize()}:", now.done, now.build.size)
        for step in now.steps[shown:]:
            _show_step(step)
        shown = len(now.steps)

    setup.subscribe(tell)
    wanted = next((backend for backend in Backend if backend.value.lower() == options.backend), None)
    try:
        trial = await setup.get(wanted)
    finally:
        await setup.close()
    assert trial is not None  # nobody else could cancel it
    path = load_settings(paths.settings_file).engine_path
    if options.as_json:
        print(json.dumps(_trial_fields(path, trial), indent=2))
    elif trial.works:
        print(_("In use now: {path}", path=path))
    else:
        print(_("It is not used; the engine you had stays. The same command tries it again without a download."))
    return 0 if trial.works else 1


async def _remove(paths: Paths, options: EnginesOptions) -> int:
    setup = _setup(paths)
    await setup.remove(options.name)
    print(json.dumps({"removed": options.name}) if options.as_json else _("{name} is removed.", name=options.name))
    return 0


def _setup(paths: Paths) -> EngineSetup:
    """The engines, where what is taken into use is written into the settings alone."""

    async def use(path: str | None) -> None:
        change_settings(paths, engine_path=path)

    return EngineSetup(paths, lambda: load_settings(paths.settings_file), use)


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
