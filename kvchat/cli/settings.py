"""`kvchat settings`: list, show and change settings, with the same checks as the window."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from kvchat.cli.arguments import JsonOptions, SettingName, SettingValue
from kvchat.cli.options import byte_count
from kvchat.cli.owned import Commands
from kvchat.cli.terminal import columns, show
from kvchat.engine_host.setup import EngineSetup
from kvchat.errors import KvchatError
from kvchat.settings import NAMES, Settings, load_settings, why_not
from kvchat.system.paths import resolve_paths
from kvchat.words.language import _

_JUDGED_BY_ENGINE = ("engine_arguments", "rpc_workers", "engine_url")


def show_all(options: JsonOptions) -> int:
    settings, usual = load_settings(resolve_paths().settings_file), Settings()
    values = {name: getattr(settings, name) for name in NAMES}
    rows = [
        (name, _shown(value), "" if value == getattr(usual, name) else _("changed")) for name, value in values.items()
    ]
    return show(options.as_json, values, columns(rows))


def show_one(options: SettingName) -> int:
    value = getattr(load_settings(resolve_paths().settings_file), options.name)
    return show(options.as_json, {options.name: value}, [_shown(value)])


async def reset(options: SettingName, commands: Commands) -> int:
    return await _put(options, getattr(Settings(), options.name), commands)


async def change(options: SettingValue, commands: Commands) -> int:
    name, value = options.name, _value(options.name, options.values)
    why = why_not(name, value) if value != getattr(Settings(), name) else ""
    if not why and value and name in _JUDGED_BY_ENGINE:
        why = await EngineSetup(commands.paths, lambda: commands.settings, _unused).why_not(name, value)
    if why:
        advice = _("Run `kvchat settings reset {name}` to restore the default.", name=name)
        raise KvchatError(_("Invalid value for {name}", name=name), why, advice)
    return await _put(options, value, commands)


async def _unused(path: str | None) -> None: ...


async def _put(options: SettingName, value: Any, commands: Commands) -> int:
    await commands.change_settings(**{options.name: value})
    return show(options.as_json, {options.name: value}, [f"{options.name}: {_shown(value)}"])


def _value(name: str, words: Sequence[str]) -> Any:
    usual, first = getattr(Settings(), name), words[0]
    if isinstance(usual, tuple):
        return tuple(words)
    if len(words) != 1:
        given = _("{count} values were given.", count=len(words))
        raise KvchatError(_("{name} takes one value", name=name), given, _("Put the value in quotes."))
    if name.endswith("_bytes"):
        try:
            return byte_count(first)
        except argparse.ArgumentTypeError as error:
            raise KvchatError(_("Invalid value for {name}", name=name), f"{error}.") from error
    try:
        number = json.loads(first)
    except ValueError:
        return first
    text = isinstance(usual, str) or (usual is None and why_not(name, first) == "")
    return first if text else number


def _shown(value: Any) -> str:
    if value is None or value == "" or value == ():
        return "-"
    if isinstance(value, bool):
        return json.dumps(value)
    return ", ".join(value) if isinstance(value, tuple) else str(value)
