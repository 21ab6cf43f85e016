"""The graphics cards of this computer, seen without any driver's help, and what an engine can compute with on them."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvchat.words.language import _

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_DISPLAY_CLASS = 0x03  # PCI class code: VGA, XGA, 3D and other display controllers
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_WINDOWS_LIBRARIES = {"nvcuda.dll": "NVIDIA", "amdhip64.dll": "AMD", "ze_loader.dll": "Intel"}


class Maker(Enum):
    """Who made the card: that decides which engine builds can use it."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"
    APPLE = "Apple"


_PCI_VENDORS = {0x10DE: Maker.NVIDIA, 0x1002: Maker.AMD, 0x8086: Maker.INTEL}  # pci-ids.ucw.cz


class Backend(Enum):
    """What an engine computes with on a card; the value is its name."""

    CUDA = "CUDA"
    ROCM = "ROCm"
    VULKAN = "Vulkan"
    SYCL = "SYCL"
    METAL = "Metal"


_SUITS = {  # the best first. Vulkan comes with every driver; ROCm and SYCL mostly need libraries of the maker's
    Maker.NVIDIA: (Backend.CUDA, Backend.VULKAN),
    Maker.AMD: (Backend.VULKAN, Backend.ROCM),
    Maker.INTEL: (Backend.VULKAN, Backend.SYCL),
    Maker.APPLE: (Backend.METAL,),
}


@dataclass(frozen=True)
class Graphics:
    """What this computer has."""

    system: str  # "linux", "darwin" or "win32"
    makers: tuple[Maker, ...]
    nvidia_driver: bool = True  # False: an NVIDIA card on Linux without NVIDIA's own driver


def find_graphics() -> Graphics:
    """Look at this computer. On Linux from /sys, elsewhere by what the driver installed; no program is run."""
    if sys.platform == "darwin":
        return Graphics(sys.platform, (Maker.APPLE,) if platform.machine() == "arm64" else ())
    if sys.platform == "win32":
        folder = Path("C:/Windows/System32")
        found = {Maker(maker) for library, maker in _WINDOWS_LIBRARIES.items() if (folder / library).exists()}
        return Graphics(sys.platform, _ordered(found))
    return Graphics("linux", linux_makers(_PCI_DEVICES), _NVIDIA_DRIVER.exists())


def linux_makers(devices: Path) -> tuple[Maker, ...]:
    """The makers of the display controllers in a folder like /sys/bus/pci/devices."""
    found = set()
    for device in devices.glob("*"):
        try:
            kind, vendor = (int((device / name).read_text("ascii"), 16) for name in ("class", "vendor"))
        except (OSError, ValueError):
            continue
        if kind >> 16 == _DISPLAY_CLASS and vendor in _PCI_VENDORS:
            found.add(_PCI_VENDORS[vendor])
    return _ordered(found)


def suiting(graphics: Graphics) -> tuple[Backend, ...]:
    """What an engine can compute with on these cards, the best first."""
    return tuple(dict.fromkeys(backend for maker in graphics.makers for backend in _SUITS[maker]))


def install_advice(graphics: Graphics) -> tuple[str, ...]:
    """How to come by an engine that uses these cards, in sentences for the command line."""
    if not graphics.makers:
        return (
            _("No graphics card was found that an engine could use: the engine inside kvchat does as well as any."),
        )
    best, *others = (backend.value for backend in suiting(graphics))
    steps = [_("`kvchat engines get` fetches one for {best}, and tries it out.", best=best)]
    if others:
        name = others[0].lower()
        steps[0] += " " + _("`kvchat engines get {name}` fetches one for {other}.", name=name, other=others[0])
    return tuple(filter(None, (driver_first(graphics), *steps)))


def driver_first(graphics: Graphics) -> str:
    """What has to be installed before an engine can use the card; empty where nothing has."""
    if Maker.NVIDIA in graphics.makers and not graphics.nvidia_driver:
        return _("Install NVIDIA’s own driver first: without it no engine can use the card.")
    return ""


def _ordered(makers: set[Maker]) -> tuple[Maker, ...]:
    return tuple(maker for maker in Maker if maker in makers)
