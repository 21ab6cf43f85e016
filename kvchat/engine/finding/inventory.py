"""The engines of this computer as a list to choose from. Blocks while each is asked who it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvchat.engine.finding.discovery import Device, EngineLocation, find_engine, installed_engines, list_devices
from kvchat.engine.finding.probe import probe, usable_engine
from kvchat.errors import KvchatError


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


def take_inventory(settings_path: str | None) -> tuple[EngineEntry, ...]:
    """Every engine found, the one in the settings first. Raises nothing: what is wrong stands in the entry."""
    locations = installed_engines()
    try:
        named = find_engine(settings_path) if settings_path else None
    except KvchatError:
        named = None  # whoever starts it is told
    if named is not None:
        locations = [named, *(location for location in locations if not _same(location, named))]
    try:
        chosen = usable_engine(settings_path)[0]
    except KvchatError:
        chosen = None
    return tuple(_look_at(location, location == chosen) for location in locations)


def _look_at(location: EngineLocation, chosen: bool) -> EngineEntry:
    try:
        asked = probe(location)
        asked.check(location)
        return EngineEntry(location, chosen, asked.version, asked.build, list_devices(location))
    except KvchatError as error:
        return EngineEntry(location, chosen, problem=error)


def _same(one: EngineLocation, other: EngineLocation) -> bool:
    """Whether both are one program; it may be there under two names."""
    if one.path is None or other.path is None:
        return one.path is other.path
    return one.path.resolve() == other.path.resolve()
