"""What an engine is, asked of the engine itself once per build: version, build number, options. Blocks for that."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvchat.engine.finding.discovery import (
    Device,
    EngineLocation,
    EngineNotFound,
    engine_version,
    find_engine,
    help_text,
    installed_engines,
    list_devices,
)
from kvchat.engine.finding.options import KnownOptions, parse_help
from kvchat.errors import KvchatError
from kvchat.system.files import stamp_of
from kvchat.words.language import _, listed

# The first build known to tell in every answer how much of the prompt came from its cache (`cache_n`, llama.cpp
# pull requests 15827 and 15879, September 2025). Without that no restore can be proved.
MINIMUM_BUILD = 6451
NEEDED_OPTIONS = ("--model", "--host", "--port", "--ctx-size", "--batch-size", "--slot-save-path", "--parallel")


class EngineTooOld(KvchatError):
    """The engine lacks what kvchat cannot do without."""

    def __init__(self, location: EngineLocation, lacks: str) -> None:
        super().__init__(
            _("This engine is too old"),
            f"{location}: {lacks}",
            _("Install a newer llama-server, or choose the engine inside kvchat in the settings."),
        )


class NotAnEngine(EngineNotFound):
    """The program is something else."""

    def __init__(self, program: Path) -> None:
        super().__init__(
            _("This is not a llama-server"),
            _("{program} answers, but it does not have a llama-server's options.", program=program),
            _("Choose the program llama-server, or clear the engine path so that kvchat looks for one itself."),
        )


@dataclass(frozen=True)
class EngineProbe:
    """An engine's own account of itself."""

    version: str
    build: int | None  # None: it does not tell
    options: KnownOptions | None  # None: the embedded engine, which has none

    def check(self, location: EngineLocation) -> None:
        """Raise EngineTooOld unless kvchat can work with it. One that does not tell is given the chance."""
        if self.build is not None and self.build < MINIMUM_BUILD:
            raise EngineTooOld(
                location,
                _(
                    "It is build {build}; kvchat needs {minimum_build} or newer.",
                    build=self.build,
                    minimum_build=MINIMUM_BUILD,
                ),
            )
        lacking = self.options.missing(NEEDED_OPTIONS) if self.options else frozenset()
        if lacking:
            raise EngineTooOld(location, _("It does not know {lacking}.", lacking=listed(sorted(lacking))))


def build_number(text: str) -> int | None:
    """The build in "version: 0.6.0 (build 11434, commit abc)", "version: 6451 (abc)" or "b11434-abc".

    None for a build without one: made outside of llama.cpp's repository it calls itself 0 or 1.
    """
    match = re.search(r"\(build (\d+)|version: (\d+) \(|\bb(\d+)\b", text)
    number = int(next(filter(None, match.groups()))) if match else 0
    return number if number > 1 else None


def probe(location: EngineLocation) -> EngineProbe:
    """Ask the engine, once for each file as it lies there. Raises EngineNotFound when it is none, or cannot be run."""
    if location.path is None:
        return EngineProbe(engine_version(location), None, None)
    stamp = stamp_of(location.path)
    with _lock:
        known = _probed.get(location.path)
    if known and known[0] == stamp:
        return known[1]
    options = parse_help(help_text(location.path))
    if options is None:
        raise NotAnEngine(location.path)
    version = engine_version(location)
    asked = EngineProbe(version.removeprefix("version: "), build_number(version), options)
    with _lock:
        _probed[location.path] = (stamp, asked)
    return asked


def build_identity(location: EngineLocation, asked: EngineProbe) -> str:
    """What tells one build of an engine from another: its version or, where that has no number, the program's stamp."""
    if location.path is None or asked.build is not None:
        return asked.version
    size, changed_ns, _ = stamp_of(location.path)
    return f"{asked.version}, {size} bytes of {changed_ns}"


def usable_engine(settings_path: str | None) -> tuple[EngineLocation, EngineProbe]:
    """The engine to use, as `find_engine` has it, and what it is.

    The one in the settings, or an error. Without a setting, an engine that is too old or broken is passed over if
    there is another. Raises EngineTooOld and EngineNotFound.
    """
    candidates = [] if settings_path else installed_engines()
    refusal: KvchatError | None = None
    for location in candidates or [find_engine(settings_path)]:
        try:
            asked = probe(location)
            asked.check(location)
        except (EngineTooOld, EngineNotFound) as error:
            refusal = refusal or error
        else:
            return location, asked
    assert refusal is not None
    raise refusal


_probed: dict[Path, tuple[tuple[int, int, int], EngineProbe]] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class EngineEntry:
    """One engine: what it is, or why it cannot be used."""

    location: EngineLocation
    chosen: bool  # the one kvchat starts with these settings
    version: str = ""
    build: int | None = None
    devices: tuple[Device, ...] = ()
    problem: KvchatError | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """What it computes with, by the names of its devices: "CUDA", "Vulkan"; the processor goes without saying."""
        names = (re.sub(r"\d+$", "", device.name) for device in self.devices)
        return tuple(dict.fromkeys(name for name in names if name != "CPU"))


def take_inventory(settings_path: str | None, fetched: Iterable[EngineLocation] = ()) -> tuple[EngineEntry, ...]:
    """Every engine found, the one in the settings first. Raises nothing: what is wrong stands in the entry.

    `fetched`: those that kvchat has fetched itself, which no search would find.
    """
    found = [*fetched, *installed_engines()]
    with contextlib.suppress(KvchatError):  # whoever starts it is told
        found = [find_engine(settings_path), *found] if settings_path else found
    programs: dict[Path | None, EngineLocation] = {}  # by what they really are: one may be there under two names
    for location in found:
        programs.setdefault(location.path and location.path.resolve(), location)
    try:
        chosen = usable_engine(settings_path)[0]
    except KvchatError:
        chosen = None
    return tuple(_look_at(location, location == chosen) for location in programs.values())


def _look_at(location: EngineLocation, chosen: bool) -> EngineEntry:
    try:
        asked = probe(location)
        asked.check(location)
        return EngineEntry(location, chosen, asked.version, asked.build, list_devices(location))
    except KvchatError as error:
        return EngineEntry(location, chosen, problem=error)
