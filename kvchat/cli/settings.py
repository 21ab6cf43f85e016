"""`kvchat settings`: list them, look one up, change one. What the window would refuse is refused here."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from kvchat.cli import owned
from kvchat.cli.options import SettingsOptions, byte_count
from kvchat.cli.terminal import columns, say
from kvchat.engine_host.setup import EngineSetup
from kvchat.errors import KvchatError
from kvchat.settings import NAMES, Settings, load_settings, why_not
from kvchat.system.paths import resolve_paths
from kvchat.words.language import _

_JUDGED_BY_ENGINE = ("engine_arguments", "rpc_workers", "engine_url")


class BadSetting(KvchatError):
    """There is no such setting, or it cannot have that value."""


def run(options: SettingsOptions) -> int:
    """Do it and print what came of it. Returns the exit code. Raises KvchatError."""
    if options.action in ("set", "reset"):
        return owned.run("settings", options)
    settings = load_settings(resolve_paths().settings_file)
    if options.action == "get":
        value = getattr(settings, options.name)
        print(json.dumps({options.name: value}) if options.as_json else _shown(value))
    elif options.as_json:
        print(json.dumps(dataclasses.asdict(settings), indent=2))
    else:
        usual = Settings()
        rows = [
            (name, _shown(value := getattr(settings, name)), "" if value == getattr(usual, name) else _("changed"))
            for name in NAMES
        ]
        print("\n".join(columns(rows)))
    return 0


async def change(options: SettingsOptions, commands: owned.Commands) -> int:
    """Set or reset one. Returns the exit code. Raises KvchatError."""
    name, usual = options.name, getattr(Settings(), options.name)
    value = usual if options.action == "reset" else _value(name, options.values)
    why = why_not(name, value) if value != usual else ""
    if not why and value and name in _JUDGED_BY_ENGINE:
        why = await _engine_says(commands, name, value)
    if why:
        raise BadSetting(
            _("{name} cannot be that", name=name),
            why,
            _("`kvchat settings reset {name}` takes what is usual.", name=name),
        )
    await commands.change_settings(**{name: value})
    say(json.dumps({name: value}) if options.as_json else f"{name}: {_shown(value)}")
    return 0


async def _engine_says(commands: owned.Commands, name: str, value: str) -> str:
    """Why the engine in the settings would refuse it."""

    async def unused(path: str | None) -> None: ...

    return await EngineSetup(commands.paths, lambda: commands.settings, unused).why_not(name, value)


def _value(name: str, words: Sequence[str]) -> Any:
    """What is written on the command line, as the setting's kind: a number, true or false, bytes as in 20GB, a text."""
    usual, first = getattr(Settings(), name), words[0]
    if isinstance(usual, tuple):
        return tuple(words)
    if len(words) != 1:
        raise BadSetting(
            _("{name} takes one value", name=name),
            _("{count} were given.", count=len(words)),
            _("Put it into quotes."),
        )
    if name.endswith("_bytes"):
        try:
            return byte_count(first)
        except argparse.ArgumentTypeError as error:
            raise BadSetting(_("{name} cannot be that", name=name), f"{error}.") from error
    try:
        number = json.loads(first)
    except ValueError:
        return first
    text = isinstance(usual, str) or (usual is None and why_not(name, first) == "")
    return first if text else number


def _shown(value: Any) -> str:
    """For a reader: a dash stands for "kvchat decides"."""
    if value is None or value == "" or value == ():
        return "-"
    return (
        json.dumps(value) if isinstance(value, bool) else ", ".join(value) if isinstance(value, tuple) else str(value)
    )
