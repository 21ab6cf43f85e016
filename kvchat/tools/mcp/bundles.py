"""MCP bundles (.mcpb): a zip file with a manifest and a server, installed into the data folder.

Format: https://github.com/anthropics/mcpb, manifest versions 0.1 to 0.4.
"""

import os
import re
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.errors import KvchatError
from kvchat.system.archives import UnsafeArchive, unpack
from kvchat.system.files import parse_json, replace_file
from kvchat.text.language import _
from kvchat.text.safe_text import safe_prose
from kvchat.tools.mcp.config import MAX_NAME_LENGTH, name_error, parse_server
from kvchat.tools.mcp.secrets import reference

Value = str | int | float | bool | Sequence[str]

MAX_BUNDLE_BYTES = 2_000_000_000  # unpacked
_MAX_MANIFEST_BYTES = 1_000_000
_MAX_OPTIONS = 50
_TYPES = ("string", "number", "boolean", "directory", "file")
_UNSAFE = re.compile(r"[^\w.-]+")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


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


@dataclass(frozen=True)
class Bundle:
    """A bundle's manifest. Its texts are untrusted, and safe to show."""

    path: Path
    name: str  # of the server
    title: str
    version: str
    description: str
    author: str
    options: tuple[BundleOption, ...]
    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def read_bundle(path: Path) -> Bundle:
    """Read the manifest of a bundle, without unpacking it. Blocks. Raises KvchatError."""
    try:
        with zipfile.ZipFile(path) as zipped, zipped.open("manifest.json") as file:
            text = file.read(_MAX_MANIFEST_BYTES + 1)
        if len(text) > _MAX_MANIFEST_BYTES:
            raise ValueError(_("its manifest is too large"))
        return _parse(path, parse_json(text))
    except KeyError as error:
        raise _unreadable(path, _("it has no manifest.json")) from error
    except (OSError, ValueError, TypeError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, reason: str) -> KvchatError:
    return KvchatError(_("The MCP bundle could not be read"), f"{path.name}: {reason}.", _("Download it again."))


def _parse(path: Path, manifest: Any) -> Bundle:
    if not isinstance(manifest, dict) or not isinstance(manifest.get("server"), dict):
        raise ValueError(_("its manifest does not define a server"))
    launch = manifest["server"].get("mcp_config")
    if not isinstance(launch, dict):
        raise ValueError(_("its manifest does not say how to start the server"))
    overrides = launch.get("platform_overrides")
    override = overrides.get(sys.platform, {}) if isinstance(overrides, dict) else {}
    launch = launch | {key: value for key, value in override.items() if value} if isinstance(override, dict) else launch
    name = str(manifest.get("name", ""))[:MAX_NAME_LENGTH]
    entry = {key: launch[key] for key in ("command", "args", "env") if key in launch}
    if problem := name_error(name) or parse_server(name, entry).problem:
        raise ValueError(problem.rstrip("."))
    author = manifest.get("author")
    options = manifest.get("user_config", {})
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
        tuple(_parse_option(key, option) for key, option in options.items()),
        launch.get("command", ""),
        tuple(launch.get("args", ())),
        dict(launch.get("env", {})),
    )


def _parse_option(key: str, option: Any) -> BundleOption:
    if not isinstance(option, dict) or option.get("type") not in _TYPES or not re.fullmatch(r"[\w.-]{1,64}", key):
        raise ValueError(_("its option {key} is invalid", key=repr(key)[:80]))
    default = option.get("default")
    if isinstance(default, list):
        default = [str(item) for item in default]
    elif not isinstance(default, str | int | float | bool | None):
        default = None
    return BundleOption(
        key,
        option["type"],
        safe_prose(str(option.get("title") or key)[:200]),
        safe_prose(str(option.get("description") or "")[:1_000]),
        option.get("required") is True,
        option.get("sensitive") is True,
        option.get("multiple") is True,
        default,
    )


def bundle_folder(bundles: Path, server: str) -> Path:
    return bundles / (_UNSAFE.sub("_", server).strip(".") or "_")


def install_bundle(bundle: Bundle, values: Mapping[str, Value], bundles: Path, stop: threading.Event) -> dict[str, Any]:
    """Unpack a bundle, replacing an older version, and return the entry for mcp.json. Blocks. Raises KvchatError.

    `values`: by the key of the option. Secret ones become references; the caller stores them.
    """
    for option in bundle.options:
        if option.required and values.get(option.key, option.default) in (None, "", [], ()):
            raise KvchatError(_("“{option}” is required", option=option.title), option.description)
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
    return _entry(bundle, values, folder)


def _entry(bundle: Bundle, values: Mapping[str, Value], folder: Path) -> dict[str, Any]:
    home = Path.home()
    variables: dict[str, str] = {"__dirname": str(folder), "HOME": str(home), "/": os.sep, "pathSeparator": os.sep}
    variables |= {name.upper(): str(home / name) for name in ("Desktop", "Documents", "Downloads")}
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
            lists[key] = [_replaced(item, variables) for item in value or ()]
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
