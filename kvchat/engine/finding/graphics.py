"""The graphics cards of this computer, seen without any driver's help, and how to get an engine that uses them."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_DISPLAY_CLASS = 0x03  # PCI class code: VGA, XGA, 3D and other display controllers
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_WINDOWS_LIBRARIES = {"nvcuda.dll": "NVIDIA", "amdhip64.dll": "AMD", "ze_loader.dll": "Intel"}

RELEASES = "https://github.com/ggml-org/llama.cpp/releases"


class Maker(Enum):
    """Who made the card: that decides which engine builds can use it."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"
    APPLE = "Apple"


_PCI_VENDORS = {0x10DE: Maker.NVIDIA, 0x1002: Maker.AMD, 0x8086: Maker.INTEL}  # pci-ids.ucw.cz


_WAYS = {  # by the system: for which makers, how
    "linux": (
        (
            {Maker.NVIDIA},
            "For NVIDIA's CUDA: conda install -c conda-forge llama-cpp, or pixi global install llama-cpp.",
        ),
        (
            {Maker.AMD, Maker.INTEL, Maker.NVIDIA},
            f"With Vulkan, for every maker: unpack the Vulkan build for Linux from {RELEASES} "
            "and choose the folder with llama-server in the settings.",
        ),
    ),
    "win32": (
        (set(Maker), "With Vulkan, for every maker: winget install llama.cpp"),
        (
            {Maker.NVIDIA},
            f"Faster on NVIDIA: unpack the CUDA build for Windows and its CUDA libraries from {RELEASES} into one "
            "folder and choose it in the settings.",
        ),
        ({Maker.AMD}, f"Faster on many AMD cards: the HIP build for Windows from {RELEASES}."),
    ),
    "darwin": ((set(Maker), "With Metal: brew install llama.cpp"),),
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


def install_advice(graphics: Graphics) -> tuple[str, ...]:
    """How to install an engine that uses these cards: steps for a person, the best way first.

    Package names are those in llama.cpp's docs/install.md.
    """
    if not graphics.makers:
        return ("No graphics card was found that an engine could use: the engine inside kvchat does as well as any.",)
    steps = [words for makers, words in _WAYS[graphics.system] if makers & set(graphics.makers)]
    if Maker.NVIDIA in graphics.makers and not graphics.nvidia_driver:
        steps.insert(0, "Install NVIDIA's own driver first: without it no engine can use the card.")
    return tuple(steps)


def _ordered(makers: set[Maker]) -> tuple[Maker, ...]:
    return tuple(maker for maker in Maker if maker in makers)
