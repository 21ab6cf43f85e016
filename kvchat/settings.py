"""The user's settings: one JSON file, read tolerantly, written whole.

One frozen value and one table of rules: what a file may hold is what the window accepts, and `why_not` says why not. A
change is in force at once and told as `SettingsChanged`; what the engine is started with waits for its next start. What
would take save points away is shown before it is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.errors import KvchatError
from kvchat.system.files import read_json, whole_file
from kvchat.words.language import LANGUAGES, SYSTEM, _, number, several
from kvchat.words.wording import size

GB = 1_000_000_000
MB = 1_000_000
KV_TYPE_NAMES = frozenset(("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"))
LEAST_ZOOM, MOST_ZOOM = 60, 250  # percent
THEMES = frozenset(("system", "light", "dark"))
ENGINE_STARTS = frozenset(("app", "message"))
READ_AHEAD = frozenset(("auto", "always", "never"))
HIGHEST_TEMPERATURE = 5.0  # beyond it a model says nothing but noise
LEAST_CONTEXT, MOST_CONTEXT = 256, 2**24  # tokens; llama.cpp's least step, and more than any model was trained for
MOST_SLOTS = 8  # chats side by side
LEAST_QUOTA, MOST_BYTES = 100 * MB, 10**18  # bytes; more than any disk has, and less than SQLite counts
MOST_TOKENS = 2**31 - 1  # of a reply; llama.cpp's int32_t
MOST_DAYS = 3650
MOST_IDLE_MINUTES = 7 * 24 * 60


_MOST_FILE = 4_000_000  # bytes of the file


@dataclass(frozen=True)
class Settings:
    """What the user chose. None means "kvchat decides"."""

    model_path: str | None = None
    model_folders: tuple[str, ...] = ()  # where to look for models, besides the places other programs keep theirs
    engine_path: str | None = None  # or "embedded"
    engine_url: str | None = None  # of a llama-server the user runs: it is used instead of one of kvchat's own
    engine_arguments: str = ""  # the user's own, for llama-server, as a shell takes them
    rpc_workers: str = ""  # host:port of other computers' rpc-servers, parted by commas
    engine_start: str = "app"  # the engine starts with the app, or with the first message
    idle_minutes: int | None = None  # without a message for so long, the engine stops; None: it stays
    context_size: int | None = None  # tokens
    slots: int = 0  # so many chats side by side in the engine; 0: kvchat decides
    kv_type: str = "f16"
    quota_bytes: int | None = None  # default: as kvstore.admission.default_quota has it
    free_floor_bytes: int = 2 * GB  # below this much free disk space nothing is saved
    max_age_days: int | None = None  # save points not used for so long are deleted; None: kept until the quota is full
    keep_deleted_days: int = 7  # so long deleted chats and messages can be had back; 0: only until Undo goes
    theme: str = "system"  # system, light or dark
    language: str = SYSTEM  # or one of LANGUAGES
    zoom: int = 100  # the size of all text, in percent
    show_numbers: bool = True  # receipts under replies, and figures in the strip
    read_ahead: str = "auto"  # what is not sent yet: on mains and with kvchat's own engine, always, or never
    quick_key: bool = False  # a key of the whole desktop's opens the small window to ask something in
    model_titles: bool = True  # the model names new chats when it has nothing else to do
    update_notice: bool = False  # GitHub is asked once a day whether there is a newer kvchat
    temperature: float | None = None  # sampling; None: the engine's default
    max_tokens: int | None = None  # the longest reply, in tokens; None: as long as the model goes on
    seed: int | None = None
    door: bool = False  # other programs may use the engine
    door_host: str = "127.0.0.1"  # the address they find it at; any but this computer's own needs a key
    door_port: int = 8737
    door_any_model: bool = True  # an unknown model name means the one in use; else it is refused
    door_share: bool = False  # all programs share one memory
    door_origins: str = ""  # web pages that may use it, parted by commas
    door_rules: tuple[
        str, ...
    ] = ()  # what is mended of programs' prompts: the program and the rule, each "zed hold-clock"

    @property
    def keep_deleted_s(self) -> float:
        """For how long what was deleted can be had back, in seconds."""
        return self.keep_deleted_days * 86_400.0


class SettingsNotSaved(KvchatError):
    """The settings file cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            _("The settings could not be saved"),
            f"{path}: {error.strerror}.",
            _("They hold until kvchat is quit. Check that the disk has room and that you may write there."),
        )


def load_settings(path: Path) -> Settings:
    """The settings in `path`; defaults for what is missing, unknown, of the wrong type or out of range.

    A file that is not JSON is set aside as `settings.json.bad` so that nothing the user wrote is lost.
    """
    try:
        raw = read_json(path, _MOST_FILE)
    except (FileNotFoundError, TimeoutError):
        return Settings()
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            path.replace(path.with_suffix(".json.bad"))
        return Settings()
    return settings_in(raw)


def settings_in(raw: Any) -> Settings:
    """The settings in a file's JSON, read as `load_settings` does."""
    return Settings(**_known_fields(raw)) if isinstance(raw, dict) else Settings()


def save_settings(path: Path, settings: Settings) -> None:
    """Write the settings, and what a newer kvchat wrote there; a crash leaves the old file. Raises SettingsNotSaved."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        raw = None
        with contextlib.suppress(OSError, ValueError):
            raw = read_json(path, _MOST_FILE)
        newer = {name: value for name, value in raw.items() if name not in _RULES} if isinstance(raw, dict) else {}
        with whole_file(path) as new:
            new.write_text(json.dumps(newer | dataclasses.asdict(settings), indent=2), "utf-8")
    except OSError as error:
        raise SettingsNotSaved(path, error) from error


def why_not(name: str, value: Any) -> str:
    """Why the setting `name` cannot have this value, as a sentence; empty where it can."""
    return _RULES[name](value)


def differ(one: Settings, other: Settings, names: Iterable[str]) -> bool:
    """Whether any of the settings `names` is not the same in both."""
    return any(getattr(one, name) != getattr(other, name) for name in names)


def _known_fields(raw: dict[str, Any]) -> dict[str, Any]:
    """The entries of `raw` that are settings, have a setting's type and a value that makes sense."""
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    return {name: value for name, value in plain.items() if name in _RULES and not why_not(name, value)}


_Rule = Callable[[Any], str]


def _whole(least: int, most: float = math.inf, words: Callable[[float], str] = number) -> _Rule:
    def rule(value: Any) -> str:
        if not isinstance(value, int) or isinstance(value, bool):
            return _("This must be a whole number.")
        if value < least:
            return _("This must be at least {words}.", words=words(least))
        return _("This must be at most {words}.", words=words(most)) if value > most else ""

    return rule


def _one_of(choices: frozenset[str]) -> _Rule:
    return lambda value: (
        ""
        if isinstance(value, str) and value in choices
        else _("This must be one of {choices}.", choices=sorted(choices))
    )


def _switch(value: Any) -> str:
    return "" if isinstance(value, bool) else _("This must be true or false.")


def _path(value: Any) -> str:
    try:
        fits = isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:  # half a character, which JSON can hold and no name
        fits = False
    return "" if fits else _("This must be a path.")


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and not re.search("[\0\ud800-\udfff]", value) else _("This must be text.")


def _paths(value: Any) -> str:
    if not isinstance(value, tuple):
        return _("This must be a list of paths.")
    return next((why for path in value if (why := _path(path))), "")


def _temperature(value: Any) -> str:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= HIGHEST_TEMPERATURE
    return (
        ""
        if fits
        else _(
            "This must be a number from 0 to {highest_temperature}.", highest_temperature=f"{HIGHEST_TEMPERATURE:.0f}"
        )
    )


def _minutes(count: float) -> str:
    return several(int(count), "{count} minute", "{count} minutes")


def _days(count: float) -> str:
    return several(int(count), "{count} day", "{count} days")


def _tokens(count: float) -> str:
    return several(int(count), "{count} token", "{count} tokens")


_RULES: dict[str, _Rule] = {
    "model_path": _path,
    "model_folders": _paths,
    "engine_path": _path,
    "engine_url": _text,
    "engine_arguments": _text,
    "rpc_workers": _text,
    "engine_start": _one_of(ENGINE_STARTS),
    "idle_minutes": _whole(1, MOST_IDLE_MINUTES, _minutes),
    "context_size": _whole(LEAST_CONTEXT, MOST_CONTEXT, _tokens),
    "slots": _whole(0, MOST_SLOTS),
    "kv_type": _one_of(KV_TYPE_NAMES),
    "quota_bytes": _whole(LEAST_QUOTA, MOST_BYTES, size),
    "free_floor_bytes": _whole(0, MOST_BYTES, size),
    "max_age_days": _whole(1, MOST_DAYS, _days),
    "keep_deleted_days": _whole(0, MOST_DAYS, _days),
    "theme": _one_of(THEMES),
    "language": _one_of(frozenset((SYSTEM, *LANGUAGES))),
    "zoom": _whole(LEAST_ZOOM, MOST_ZOOM, "{:.0f} %".format),
    "show_numbers": _switch,
    "read_ahead": _one_of(READ_AHEAD),
    "quick_key": _switch,
    "model_titles": _switch,
    "update_notice": _switch,
    "temperature": _temperature,
    "max_tokens": _whole(1, MOST_TOKENS, _tokens),
    "seed": _whole(-1, 2**32 - 1),  # llama.cpp's uint32_t; -1 is a random one
    "door": _switch,
    "door_host": _text,
    "door_port": _whole(1, 65_535),
    "door_any_model": _switch,
    "door_share": _switch,
    "door_origins": _text,
    "door_rules": _paths,
}

NAMES = tuple(_RULES)
