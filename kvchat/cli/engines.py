"""`kvchat engines` and `kvchat settings`."""

import argparse
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kvchat.cli import arguments
from kvchat.cli.options import parse_size
from kvchat.cli.owned import CommandRunner
from kvchat.cli.terminal import format_columns, pick_fields, print_out, print_result, show_progress
from kvchat.engine.discovery.engines import EngineEntry, find_engine, list_engines, usable_engine
from kvchat.engine.discovery.graphics import Backend, detect_graphics, install_advice
from kvchat.engine_host.setup import DownloadedEngine, EngineSetup, Stage, downloaded_engines, trial_model
from kvchat.engine_host.trial import EngineTrial, TrialStep, try_engine
from kvchat.errors import KvchatError
from kvchat.settings import SETTING_NAMES, Settings, load_settings, validation_error
from kvchat.system.paths import resolve_paths
from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _, capitalize_first

DEVICE_KEYS = "name description total_bytes free_bytes"
_VALIDATED_BY_ENGINE = ("engine_arguments", "rpc_workers", "engine_url")


def print_engines(options: arguments.JsonOptions) -> int:
    paths = resolve_paths()
    downloaded = downloaded_engines(paths.engines)
    entries = list_engines(load_settings(paths.settings_file).engine_path, [engine.location for engine in downloaded])
    graphics = detect_graphics()
    engines = [
        {"kind": entry.location.kind, "path": entry.location.path}
        | {"chosen": entry.is_in_use}
        | pick_fields(entry, "version build backends")
        | {"devices": [pick_fields(device, DEVICE_KEYS) for device in entry.devices]}
        | {"problem": str(entry.problem) if entry.problem else None}
        for entry in entries
    ]
    fields = {
        "engines": engines,
        "fetched": [{"name": engine.name, "path": engine.location.path, "bytes": engine.size} for engine in downloaded],
        "graphics": graphics.vendors,
        "advice": install_advice(graphics),
    }
    print_result(options.as_json, fields, format_lines(entries, downloaded))
    return 0 if any(entry.is_in_use for entry in entries) else 1


def format_lines(entries: Sequence[EngineEntry], downloaded: Sequence[DownloadedEngine]) -> list[str]:
    rows = []
    for entry in entries:
        rows.append(f"{'*' if entry.is_in_use else ' '} {entry.location}")
        if entry.problem:
            rows.append(f"    {entry.problem}")
            continue
        rows.append(f"    {entry.version}")
        for device in entry.devices:
            memory = f" ({format_size(device.total_bytes)})" if device.total_bytes else ""
            rows.append(f"    {device.name}: {device.label}{memory}")
        if not entry.devices:
            rows.append("    " + _("CPU only"))
    rows = rows or [_("No engine was found.")]
    text = N_("Downloaded: {name} ({size}); to delete: `kvchat engines remove {name}`")
    rows += ["  " + _(text, name=engine.name, size=format_size(engine.size)) for engine in downloaded]
    if not any(entry.backends for entry in entries):
        graphics = detect_graphics()
        cards = _(" and ").join(vendor.value for vendor in graphics.vendors)
        rows += ["", _("GPU: {cards}. To use it:", cards=cards) if cards else _("GPU:"), *install_advice(graphics)]
    return rows


async def test(options: arguments.TestEngineOptions, runner: CommandRunner) -> int:
    settings = runner.settings
    location = find_engine(options.path) if options.path else usable_engine(settings.engine_path).location
    model = trial_model(runner.paths, settings)
    if options.as_json:
        trial = await try_engine(location, model, lambda step: None)
        print_result(True, _trial_fields(location, trial), ())
    else:
        print_out(str(location))
        trial = await try_engine(location, model, _print_step)
    return 0 if trial.works else 1


def _print_step(step: TrialStep) -> None:
    print_out(f"{'!' if step.error else ' '} {step.name}: {step.detail}".rstrip(": "))
    if step.error and step.error.advice:
        print_out(f"    {step.error.advice}")


def _trial_fields(engine: object, trial: EngineTrial) -> dict[str, Any]:
    steps = [{"name": step.name, "detail": step.detail, "failed": step.error is not None} for step in trial.steps]
    return {"engine": str(engine), "works": trial.works, "steps": steps}


@asynccontextmanager
async def _open_engine_setup(runner: CommandRunner) -> AsyncIterator[EngineSetup]:
    if runner.open_runtime:
        yield runner.open_runtime.engines
        return

    async def use_engine(path: str | None) -> None:
        await runner.change_settings(engine_path=path)

    setup = EngineSetup(runner.paths, lambda: runner.settings, use_engine)
    try:
        yield setup
    finally:
        await setup.close()


async def remove(options: arguments.NameOptions, runner: CommandRunner) -> int:
    async with _open_engine_setup(runner) as setup:
        await setup.remove(options.name)
    return print_result(options.as_json, {"removed": options.name}, [_("{name} was removed.", name=options.name)])


async def get(options: arguments.GetEngineOptions, runner: CommandRunner) -> int:
    backend = next((backend for backend in Backend if backend.value.lower() == options.backend), None)
    stage: Stage | None = None
    steps_shown = 0

    async with _open_engine_setup(runner) as setup:

        def report_progress() -> None:
            nonlocal stage, steps_shown
            now = setup.download
            if now is None or options.as_json:
                return
            if now.order and now.stage is not stage:
                stage = now.stage
                if stage is Stage.FETCHING:
                    name, size = now.order.file.name, format_size(now.order.file.size)
                    print_out(_("{name} ({size}) from {source}", name=name, size=size, source=setup.releases_url))
                elif stage is Stage.TESTING:
                    print_out(_("Testing:"))
            if now.order and now.stage in (Stage.FETCHING, Stage.CHECKING, Stage.UNPACKING):
                show_progress(f"{capitalize_first(_(now.stage.value))}:", now.downloaded_bytes, now.order.file.size)
            for step in now.steps[steps_shown:]:
                _print_step(step)
            steps_shown = len(now.steps)

        unsubscribe = setup.subscribe(report_progress)
        try:
            trial = await setup.install(backend)
        finally:
            unsubscribe()
    if trial is None:
        raise KvchatError(
            _("The engine was not downloaded"), _("The download was canceled, or another one is in progress.")
        )
    path = runner.settings.engine_path
    result = _("Now in use: {path}", path=path)
    if not trial.works:
        result = _(
            "The new engine is not used; the previous engine stays in use. Run the command again to "
            "repeat the test without a download."
        )
    print_result(options.as_json, _trial_fields(path, trial), [result])
    return 0 if trial.works else 1


def show_settings(options: arguments.JsonOptions) -> int:
    settings, defaults = load_settings(resolve_paths().settings_file), Settings()
    values = {name: getattr(settings, name) for name in SETTING_NAMES}
    rows = [
        (name, _format_value(value), "" if value == getattr(defaults, name) else _("changed"))
        for name, value in values.items()
    ]
    return print_result(options.as_json, values, format_columns(rows))


def show_setting(options: arguments.SettingOptions) -> int:
    value = getattr(load_settings(resolve_paths().settings_file), options.name)
    return print_result(options.as_json, {options.name: value}, [_format_value(value)])


async def reset_setting(options: arguments.SettingOptions, runner: CommandRunner) -> int:
    return await _save_setting(options, getattr(Settings(), options.name), runner)


async def change_setting(options: arguments.ChangeSettingOptions, runner: CommandRunner) -> int:
    name, value = options.name, _parse_value(options.name, options.values)
    problem = validation_error(name, value) if value != getattr(Settings(), name) else ""
    if not problem and value and name in _VALIDATED_BY_ENGINE:
        async with _open_engine_setup(runner) as setup:
            problem = await setup.validation_error(name, value)
    if problem:
        advice = _("Run `kvchat settings reset {name}` to restore the default.", name=name)
        raise KvchatError(_("Invalid value for {name}", name=name), problem, advice)
    return await _save_setting(options, value, runner)


async def _save_setting(options: arguments.SettingOptions, value: Any, runner: CommandRunner) -> int:
    await runner.change_settings(**{options.name: value})
    return print_result(options.as_json, {options.name: value}, [f"{options.name}: {_format_value(value)}"])


def _parse_value(name: str, texts: Sequence[str]) -> Any:
    default, text = getattr(Settings(), name), texts[0]
    if isinstance(default, tuple):
        return tuple(texts)
    if len(texts) != 1:
        detail = _("{count} values were given.", count=len(texts))
        raise KvchatError(_("{name} takes one value", name=name), detail, _("Put the value in quotes."))
    if name.endswith("_bytes"):
        try:
            return parse_size(text)
        except argparse.ArgumentTypeError as error:
            raise KvchatError(_("Invalid value for {name}", name=name), f"{error}.") from error
    try:
        number = json.loads(text)
    except ValueError:
        return text
    is_text = isinstance(default, str) or (default is None and validation_error(name, text) == "")
    return text if is_text else number


def _format_value(value: Any) -> str:
    if value is None or value == "" or value == ():
        return "-"
    if isinstance(value, bool):
        return json.dumps(value)
    return ", ".join(value) if isinstance(value, tuple) else str(value)
