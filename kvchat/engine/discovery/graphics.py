"""GPUs of this computer, the backends for them, and reasons why an engine does not detect a GPU.

llama.cpp's released engines load their backends at startup and use the CPU without a message if that fails
(`GGML_BACKEND_DL`, ggml/src/ggml-backend-reg.cpp).
"""

import contextlib
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.system import parent_guard
from kvchat.text.language import N_, _, join_list, join_sentences

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_DISPLAY_CLASS = 0x03  # PCI class code of display controllers
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_WINDOWS_LIBRARIES = {"nvcuda.dll": "NVIDIA", "amdhip64.dll": "AMD", "ze_loader.dll": "Intel"}


class GpuVendor(Enum):
    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"
    APPLE = "Apple"


_PCI_VENDORS = {0x10DE: GpuVendor.NVIDIA, 0x1002: GpuVendor.AMD, 0x8086: GpuVendor.INTEL}  # pci-ids.ucw.cz


class Backend(Enum):
    CUDA = "CUDA"
    ROCM = "ROCm"
    VULKAN = "Vulkan"
    SYCL = "SYCL"
    METAL = "Metal"


_VENDOR_BACKENDS = {  # best first. Vulkan comes with every driver, ROCm and SYCL need more libraries
    GpuVendor.NVIDIA: (Backend.CUDA, Backend.VULKAN),
    GpuVendor.AMD: (Backend.VULKAN, Backend.ROCM),
    GpuVendor.INTEL: (Backend.VULKAN, Backend.SYCL),
    GpuVendor.APPLE: (Backend.METAL,),
}


@dataclass(frozen=True)
class Graphics:
    system: str  # "linux", "darwin" or "win32"
    vendors: tuple[GpuVendor, ...]
    has_nvidia_driver: bool = True  # False if NVIDIA's driver is not installed


def detect_graphics() -> Graphics:
    """Detect GPUs from /sys on Linux and from the drivers' files on Windows."""
    if sys.platform == "darwin":
        return Graphics(sys.platform, (GpuVendor.APPLE,) if platform.machine() == "arm64" else ())
    if sys.platform == "win32":
        folder = Path("C:/Windows/System32")
        vendors = {GpuVendor(vendor) for library, vendor in _WINDOWS_LIBRARIES.items() if (folder / library).exists()}
    else:
        vendors = linux_gpu_vendors(_PCI_DEVICES)
    has_driver = sys.platform == "win32" or _NVIDIA_DRIVER.exists()
    return Graphics(sys.platform, tuple(vendor for vendor in GpuVendor if vendor in vendors), has_driver)


def linux_gpu_vendors(devices: Path) -> set[GpuVendor]:
    vendors = set()
    for device in devices.glob("*"):
        with contextlib.suppress(OSError, ValueError):
            kind, vendor = (int((device / name).read_text("ascii"), 16) for name in ("class", "vendor"))
            if kind >> 16 == _DISPLAY_CLASS and vendor in _PCI_VENDORS:
                vendors.add(_PCI_VENDORS[vendor])
    return vendors


def suitable_backends(graphics: Graphics) -> tuple[Backend, ...]:
    return tuple(dict.fromkeys(backend for vendor in graphics.vendors for backend in _VENDOR_BACKENDS[vendor]))


def install_advice(graphics: Graphics) -> tuple[str, ...]:
    if not graphics.vendors:
        return (_("No supported GPU was found; the embedded engine is as fast as any other on this computer."),)
    best, *others = (backend.value for backend in suitable_backends(graphics))
    step, other_step = _("Run `kvchat engines get` to download and test an engine for {best}.", best=best), ""
    if others:
        other_step = _("For {other}, run `kvchat engines get {name}`.", name=others[0].lower(), other=others[0])
    return tuple(filter(None, (driver_advice(graphics), join_sentences(step, other_step))))


def driver_advice(graphics: Graphics) -> str:
    if GpuVendor.NVIDIA in graphics.vendors and not graphics.has_nvidia_driver:
        return _("Install the NVIDIA driver first; engines cannot use the GPU without it.")
    return ""


_TIMEOUT_S = 20.0
_MISSING_LIBRARY = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_MISSING_GLIBC = re.compile(r"version `(GLIBC(?:XX)?_[\d.]+)' not found")

# Packages of Debian and Ubuntu, by the prefix of the library they provide.
_PROVIDERS = {
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
_DRIVER_HINTS = {  # why a backend may not detect a GPU although no library is missing
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

RETRY_ADVICE = N_("Fix this problem and try again, or choose another backend; the download is kept.")


def undetected_gpu_error(program: Path, backend: Backend) -> KvchatError:
    """Return an error that says why the engine does not detect a GPU. Blocks while `ldd` runs."""
    reason = describe_missing_libraries(program) or _(_DRIVER_HINTS[backend])
    return KvchatError(_("The engine does not detect the GPU"), reason, _(RETRY_ADVICE))


def describe_missing_libraries(program: Path) -> str:
    """Return a text with the libraries that an engine lacks and the packages that provide them, or "".

    Blocks while `ldd` runs.
    """
    folder, missing = program.parent, set[str]()
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
            if too_old := _MISSING_GLIBC.search(text):
                lacking = too_old[1].replace("_", " ")
                return _("This build requires a newer version of Linux: {lacking}.", lacking=lacking)
            missing |= {name for name in _MISSING_LIBRARY.findall(text) if not (folder / name).exists()}
    if not missing:
        return ""
    reason = _("It is missing {lacking}.", lacking=join_list(sorted(missing)))
    providers = {_(text) for prefix, text in _PROVIDERS.items() if any(name.startswith(prefix) for name in missing)}
    if providers:
        reason = join_sentences(
            reason, _("These libraries are part of {packages}.", packages=_(" and ").join(sorted(providers)))
        )
    return reason
