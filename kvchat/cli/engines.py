"""`kvchat engines`: the engines of this computer, trying one out, and how to get one that uses the graphics card."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kvchat.cli.command_runtime import run_until_interrupted
from kvchat.cli.options import EnginesOptions
from kvchat.engine.finding.discovery import EngineLocation, find_engine
from kvchat.engine.finding.graphics import find_graphics, install_advice
from kvchat.engine.finding.probe import EngineEntry, take_inventory, usable_engine
from kvchat.engine_host.setup import trial_model
from kvchat.engine_host.trial import Trial, TrialStep, try_engine
from kvchat.settings import Settings, load_settings
from kvchat.system.paths import Paths, resolve_paths
from kvchat.words.wording import size


def run(options: EnginesOptions) -> int:
    """List the engines, or try one. Returns the exit code: 1 where none can be used. Raises KvchatError."""
    paths = resolve_paths()
    settings = load_settings(paths.settings_file)
    if options.test:
        return _test(paths, settings, options)
    entries = take_inventory(settings.engine_path)
    print(json.dumps(_fields(entries), indent=2) if options.as_json else "\n".join(lines(entries)))
    return 0 if any(entry.chosen for entry in entries) else 1


def lines(entries: tuple[EngineEntry, ...]) -> list[str]:
    """The list as a person reads it; the engine in use is marked."""
    told = [line for entry in entries for line in _entry_lines(entry)] or ["No engine was found."]
    graphics = find_graphics()
    if not any(entry.backends for entry in entries):
        cards = " and ".join(maker.value for maker in graphics.makers)
        told += ["", f"Graphics: {cards}. To use it:" if cards else "Graphics:", *install_advice(graphics)]
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
        yield "    the processor alone"


def _fields(entries: tuple[EngineEntry, ...]) -> dict[str, Any]:
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
        "graphics": [maker.value for maker in graphics.makers],
        "advice": list(install_advice(graphics)),
    }


def _test(paths: Paths, settings: Settings, options: EnginesOptions) -> int:
    location = _wanted(settings, options.path)

    def tell(step: TrialStep) -> None:
        if not options.as_json:
            print(f"{'!' if step.error else ' '} {step.name}: {step.detail}".rstrip(": "), flush=True)
            if step.error and step.error.advice:
                print(f"    {step.error.advice}", flush=True)

    if not options.as_json:
        print(location, flush=True)

    async def test() -> int:
        trial = await try_engine(location, trial_model(paths, settings), tell)
        if options.as_json:
            print(json.dumps(_trial_fields(location, trial), indent=2))
        return 0 if trial.works else 1

    return run_until_interrupted(test())


def _wanted(settings: Settings, path: str | None) -> EngineLocation:
    """The engine that was named, or the one kvchat would start."""
    return find_engine(path) if path else usable_engine(settings.engine_path)[0]


def _trial_fields(location: EngineLocation, trial: Trial) -> dict[str, Any]:
    return {
        "engine": str(location),
        "works": trial.works,
        "steps": [{"name": step.name, "detail": step.detail, "failed": step.error is not None} for step in trial.steps],
    }
