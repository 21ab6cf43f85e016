"""Finds an engine on this machine, and asks it who it is."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvchat.engine import embedded, parent_guard
from kvchat.errors import KvchatError
from kvchat.system.files import in_time
from kvchat.system.paths import expanded
from kvchat.words.language import N_, _

_ASK_TIMEOUT_S = 30.0


class EngineKind(Enum):
    """The two kinds of engine. Both are llama.cpp's server and speak the same HTTP."""

    LLAMA_SERVER = "llama-server"
    EMBEDDED = "embedded"


@dataclass(frozen=True)
class EngineLocation:
    """Where an engine is. The embedded one has no path: it is a package inside kvchat's own Python."""

    kind: EngineKind
    path: Path | None = None

    def __str__(self) -> str:
        return _("embedded engine") if self.path is None else str(self.path)


@dataclass(frozen=True)
class Device:
    """A processor the engine can compute on. Sizes in bytes, None where the engine does not tell."""

    name: str
    description: str
    total_bytes: int | None
    free_bytes: int | None


class EngineNotFound(KvchatError):
    """There is no engine, or not where the settings say."""


def find_engine(
    settings_path: str | None, *, search: Iterable[Path] | None = None, embedded_present: bool | None = None
) -> EngineLocation:
    """The engine to use: the path in the settings, llama-server on PATH and the usual places, the embedded engine.

    The settings may also say "embedded", for a machine whose own llama-server is of no use. `search` and
    `embedded_present` override what this machine has. Raises EngineNotFound with advice.
    """
    if settings_path == EngineKind.EMBEDDED.value:
        search = ()
    elif settings_path:
        path = expanded(settings_path)
        try:
            return EngineLocation(EngineKind.LLAMA_SERVER, in_time(lambda: _checked(path)))
        except OSError as error:
            raise EngineNotFound(_("The engine is not there"), f"{path}: {error.strerror}.", _(_ADVICE)) from error
    found = installed_engines(search=search, embedded_present=embedded_present)
    if found:
        return found[0]
    raise EngineNotFound(
        _("No engine found"),
        _("There is no llama-server on this machine, and the embedded engine is not installed."),
        _("Install llama.cpp, or `pip install xllamacpp`, or set the path to a llama-server in the settings."),
    )


def installed_engines(
    *, search: Iterable[Path] | None = None, embedded_present: bool | None = None
) -> list[EngineLocation]:
    """Every engine on this machine, each program once, in the order of preference: the embedded one comes last."""
    if embedded_present is None:
        embedded_present = importlib.util.find_spec("xllamacpp") is not None
    programs: dict[Path, Path] = {}  # by what they really are
    for folder in install_places() if search is None else search:
        program = folder / program_name()
        if _is_program(program):
            programs.setdefault(program.resolve(), program.absolute())
    found = [EngineLocation(EngineKind.LLAMA_SERVER, program) for program in programs.values()]
    return [*found, EngineLocation(EngineKind.EMBEDDED)] if embedded_present else found


def install_places(environment: Mapping[str, str] | None = None) -> list[Path]:
    """The folders a llama-server is looked for in, in order: PATH, then where installers put it."""
    environment = os.environ if environment is None else environment
    folders = [Path(part) for part in environment.get("PATH", "").split(os.pathsep) if part]
    home = Path.home()
    if sys.platform == "win32":
        local = environment.get("LOCALAPPDATA", "")
        roots = (environment.get("ProgramFiles"), environment.get("ProgramFiles(x86)"), local)
        folders += [Path(root) / "llama.cpp" for root in roots if root]
        return [*folders, Path(local) / "Microsoft" / "WinGet" / "Links"] if local else folders
    return [
        *folders,
        home / ".local" / "bin",
        Path("/usr/local/bin"),
        Path("/usr/bin"),
        Path("/opt/homebrew/bin"),
        Path("/home/linuxbrew/.linuxbrew/bin"),
        Path("/opt/llama.cpp/bin"),
        Path("/opt/llama.cpp"),
        home / "llama.cpp" / "build" / "bin",
    ]


def engine_version(location: EngineLocation) -> str:
    """The engine's own version line. Blocks for as long as the program takes; raises EngineNotFound if it fails."""
    if location.path is None:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a bundle may come without package metadata
            return f"xllamacpp {importlib.metadata.version('xllamacpp')}"
        return "xllamacpp"
    answer = _ask([str(location.path), "--version"])
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("version")), lines[-1] if lines else "unknown")


def help_text(program: Path) -> str:
    """What a llama-server prints for --help. Blocks; raises EngineNotFound when it cannot be run."""
    return _ask([str(program), "--help"])


def list_devices(location: EngineLocation, workers: Sequence[str] = ()) -> tuple[Device, ...]:
    """The devices the engine sees, its RPC workers' included; empty for one that has the processor alone.

    Blocks; raises EngineNotFound when the engine cannot be run.
    """
    if location.path is None:
        return parse_embedded_devices(_ask(embedded.command(embedded.DEVICES)))
    shared = ["--rpc", ",".join(workers)] if workers else []  # before the other: that one ends the program
    return parse_devices(_ask([str(location.path), *shared, "--list-devices"]))


def parse_devices(text: str) -> tuple[Device, ...]:
    """What `llama-server --list-devices` prints: `  CUDA0: NVIDIA H200 (143156 MiB, 142000 MiB free)`.

    A worker's, `  RPC1: den:50052 (…)`, is named as its buffers are in the log: RPC0[den:50052], the first of its own.
    """
    pattern = re.compile(r"^\s+(\S+): (.*) \((\d+) MiB, (\d+) MiB free\)\s*$", re.MULTILINE)
    of_worker: Counter[str] = Counter()
    devices = []
    for name, description, total, free in pattern.findall(text):
        if re.fullmatch(r"RPC\d+", name):
            name = f"RPC{of_worker[description]}[{description}]"
            of_worker[description] += 1
        devices.append(Device(name, description, int(total) << 20, int(free) << 20))
    return tuple(devices)


def parse_embedded_devices(text: str) -> tuple[Device, ...]:
    """What the embedded engine's child prints: one JSON list, on the last line."""
    try:
        listed = json.loads(text.strip().splitlines()[-1])
        return tuple(
            Device(str(d["name"]), str(d["description"]), d.get("memory_total"), d.get("memory_free")) for d in listed
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return ()


def _checked(path: Path) -> Path:
    """The program the settings name. A bare name is looked for on PATH."""
    if len(path.parts) == 1 and (found := shutil.which(str(path))):
        return Path(found)
    if not path.exists():
        raise EngineNotFound(_("The engine is not there"), _("{path} does not exist.", path=path), _(_ADVICE))
    if path.is_dir():
        if _is_program(path / program_name()):
            return (path / program_name()).absolute()
        raise EngineNotFound(
            _("The engine is not there"),
            _("{path} is a folder without a {program_name}.", path=path, program_name=program_name()),
            _(_ADVICE),
        )
    if not _is_program(path):
        raise EngineNotFound(
            _("The engine cannot be run"), _("{path} is not an executable program.", path=path), _(_ADVICE)
        )
    return path.absolute()


_ADVICE = N_("Correct the engine path in the settings, or clear it so that kvchat looks for an engine itself.")


def program_name() -> str:
    """What a llama-server's file is called on this system."""
    return "llama-server.exe" if sys.platform == "win32" else "llama-server"


def _is_program(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except OSError:
        return False


def _ask(command: list[str]) -> str:
    """Everything a short-lived engine command prints, on either stream."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ASK_TIMEOUT_S,
            env=parent_guard.engine_environment(command[0]) | {"GGML_NO_BACKTRACE": "1"},  # it would bury the reason
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # of Windows
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineNotFound(_("The engine cannot be run"), str(error), _(_ADVICE)) from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        raise EngineNotFound(
            _("The engine cannot be run"),
            text.strip()[-500:] or _("exit {returncode}", returncode=done.returncode),
            _(_ADVICE),
        )
    return text
