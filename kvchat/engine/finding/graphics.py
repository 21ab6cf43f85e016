"""Graphics cards of this computer, engines that suit them, and why an engine does not see one.

Engines from llama.cpp's releases load their compute backends at startup; if one cannot be loaded, they silently use
the CPU (`GGML_BACKEND_DL`, ggml/src/ggml-backend-reg.cpp).
"""

from __future__ import annotations

import contextlib
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvchat.engine import parent_guard
from kvchat.errors import KvchatError
from kvchat.words.language import N_, _, listed

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_DISPLAY_CLASS = 0x03  # PCI class code: VGA, XGA, 3D and other display controllers
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_WINDOWS_LIBRARIES = {"nvcuda.dll": "NVIDIA", "amdhip64.dll": "AMD", "ze_loader.dll": "Intel"}


class Maker(Enum):
    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"
    APPLE = "Apple"


_PCI_VENDORS = {0x10DE: Maker.NVIDIA, 0x1002: Maker.AMD, 0x8086: Maker.INTEL}  # pci-ids.ucw.cz


class Backend(Enum):
    CUDA = "CUDA"
    ROCM = "ROCm"
    VULKAN = "Vulkan"
    SYCL = "SYCL"
    METAL = "Metal"


_SUITS = {  # best first. Vulkan comes with every driver; ROCm and SYCL mostly need the maker's libraries
    Maker.NVIDIA: (Backend.CUDA, Backend.VULKAN),
    Maker.AMD: (Backend.VULKAN, Backend.ROCM),
    Maker.INTEL: (Backend.VULKAN, Backend.SYCL),
    Maker.APPLE: (Backend.METAL,),
}


@dataclass(frozen=True)
class Graphics:
    system: str  # "linux", "darwin" or "win32"
    makers: tuple[Maker, ...]
    nvidia_driver: bool = True  # False: NVIDIA card on Linux without NVIDIA's driver


def find_graphics() -> Graphics:
    """Detect GPUs: on Linux from /sys, elsewhere by what the driver installed; no program is run."""
    if sys.platform == "darwin":
        return Graphics(sys.platform, (Maker.APPLE,) if platform.machine() == "arm64" else ())
    if sys.platform == "win32":
        folder = Path("C:/Windows/System32")
        found = {Maker(maker) for library, maker in _WINDOWS_LIBRARIES.items() if (folder / library).exists()}
        return Graphics(sys.platform, _ordered(found))
    return Graphics("linux", linux_makers(_PCI_DEVICES), _NVIDIA_DRIVER.exists())


def linux_makers(devices: Path) -> tuple[Maker, ...]:
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
    return tuple(dict.fromkeys(backend for maker in graphics.makers for backend in _SUITS[maker]))


def install_advice(graphics: Graphics) -> tuple[str, ...]:
    if not graphics.makers:
        words = _("No supported GPU was found; the embedded engine is as fast as any other on this computer.")
        return (words,)
    best, *others = (backend.value for backend in suiting(graphics))
    steps = [_("Run `kvchat engines get` to download and test an engine for {best}.", best=best)]
    if others:
        name = others[0].lower()
        steps[0] += " " + _("For {other}, run `kvchat engines get {name}`.", name=name, other=others[0])
    return tuple(filter(None, (driver_first(graphics), *steps)))


def driver_first(graphics: Graphics) -> str:
    """Return what must be installed before an engine can use the GPU, or ""."""
    if Maker.NVIDIA in graphics.makers and not graphics.nvidia_driver:
        return _("Install the NVIDIA driver first; engines cannot use the GPU without it.")
    return ""


def _ordered(makers: set[Maker]) -> tuple[Maker, ...]:
    return tuple(maker for maker in Maker if maker in makers)


_TIMEOUT_S = 20.0
_LACKS = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_NEEDS_SYSTEM = re.compile(r"version `(GLIBC(?:XX)?_[\d.]+)' not found")
_SYSTEM = N_("a newer Linux")

# Packages that provide a library, by its name's prefix. Names are Debian's and Ubuntu's.
_BRINGS = {
    "libcuda.so": N_("the NVIDIA driver (Debian: nvidia-driver)"),
    "libvulkan.so": N_("the Vulkan loader (Debian: libvulkan1) and the GPU’s Vulkan driver (mesa-vulkan-drivers)"),
    "libgomp.so": N_("the OpenMP library (Debian: libgomp1)"),
    "libcudart.so": N_("the CUDA libraries included with the engine (download the engine again)"),
    "libcublas": N_("the CUDA libraries included with the engine (download the engine again)"),
    "libamdhip": N_("AMD ROCm"),
    "libhip": N_("AMD ROCm"),
    "libroc": N_("AMD ROCm"),
    "libhsa": N_("AMD ROCm"),
    "libssl": N_("OpenSSL (Debian: libssl3)"),
    "libcrypto": N_("OpenSSL (Debian: libssl3)"),
    "libsycl": N_("Intel oneAPI"),
    "libmkl": N_("Intel oneAPI"),
    "libze_loader": N_("the Intel Level Zero loader (Debian: libze1)"),
}
_DRIVERS = {  # fixes for undetected cards, if no library is missing
    Backend.CUDA: N_("The NVIDIA driver is not running, or the driver or the GPU is too old for this engine."),
    Backend.VULKAN: N_(
        "No Vulkan driver for the GPU was found (Debian: mesa-vulkan-drivers; for NVIDIA, the NVIDIA driver)."
    ),
    Backend.ROCM: N_(
        "The AMD driver is not running, you do not have permission to use it (group "
        "render), or ROCm does not support the GPU."
    ),
    Backend.SYCL: N_("The Intel compute driver is not installed (Debian: intel-opencl-icd and libze1)."),
    Backend.METAL: N_("macOS reports no GPU that supports Metal."),
}


_AGAIN = N_("Fix this problem and try again, or choose another backend; the download is kept.")


def cannot_be_run(why: str) -> KvchatError:
    return KvchatError(_("The engine cannot run on this computer"), why, _(_AGAIN))


def why_no_card(program: Path, backend: Backend) -> KvchatError:
    """Explain why the engine has no device of that kind. Blocks while `ldd` runs."""
    why = what_is_lacking(program) or _(_DRIVERS[backend])
    return KvchatError(_("The engine does not detect the GPU"), why, _(_AGAIN))


def what_is_lacking(program: Path) -> str:
    """Return which libraries an engine is missing and what provides them, or "".

    Blocks while `ldd` runs.
    """
    lacking = missing_libraries(program.parent)
    if _SYSTEM in lacking:
        return _("This build needs {system} than this one: {lacking}.", system=_(_SYSTEM), lacking=lacking[_SYSTEM])
    if not lacking:
        return ""
    known = {next((words for start, words in _BRINGS.items() if name.startswith(start)), "") for name in lacking}
    brought = _(" and ").join(sorted(_(words) for words in known if words))
    return _("It is missing {lacking}.", lacking=listed(sorted(lacking))) + (
        " " + _("This is part of {brought}.", brought=brought) if brought else ""
    )


def missing_libraries(folder: Path) -> dict[str, str]:
    """Return the dependencies missing for the engine libraries in a folder; under `_SYSTEM`, a newer system's.

    Empty if `ldd` cannot tell.
    """
    found: dict[str, str] = {}
    environment = parent_guard.engine_environment("ldd") | {"LC_ALL": "C"}
    libraries = {*folder.glob("libggml-*.so"), *folder.glob("llama-server")} if sys.platform == "linux" else ()
    for library in sorted(libraries):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                ["ldd", str(library)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_TIMEOUT_S,
                env=environment,
                check=False,
            )
            text = done.stdout.decode("utf-8", "replace")
            found |= {name: name for name in _LACKS.findall(text) if not (folder / name).exists()}
            if too_old := _NEEDS_SYSTEM.search(text):
                found[_SYSTEM] = too_old[1].replace("_", " ")
    return found
