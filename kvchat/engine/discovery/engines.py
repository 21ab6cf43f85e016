"""Search for engines on this computer, and queries of their versions, options and devices. All of it blocks."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kvchat.engine import embedded
from kvchat.engine.api.errors import WORKER_LOST, EngineFailed, EngineUnusable, lost_workers
from kvchat.engine.discovery.arguments import BadWorkers, KnownOptions, parse_help
from kvchat.errors import KvchatError
from kvchat.system import parent_guard
from kvchat.system.files import file_stamp, run_with_timeout
from kvchat.system.paths import expand_user
from kvchat.text.language import N_, _, join_list, join_sentences

# Drivers for Vulkan and Direct3D that compute on the CPU.
_SOFTWARE_DEVICE = re.compile("llvmpipe|SwiftShader|Basic Render Driver")
_COMMAND_TIMEOUT_S = 30.0
_WORKERS_TIMEOUT_S, _CONNECT_TIMEOUT_S = 15.0, 2.0  # for RPC servers
EMBEDDED = "embedded"  # value of the setting `engine_path`


@dataclass(frozen=True)
class EngineLocation:
    """Location of an engine: the path of a llama-server, or None for the embedded engine."""

    path: Path | None = None

    @property
    def kind(self) -> str:
        return EMBEDDED if self.path is None else "llama-server"

    def __str__(self) -> str:
        return _("embedded engine") if self.path is None else str(self.path)


@dataclass(frozen=True)
class Device:
    """A compute device of the engine and its memory, which is None if unknown."""

    name: str
    description: str
    total_bytes: int | None
    free_bytes: int | None

    @property
    def label(self) -> str:
        """The description, with a remark if the device is a software renderer on the CPU."""
        is_software = _SOFTWARE_DEVICE.search(self.description)
        return _("{device} (software, slow)", device=self.description) if is_software else self.description


class EngineNotFound(EngineUnusable):
    """No engine is installed, or the engine in the settings is missing or cannot run."""


def find_engine(settings_path: str | None) -> EngineLocation:
    """Return the engine from the settings, else the first installed one, without starting it. Raises EngineNotFound."""
    if settings_path and settings_path != EMBEDDED:
        path = expand_user(settings_path)
        try:
            return EngineLocation(run_with_timeout(lambda: _resolve_program(path)))
        except OSError as error:
            raise EngineNotFound(_("The engine was not found"), f"{path}: {error.strerror}.", _(_ADVICE)) from error
    for engine in installed_engines():
        if engine.path is None or settings_path != EMBEDDED:
            return engine
    raise EngineNotFound(
        _("No engine found"),
        _("There is no llama-server on this machine, and the embedded engine is not installed."),
        _("Install llama.cpp, run `pip install xllamacpp`, or set the path to a llama-server in the settings."),
    )


def installed_engines() -> list[EngineLocation]:
    """List the engines on PATH and in the usual folders, and the embedded engine last."""
    programs: dict[Path, Path] = {}  # by resolved path, because one program may have two names
    for folder in search_folders():
        program = folder / program_name()
        if _is_executable(program):
            programs.setdefault(program.resolve(), program.absolute())
    locations = [EngineLocation(program) for program in programs.values()]
    return [*locations, EngineLocation()] if importlib.util.find_spec("xllamacpp") else locations


def search_folders() -> list[Path]:
    folders = [Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    home = Path.home()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        roots = (os.environ.get("PROGRAMFILES"), os.environ.get("PROGRAMFILES(X86)"), local)
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


def list_devices(location: EngineLocation, workers: Sequence[str] = ()) -> tuple[Device, ...]:
    """List the devices of an engine and its RPC servers, without the CPU.

    Raises EngineNotFound; with workers, EngineFailed if one does not respond, and BadWorkers.
    """
    if location.path is None:
        return parse_embedded_devices(_run_command(embedded.command(embedded.DEVICES_ARGUMENT)))
    program = str(location.path)
    if not workers:
        return parse_devices(_run_command([program, "--list-devices"]))
    if unreachable := unreachable_workers(workers):
        raise EngineFailed(lost_workers(unreachable))

    def run(*some: str) -> str:  # --rpc before --list-devices, which exits
        return _run_command([program, "--rpc", ",".join(some), "--list-devices"], _WORKERS_TIMEOUT_S)

    def is_silent(worker: str) -> bool:
        try:
            run(worker)
        except EngineNotFound:
            return True
        return False

    try:
        return parse_devices(run(*workers))
    except EngineNotFound as error:
        if reason := WORKER_LOST.find(error.detail.splitlines()):
            raise EngineFailed(reason) from error
        if isinstance(error.__cause__, subprocess.TimeoutExpired):
            busy = [worker for worker, silent in _map_in_threads(is_silent, workers) if silent]
            text = N_("The RPC server {worker} does not answer. It serves one program at a time and may be in use.")
            detail = join_sentences(*(_(text, worker=worker) for worker in busy or workers))
            raise EngineFailed(WORKER_LOST.failure(detail)) from error
        output = next((line.strip() for line in error.detail.splitlines() if line.strip()), "")
        raise BadWorkers(_("The engine could not start with these RPC servers: {said}", said=output)) from error


def unreachable_workers(workers: Sequence[str]) -> list[str]:
    """Return those RPC servers (`host:port`) that accept no connection.

    Do not call it while an engine uses them: they accept one connection at a time, and their queue holds two more.
    """

    def accepts(worker: str) -> bool:
        host, _colon, port = worker.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
        except (OSError, UnicodeError):  # UnicodeError: not a possible host name
            return False
        return True

    return [worker for worker, is_reachable in _map_in_threads(accepts, workers) if not is_reachable]


def _map_in_threads(check: Callable[[str], bool], workers: Sequence[str]) -> list[tuple[str, bool]]:
    with ThreadPoolExecutor(max(1, len(workers))) as pool:
        return list(zip(workers, pool.map(check, workers), strict=True))


def parse_devices(text: str) -> tuple[Device, ...]:
    """Parse the output of `llama-server --list-devices`: `  CUDA0: NVIDIA H200 (143156 MiB, 142000 MiB free)`.

    A device of an RPC server (`  RPC1: den:50052 (…)`) is named as in the engine's log, such as RPC0[den:50052] for
    the server's first device.
    """
    pattern = re.compile(r"^\s+(\S+): (.*) \((\d+) MiB, (\d+) MiB free\)\s*$", re.MULTILINE)
    worker_devices: Counter[str] = Counter()
    devices = []
    for name, description, total, free in pattern.findall(text):
        if re.fullmatch(r"RPC\d+", name):
            name = f"RPC{worker_devices[description]}[{description}]"
            worker_devices[description] += 1
        devices.append(Device(name, description, int(total) << 20, int(free) << 20))
    return tuple(devices)


def parse_embedded_devices(text: str) -> tuple[Device, ...]:
    """Parse the embedded engine's list of devices, which is JSON in the last line of its output."""
    try:
        devices = json.loads(text.strip().splitlines()[-1])
        return tuple(Device(d["name"], d["description"], d.get("memory_total"), d.get("memory_free")) for d in devices)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        return ()


def _resolve_program(path: Path) -> Path:
    name = program_name()
    if len(path.parts) == 1 and (found := shutil.which(str(path))):
        return Path(found)
    program = path / name if path.is_dir() else path
    if _is_executable(program):
        return program.absolute()
    title, reason = _("The engine was not found"), _("{path} does not exist.", path=path)
    if path.is_dir():
        reason = _("The folder {path} does not contain {program_name}.", path=path, program_name=name)
    elif path.exists():
        title, reason = _("The engine cannot run"), _("{path} is not executable.", path=path)
    raise EngineNotFound(title, reason, _(_ADVICE))


_ADVICE = N_("Correct the engine path in the settings, or clear it to let kvchat find an engine.")


def program_name() -> str:
    return "llama-server.exe" if sys.platform == "win32" else "llama-server"


def _is_executable(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except OSError:
        return False


def _run_command(command: list[str], timeout_s: float = _COMMAND_TIMEOUT_S) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            env=parent_guard.engine_environment(command[0])
            | {"GGML_NO_BACKTRACE": "1"},  # a backtrace would hide the reason
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # Windows
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineNotFound(_("The engine cannot run"), str(error), _(_ADVICE)) from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        why = text.strip()[-500:] or _("exit code {returncode}", returncode=done.returncode)
        raise EngineNotFound(_("The engine cannot run"), why, _(_ADVICE))
    return text


# The first build that reports how much of a prompt came from its cache (`cache_n`, llama.cpp pull requests 15827 and
# 15879, September 2025), without which no restore can be verified.
MINIMUM_BUILD = 6451
REQUIRED_OPTIONS = ("--model", "--host", "--port", "--ctx-size", "--batch-size", "--slot-save-path", "--parallel")


class EngineTooOld(EngineUnusable):
    def __init__(self, location: EngineLocation, reason: str) -> None:
        super().__init__(
            _("This engine is too old"),
            f"{location}: {reason}",
            _("Install a newer llama-server, or choose the embedded engine in the settings."),
        )


@dataclass(frozen=True)
class EngineProbe:
    location: EngineLocation
    version: str
    identity: str  # the version or, if it has no build number, the version with the program's size and time
    build: int | None = None  # None: unknown
    options: KnownOptions | None = None  # None for the embedded engine


def build_number(text: str) -> int | None:
    """Find the number in "version: 0.6.0 (build 11434, commit abc)", "version: 6451 (abc)" or "b11434-abc".

    Return None for unofficial builds, which report 0 or 1.
    """
    match = re.search(r"\(build (\d+)|version: (\d+) \(|\bb(\d+)\b", text)
    number = int(next(filter(None, match.groups()))) if match else 0
    return number if number > 1 else None


def probe(location: EngineLocation) -> EngineProbe:
    """Query an engine for its version and options, once per version of its file.

    Raises EngineNotFound and EngineTooOld. An engine without a build number is judged by its options.
    """
    if location.path is None:
        version = "xllamacpp"
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # bundles may lack package metadata
            version += f" {importlib.metadata.version('xllamacpp')}"
        return EngineProbe(location, version, version)
    probed = _probe_program(location, file_stamp(location.path))
    if probed.build is not None and probed.build < MINIMUM_BUILD:
        builds = {"build": probed.build, "minimum_build": MINIMUM_BUILD}
        raise EngineTooOld(location, _("It is build {build}; kvchat needs {minimum_build} or newer.", **builds))
    if lacking := probed.options.missing(REQUIRED_OPTIONS) if probed.options else frozenset():
        raise EngineTooOld(location, _("It does not support {lacking}.", lacking=join_list(sorted(lacking))))
    return probed


@functools.lru_cache(16)
def _probe_program(location: EngineLocation, stamp: tuple[int, int, int]) -> EngineProbe:
    options = parse_help(_run_command([str(location.path), "--help"]))
    if options is None:
        raise EngineNotFound(
            _("This is not a llama-server"),
            _("{program} runs, but does not support the options of llama-server.", program=location.path),
            _("Choose a llama-server, or clear the engine path to let kvchat find one."),
        )
    lines = [line.strip() for line in _run_command([str(location.path), "--version"]).splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("version")), lines[-1] if lines else "unknown")
    version, build, (size, changed_ns, _inode) = line.removeprefix("version: "), build_number(line), stamp
    return EngineProbe(location, version, version if build else f"{version}-{size}-{changed_ns}", build, options)


def usable_engine(settings_path: str | None) -> EngineProbe:
    """Return the engine from the settings or, without one, the first installed one that works.

    Raises EngineNotFound and EngineTooOld.
    """
    candidates = [] if settings_path else installed_engines()
    refusals: list[EngineUnusable] = []
    for location in candidates or [find_engine(settings_path)]:
        try:
            return probe(location)
        except EngineUnusable as error:
            refusals.append(error)
    raise refusals[0]


@dataclass(frozen=True)
class EngineEntry:
    location: EngineLocation
    is_in_use: bool  # kvchat uses it with the current settings
    version: str = ""
    build: int | None = None
    devices: tuple[Device, ...] = ()
    problem: KvchatError | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of the device kinds other than CPU, such as "CUDA" and "Vulkan"."""
        names = (re.sub(r"\d+$", "", device.name) for device in self.devices)
        return tuple(dict.fromkeys(name for name in names if name != "CPU"))


def list_engines(settings_path: str | None, downloaded: Iterable[EngineLocation] = ()) -> tuple[EngineEntry, ...]:
    """List the engine from the settings, the downloaded and the installed engines, without duplicates.

    An engine that cannot be used is listed with its problem.
    """
    locations, chosen = [*downloaded, *installed_engines()], None
    with contextlib.suppress(KvchatError):  # a wrong path is reported when the engine starts
        locations = [find_engine(settings_path), *locations] if settings_path else locations
    with contextlib.suppress(KvchatError):
        chosen = usable_engine(settings_path).location
    programs: dict[Path | None, EngineLocation] = {}  # by resolved path
    for location in locations:
        programs.setdefault(location.path and location.path.resolve(), location)
    entries = []
    for location in programs.values():
        entry = EngineEntry(location, location == chosen)
        try:
            probed = probe(location)
            entry = replace(entry, version=probed.version, build=probed.build, devices=list_devices(location))
        except KvchatError as error:
            entry = replace(entry, problem=error)
        entries.append(entry)
    return tuple(entries)
