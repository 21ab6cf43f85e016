"""MCP bundles (.mcpb): a zip file with a manifest and a server, installed into the data folder.

Format: https://github.com/anthropics/mcpb, manifest versions 0.1 to 0.4.
"""

import hashlib
import json
import math
import os
import re
import shutil
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.errors import KvchatError
from kvchat.system.archives import UnsafeArchive, unpack
from kvchat.system.files import parse_json, replace_file
from kvchat.text.language import _, join_list, localize_number
from kvchat.text.safe_text import safe_prose
from kvchat.tools.mcp.config import MAX_NAME_LENGTH, name_error, parse_server
from kvchat.tools.mcp.secrets import reference

Value = str | int | float | bool | Sequence[str]

MAX_BUNDLE_BYTES = 2_000_000_000  # unpacked
_MAX_MANIFEST_BYTES = 1_000_000
_MAX_OPTIONS = _MAX_TOOLS = 50
_TYPES = ("string", "number", "boolean", "directory", "file")
_UNSAFE = re.compile(r"[^\w.-]+")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_UV = {"command": "uv", "args": ["run", "--directory", "${__dirname}"]}  # for a bundle that does not define its command
_SYSTEMS = {"darwin": "macOS", "win32": "Windows", "linux": "Linux"}


@dataclass(frozen=True)
class BundleOption:
    """A value that the user enters before a bundle is installed."""

    key: str
    type: str  # string, number, boolean, directory or file
    title: str
    description: str
    required: bool
    secret: bool
    multiple: bool
    default: Value | None
    minimum: float
    maximum: float


@dataclass(frozen=True)
class Bundle:
    """A bundle's manifest. Its texts are untrusted but safe to show."""

    path: Path
    name: str  # of the server
    title: str
    version: str
    description: str
    author: str
    tools: tuple[str, ...]  # names, according to the manifest
    options: tuple[BundleOption, ...]
    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def read_bundle(path: Path) -> Bundle:
    """Read the manifest of a bundle, without unpacking it. Blocks. Raises KvchatError."""
    try:
        if not path.is_file():
            raise ValueError(_("there is no such file"))
        with zipfile.ZipFile(path) as zipped, zipped.open("manifest.json") as file:
            text = file.read(_MAX_MANIFEST_BYTES + 1)
        if len(text) > _MAX_MANIFEST_BYTES:
            raise ValueError(_("its manifest is too large"))
        return _parse(path, parse_json(text))
    except KeyError as error:
        raise _unreadable(path, _("it has no manifest.json")) from error
    except json.JSONDecodeError as error:
        raise _unreadable(path, _("its manifest is not valid JSON: {error}", error=error)) from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, _("its manifest is not valid JSON: {error}", error=error.reason)) from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise _unreadable(path, _("it is damaged or not a zip file")) from error
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, reason: str) -> KvchatError:
    return KvchatError(_("The MCP bundle could not be read"), f"{path.name}: {reason}.", _("Download it again."))


def _parse(path: Path, manifest: Any) -> Bundle:
    if not isinstance(manifest, dict) or not isinstance(manifest.get("server"), dict):
        raise ValueError(_("its manifest does not define a server"))
    server = manifest["server"]
    launch = server.get("mcp_config")
    if launch is None and server.get("type") == "uv":
        launch = _UV | {"args": [*_UV["args"], str(server.get("entry_point", ""))]}
    if not isinstance(launch, dict):
        raise ValueError(_("its manifest does not say how to start the server"))
    compatibility = manifest.get("compatibility")
    systems = compatibility.get("platforms") if isinstance(compatibility, dict) else None
    if isinstance(systems, list) and systems and sys.platform not in systems:
        names = join_list(_SYSTEMS[system] for system in _SYSTEMS if system in systems) or "?"
        raise ValueError(_("it runs only on {systems}", systems=names))
    overrides = launch.get("platform_overrides")
    override = overrides.get(sys.platform, {}) if isinstance(overrides, dict) else {}
    launch = launch | {key: value for key, value in override.items() if value} if isinstance(override, dict) else launch
    name = str(manifest.get("name", ""))[:MAX_NAME_LENGTH]
    entry = {key: launch[key] for key in ("command", "args", "env") if key in launch}
    if problem := name_error(name) or parse_server(name, entry).problem:
        raise ValueError(problem.rstrip("."))
    author = manifest.get("author")
    options, tools = manifest.get("user_config", {}), manifest.get("tools")
    listed = [tool.get("name") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    if not isinstance(options, dict) or len(options) > _MAX_OPTIONS:
        raise ValueError(_("its options are invalid"))

    def text(key: str, limit: int = 200) -> str:
        return safe_prose(str(manifest.get(key) or "")[:limit])

    return Bundle(
        path,
        name,
        text("display_name") or name,
        text("version"),
        text("description", 2_000),
        safe_prose(str(author.get("name", "") if isinstance(author, dict) else author or "")[:200]),
        tuple(safe_prose(tool[:100]) for tool in listed[:_MAX_TOOLS] if isinstance(tool, str)),
        tuple(_parse_option(key, option) for key, option in options.items()),
        launch.get("command", ""),
        tuple(launch.get("args", ())),
        dict(launch.get("env", {})),
    )


def _parse_option(key: str, option: Any) -> BundleOption:
    if not isinstance(option, dict) or option.get("type") not in _TYPES or not re.fullmatch(r"[\w.-]{1,64}", key):
        raise ValueError(_("its option {key} is invalid", key=repr(key)[:80]))
    default, variables = option.get("default"), _system_variables()
    if isinstance(default, list):
        default = [_replaced(str(item), variables) for item in default]
    elif isinstance(default, str):
        default = _replaced(default, variables)
    elif not isinstance(default, int | float | None):
        default = None

    def limit(name: str, unlimited: float) -> float:
        value = option.get(name)
        try:
            return float(value) if isinstance(value, int | float) else unlimited
        except OverflowError as error:
            raise ValueError(_("its option {key} is invalid", key=repr(key)[:80])) from error

    return BundleOption(
        key,
        option["type"],
        safe_prose(str(option.get("title") or key)[:200]),
        safe_prose(str(option.get("description") or "")[:1_000]),
        option.get("required") is True,
        option.get("sensitive") is True,
        option.get("multiple") is True,
        default,
        limit("min", -math.inf),
        limit("max", math.inf),
    )


def bundle_folder(bundles: Path, server: str) -> Path:
    """Return the folder of a server's bundle. The hash tells apart names that differ only in letter case or spaces."""
    return bundles / f"{_UNSAFE.sub('_', server).strip('.')}-{hashlib.sha256(server.encode()).hexdigest()[:12]}"


def values_error(bundle: Bundle, values: Mapping[str, Value]) -> str:
    """Return a sentence about the first missing or invalid value, or ""."""
    for option in bundle.options:
        value = values.get(option.key, option.default)
        if value in (None, "", [], ()):
            if option.required:
                return _("“{option}” is required.", option=option.title)
        elif option.type == "number" and value != reference(option.key):
            try:
                number = float(str(value))
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                return _("“{option}” is not a number.", option=option.title)
            if number < option.minimum:
                least = localize_number(f"{option.minimum:g}")
                return _("“{option}” must be at least {number}.", option=option.title, number=least)
            if number > option.maximum:
                most = localize_number(f"{option.maximum:g}")
                return _("“{option}” must be at most {number}.", option=option.title, number=most)
    return ""


def install_bundle(bundle: Bundle, values: Mapping[str, Value], bundles: Path, stop: threading.Event) -> dict[str, Any]:
    """Unpack a bundle, replacing an older version, and return the entry for mcp.json. Blocks. Raises KvchatError.

    `values`: by option key. Secret values become references; the caller must store them.
    """
    if problem := values_error(bundle, values):
        raise KvchatError(_("The MCP bundle could not be installed"), problem)
    folder = bundle_folder(bundles, bundle.name)
    try:
        bundles.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".installing-", dir=bundles) as name:
            unpacked = Path(name, "new")
            unpacked.mkdir(mode=0o700)
            unpack(bundle.path, unpacked, stop, max_bytes=MAX_BUNDLE_BYTES)
            if stop.is_set():
                return {}
            if folder.exists():
                replace_file(folder, Path(name, "old"))
            replace_file(unpacked, folder)
    except UnsafeArchive as error:
        raise _unreadable(bundle.path, str(error)) from error
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:
        raise KvchatError(_("The MCP bundle could not be installed"), f"{error}.") from error
    return bundle_entry(bundle, values, bundles)


def _system_variables() -> dict[str, str]:
    home = Path.home()
    variables = {"HOME": str(home), "/": os.sep, "pathSeparator": os.sep}
    return variables | {name.upper(): str(home / name) for name in ("Desktop", "Documents", "Downloads")}


def bundle_entry(bundle: Bundle, values: Mapping[str, Value], bundles: Path) -> dict[str, Any]:
    """Return the entry for mcp.json that `install_bundle` would create."""
    variables = _system_variables() | {"__dirname": str(bundle_folder(bundles, bundle.name))}
    lists: dict[str, list[str]] = {}
    for option in bundle.options:
        key, value = f"user_config.{option.key}", values.get(option.key, option.default)
        if option.secret and value not in (None, ""):
            variables[key] = reference(option.key)
        elif isinstance(value, bool):
            variables[key] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            variables[key] = str(value)
        else:
            lists[key] = [str(item) for item in value or ()]
            variables[key] = os.pathsep.join(lists[key])
    arguments: list[str] = []
    for argument in bundle.arguments:
        whole = _VARIABLE.fullmatch(argument)
        if whole is not None and whole[1] in lists:
            arguments += lists[whole[1]]
        else:
            arguments.append(_replaced(argument, variables))
    entry: dict[str, Any] = {"command": _replaced(bundle.command, variables), "args": arguments}
    if bundle.environment:
        entry["env"] = {name: _replaced(value, variables) for name, value in bundle.environment.items()}
    return entry


def _replaced(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)


def remove_bundle(bundles: Path, server: str) -> None:
    """Delete the folder of an installed bundle, if there is one. Blocks."""
    shutil.rmtree(bundle_folder(bundles, server), ignore_errors=True)
