"""The user's settings and the JSON file that holds them.

The class `Settings` defines the default, rule, label and help of each setting.
"""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvchat.errors import KvchatError
from kvchat.system.files import atomic_write, read_json, replace_file, retry_while_open
from kvchat.text.formatting import NUMBERS, format_percent, format_size
from kvchat.text.language import LANGUAGES, N_, SYSTEM, _, format_number, plural

GB, MB = 1_000_000_000, 1_000_000
KV_TYPE_NAMES = frozenset(("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"))
ZOOMS = (70, 80, 90, 100, 110, 125, 150, 175, 200)  # in percent; steps of Ctrl++ and Ctrl+-
MAX_TEMPERATURE = 5.0  # above this, models produce only noise
MIN_CONTEXT, MAX_CONTEXT = 256, 2**24  # tokens: llama.cpp's minimum, and more than any model supports
MAX_BYTES = 10**18  # larger than any disk, within SQLite's range
_MAX_FILE_BYTES = 4_000_000

Rule = Callable[[Any], str]  # returns why a value is invalid, or ""
Choices = tuple[tuple[Any, str], ...]  # (value, label) pairs
UNITS: dict[str, Callable[[float], str]] = {  # formatters by unit
    "": format_number,
    "%": lambda percent: format_percent(percent / 100),
    "bytes": format_size,
    "days": lambda count: plural(int(count), "{count} day", "{count} days"),
    "minutes": lambda count: plural(int(count), "{count} minute", "{count} minutes"),
    "tokens": lambda count: plural(int(count), "{count} token", "{count} tokens"),
}


def _choice_rule(choices: Iterable[str]) -> Rule:
    options = sorted(choices)
    return lambda value: "" if value in options else _("This must be one of {choices}.", choices=options)


def _path_error(value: Any) -> str:
    try:
        is_path = isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:  # lone surrogate: valid in JSON, not in a name
        is_path = False
    return "" if is_path else _("This must be a path.")


def _text_error(value: Any) -> str:
    return "" if isinstance(value, str) and not re.search("[\0\ud800-\udfff]", value) else _("This must be text.")


def _paths_error(value: Any) -> str:
    if not isinstance(value, tuple):
        return _("This must be a list of paths.")
    return next((why for path in value if (why := _path_error(path))), "")


def _temperature_error(value: Any) -> str:
    is_valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TEMPERATURE
    highest = f"{MAX_TEMPERATURE:.0f}"
    return "" if is_valid else _("This must be a number from 0 to {highest_temperature}.", highest_temperature=highest)


@dataclass(frozen=True)
class SettingInfo:
    rule: Rule
    label: str = ""
    help: str = ""
    choices: Choices = ()
    unit: str = ""  # key of UNITS
    example: str = ""  # placeholder of a text field
    empty_text: str = ""  # placeholder if the value is None
    reset_label: str = ""  # if empty, the button names the default


def _setting(default: Any, rule: Rule, label: str = "", help: str = "", **info: Any) -> Any:
    return field(default=default, metadata={"info": SettingInfo(rule, label, help, **info)})


def _toggle(default: bool, *texts: str) -> Any:
    return _setting(default, lambda value: "" if isinstance(value, bool) else _("This must be true or false."), *texts)


def _number(default: Any, minimum: int, maximum: int, *texts: str, unit: str = "", **info: Any) -> Any:
    def rule(value: Any) -> str:
        if not isinstance(value, int) or isinstance(value, bool):
            return _("This must be a whole number.")
        if value < minimum:
            return _("This must be at least {words}.", words=UNITS[unit](minimum))
        return _("This must be at most {words}.", words=UNITS[unit](maximum)) if value > maximum else ""

    return _setting(default, rule, *texts, unit=unit, **info)


def _choice(default: str, choices: Choices, *texts: str) -> Any:
    return _setting(default, _choice_rule(value for value, _words in choices), *texts, choices=choices)


@dataclass(frozen=True)
class Settings:
    """The choices of the user. None means that kvchat decides."""

    theme: str = _choice(
        "system",
        (("system", N_("System default")), ("light", N_("Light")), ("dark", N_("Dark"))),
        N_("Theme"),
        N_("Light, dark, or the theme of your desktop."),
    )
    language: str = _choice(
        SYSTEM,
        ((SYSTEM, N_("System default")), *LANGUAGES.items()),
        N_("Language"),
        N_("Language of the kvchat interface. Changes take effect when kvchat restarts."),
    )
    zoom: int = _number(
        100,
        60,
        250,
        N_("Text size"),
        N_("In the main window, Ctrl++ and Ctrl+− change the text size, and Ctrl+0 resets it."),
        unit="%",
        choices=tuple((percent, "") for percent in ZOOMS),  # with the unit
    )
    show_numbers: bool = _toggle(
        True,
        NUMBERS,
        N_("Show how long each reply took and how the chat was loaded, below the reply and in the status bar."),
    )
    model_titles: bool = _toggle(
        True,
        N_("Automatic chat titles"),
        N_("When idle, the model generates a title in the language of the chat. Titles you set yourself stay."),
    )
    read_ahead: str = _choice(
        "auto",
        (("auto", N_("Automatic")), ("always", N_("Always")), ("never", N_("Never"))),
        N_("Process prompts in advance"),
        N_(
            "While you view a chat or type, the engine processes the prompt in advance, so replies "
            "start sooner. Automatic turns this off on battery and with an external llama-server. "
            "Drafts are never saved."
        ),
    )
    quick_key_enabled: bool = _toggle(
        False,
        N_("Quick question shortcut"),
        N_(
            "{key} opens the Quick question window from any app. On Wayland, your desktop asks you "
            "to choose the shortcut."
        ),
    )
    engine_start: str = _choice(
        "app",
        (("app", N_("When kvchat starts")), ("message", N_("On the first message"))),
        N_("Engine start"),
        N_("Starting on the first message saves memory until then, but that message waits for the model to load."),
    )
    idle_minutes: int | None = _number(
        None,
        1,
        7 * 24 * 60,
        N_("Unload when idle"),
        N_(
            "After this long without a message, kvchat unloads the model. The next message loads it "
            "again, and your chats are restored from disk."
        ),
        unit="minutes",
        empty_text=N_("never"),
        reset_label=N_("Never"),
    )
    update_notice: bool = _toggle(
        False,
        N_("Check for updates"),
        N_("Once a day, kvchat checks GitHub for a new version and shows a link. It downloads and installs nothing."),
    )

    model_path: str | None = _setting(None, _path_error)
    model_folders: tuple[str, ...] = _setting((), _paths_error)  # besides other programs' model folders
    context_size: int | None = _number(
        None,
        MIN_CONTEXT,
        MAX_CONTEXT,
        N_("Context length"),
        N_("How much of a chat the model can use at once. A longer context uses more memory."),
        unit="tokens",
        empty_text=N_("Automatic"),
        reset_label=N_("Reset to automatic"),
    )
    slots: int = _number(
        0,
        0,
        8,
        N_("Parallel chats"),
        N_(
            "Number of recent chats kept loaded. You can return to them instantly, and they can "
            "generate replies at the same time. They share the context length and slow each other "
            "down slightly."
        ),
        choices=((0, N_("Automatic")), (1, N_("One")), (2, N_("Two")), (4, N_("Four"))),
    )
    kv_type: str = _setting(
        "f16",
        _choice_rule(KV_TYPE_NAMES),
        N_("KV cache precision"),
        N_(
            "Lower precision fits longer chats in memory but may slightly reduce reply quality. Chat "
            "memory saved with another precision cannot be used until you change it back."
        ),
        choices=(("f16", N_("Exact (f16)")), ("q8_0", N_("Half size (q8_0)")), ("q4_0", N_("Quarter size (q4_0)"))),
    )
    temperature: float | None = _setting(None, _temperature_error)  # None: the engine's default
    max_tokens: int | None = _number(None, 1, 2**31 - 1, unit="tokens")  # longest reply; llama.cpp's int32_t
    seed: int | None = _number(None, -1, 2**32 - 1)  # llama.cpp's uint32_t; -1 is random

    engine_path: str | None = _setting(None, _path_error)  # or "embedded"
    engine_url: str | None = _setting(
        None,
        _text_error,
        N_("External llama-server"),
        N_(
            "kvchat uses the llama-server at this address and does not start or stop an engine. Chat "
            "memory works only if the server runs on this computer and was started with "
            "--slot-save-path."
        ),
        example="http://127.0.0.1:8080",
    )
    rpc_workers: str = _setting(
        "",
        _text_error,
        N_("RPC servers"),
        N_(
            "Distribute a large model across several computers. Enter the host and port of each "
            "rpc-server (newer builds: ggml-rpc-server), separated by commas. Use them in a trusted network "
            "only: they have no password, and the traffic is not encrypted."
        ),
        example="den:50052, attic:50052",
    )
    engine_arguments: str = _setting(
        "",
        _text_error,
        N_("Extra arguments"),
        N_("Command-line arguments for llama-server. Arguments that kvchat sets itself are not allowed."),
        example="--threads 8",
    )

    quota_bytes: int | None = _number(  # default: kvstore.savepoint.default_quota
        None,
        100 * MB,
        MAX_BYTES,
        N_("Storage limit"),
        unit="bytes",
        empty_text=N_("Automatic"),
        reset_label=N_("Reset to automatic"),
    )
    free_floor_bytes: int = _number(2 * GB, 0, MAX_BYTES, N_("Minimum free space"), unit="bytes")
    max_age_days: int | None = _number(  # None: kept until the quota is full
        None,
        1,
        3650,
        N_("Maximum age"),
        N_("kvchat deletes chat memory that was not used for this long. Messages are never deleted."),
        unit="days",
        empty_text=N_("no limit"),
        reset_label=N_("No limit"),
    )
    keep_deleted_days: int = _number(
        7,
        0,
        3650,
        N_("Keep deleted items"),
        N_(
            "You can restore deleted chats and messages for this long. Then kvchat deletes them "
            "permanently, including from search and chat memory. 0 deletes immediately."
        ),
        unit="days",
    )

    api_server: bool = _toggle(
        False,
        N_("Enable API server"),
        N_(
            "Editors and agents on this computer can use the model. Their prompts are saved like "
            "your chats, so replies start quickly, even after a restart."
        ),
    )
    api_any_model: bool = _toggle(
        True,
        N_("Accept any model name"),
        N_(
            "Requests for an unknown model, such as gpt-4o, use the current model. When off, they "
            "fail with a list of the available models."
        ),
    )
    api_share: bool = _toggle(
        False,
        N_("Share chat memory between apps"),
        N_(
            "Apps reuse the saved prompts of other apps, so less is reprocessed. Each app can then "
            "find out what the others sent."
        ),
    )
    api_port: int = _number(8737, 1, 65_535, N_("Port"), N_("Change it if another program uses this port."))
    api_host: str = _setting("127.0.0.1", _text_error)  # any other address requires an API key
    api_origins: str = _setting("", _text_error)  # allowed web origins, comma-separated
    api_rules: tuple[str, ...] = _setting((), _paths_error)  # prompt rewrites, each an app and a rule: "zed hold-clock"

    share_devices: bool = _toggle(
        False,
        N_("Share with your other devices"),
        N_(
            "Other computers, phones and tablets on your home network can use the models of this computer. "
            "Each must be paired once. The traffic is encrypted."
        ),
    )
    share_port: int = _number(8738, 1, 65_535, N_("Port"), N_("Change it if another program uses this port."))

    new_chat_tools: tuple[str, ...] = _setting((), _paths_error)  # selected for the last new chat: "SOURCE/NAME"
    tool_folders: tuple[str, ...] = _setting((), _paths_error)  # that the built-in tools may list and read
    web_search_url: str = _setting(
        "",
        _text_error,
        N_("Web search"),
        N_("URL of a SearXNG server that allows JSON. Without one, the web search tool is not available."),
        example="https://searx.example.org",
    )

    def __post_init__(self) -> None:
        if self.model_path:  # written as the paths of found models are: C:/models/x.gguf is C:\models\x.gguf
            object.__setattr__(self, "model_path", str(Path(self.model_path)))

    @property
    def keep_deleted_s(self) -> float:
        return self.keep_deleted_days * 86_400.0


SETTING_INFO: dict[str, SettingInfo] = {
    setting.name: setting.metadata["info"] for setting in dataclasses.fields(Settings)
}
SETTING_NAMES = tuple(SETTING_INFO)
SETTING_PAGES = {  # settings by page in `ui/settings`, in order
    "general": (
        *("theme", "language", "zoom", "show_numbers", "model_titles", "read_ahead", "quick_key_enabled"),
        *("engine_start", "idle_minutes", "update_notice"),
    ),
    "model": ("context_size", "slots", "kv_type"),
    "tools": ("web_search_url",),
    "engine": ("engine_url", "rpc_workers", "engine_arguments"),
    "storage": ("quota_bytes", "free_floor_bytes", "max_age_days", "keep_deleted_days"),
    "devices": ("share_devices", "share_port"),
    "programs": ("api_server", "api_any_model", "api_share", "api_port"),
}


class SettingsNotSaved(KvchatError):
    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            _("The settings could not be saved"),
            f"{path}: {error.strerror}.",
            _("They apply until you quit kvchat. Check the permissions of the folder and that the disk is not full."),
        )


def load_settings(path: Path) -> Settings:
    """Read the settings, with defaults for missing and invalid values. Rename a file that is not JSON to `.bad`."""
    try:
        return parse_settings(retry_while_open(lambda: read_json(path, _MAX_FILE_BYTES)))
    except (FileNotFoundError, TimeoutError):
        return Settings()
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            replace_file(path, path.with_suffix(".json.bad"))
        return Settings()


def parse_settings(raw: Any) -> Settings:
    if not isinstance(raw, dict):
        return Settings()
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    return Settings(
        **{name: value for name, value in plain.items() if name in SETTING_INFO and not validation_error(name, value)}
    )


def save_settings(path: Path, settings: Settings) -> None:
    """Write the settings and keep unknown ones, which a newer version wrote. Raises SettingsNotSaved."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        newer = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            raw = read_json(path, _MAX_FILE_BYTES)
            newer = {name: value for name, value in raw.items() if name not in SETTING_INFO}
        with atomic_write(path) as new:
            new.write_text(json.dumps(newer | dataclasses.asdict(settings), indent=2), "utf-8")
    except OSError as error:
        raise SettingsNotSaved(path, error) from error


def validation_error(name: str, value: Any) -> str:
    return SETTING_INFO[name].rule(value)


def any_changed(before: Settings, after: Settings, names: Iterable[str]) -> bool:
    return any(getattr(before, name) != getattr(after, name) for name in names)
