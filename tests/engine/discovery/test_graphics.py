import os
import sys
from pathlib import Path

import pytest

from kvchat.engine.discovery.graphics import (
    Backend,
    GpuVendor,
    Graphics,
    describe_missing_libraries,
    detect_graphics,
    install_advice,
    linux_gpu_vendors,
    undetected_gpu_error,
)


def device(folder: Path, name: str, kind: str, vendor: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "class").write_text(f"{kind}\n")
    (folder / name / "vendor").write_text(f"{vendor}\n")


def test_only_display_controllers_are_found(tmp_path: Path) -> None:
    device(tmp_path, "0000:00:02.0", "0x030000", "0x8086")  # an Intel GPU
    device(tmp_path, "0000:01:00.0", "0x030200", "0x10de")  # an NVIDIA card without a screen
    device(tmp_path, "0000:01:00.1", "0x040300", "0x10de")  # the sound on it
    device(tmp_path, "0000:02:00.0", "0x020000", "0x1002")  # no display
    device(tmp_path, "0000:03:00.0", "0x030000", "0x1234")  # QEMU's
    device(tmp_path, "0000:04:00.0", "nonsense", "0x1002")
    (tmp_path / "0000:05:00.0").mkdir()
    assert linux_gpu_vendors(tmp_path) == {GpuVendor.NVIDIA, GpuVendor.INTEL}
    assert linux_gpu_vendors(tmp_path / "missing") == set()
    assert install_advice(detect_graphics())  # this computer's


@pytest.mark.parametrize(
    ("graphics", "expected", "absent"),
    [
        (Graphics("linux", (GpuVendor.NVIDIA,)), "test an engine for CUDA", "driver first"),
        (Graphics("linux", (GpuVendor.NVIDIA,), has_nvidia_driver=False), "driver first", "Metal"),
        (Graphics("linux", (GpuVendor.AMD,), has_nvidia_driver=False), "test an engine for Vulkan", "NVIDIA"),
        (Graphics("linux", (GpuVendor.INTEL,)), "`kvchat engines get sycl`", "CUDA"),
        (Graphics("win32", (GpuVendor.AMD,)), "`kvchat engines get rocm`", "CUDA"),
        (Graphics("darwin", (GpuVendor.APPLE,)), "for Metal", "Vulkan"),
        (Graphics("linux", ()), "as fast as any other", "Vulkan"),
    ],
)
def test_install_advice(graphics: Graphics, expected: str, absent: str) -> None:
    advice = " ".join(install_advice(graphics))
    assert expected in advice
    assert absent not in advice


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ldd is Linux's")

NOT_FOUND = "\tlinux-vdso.so.1 (0x00007ffd)\n\t{0} => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n"


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    for name in ("llama-server", "libggml-cuda.so", "libggml-cpu-haswell.so"):
        (folder / name).write_bytes(b"")
    return folder


def ldd_prints(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, of: str = "libggml-cuda.so") -> None:
    program = folder / "bin" / "ldd"
    program.parent.mkdir()
    (program.parent / "text").write_text(text, "utf-8")
    program.write_text(
        f'#!/bin/sh\ncase "$1" in *{of}) while read -r l; do echo "$l"; done < "${{0%/*}}/text";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("libcuda.so.1", "It is missing libcuda.so.1. These libraries are part of the NVIDIA driver"),
        ("libamdhip64.so.7", "AMD ROCm"),
        ("libsomething.so.3", "It is missing libsomething.so.3."),
    ],
)
def test_missing_library_and_provider(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, message: str
) -> None:
    ldd_prints(tmp_path, monkeypatch, NOT_FOUND.format(library))
    assert message in undetected_gpu_error(engine / "llama-server", Backend.CUDA).detail
    (engine / library).write_bytes(b"")
    assert describe_missing_libraries(engine / "llama-server") == "", "a library beside it is not lacking"


def test_system_too_old(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "./llama-server: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./llama-server)\n"
    ldd_prints(tmp_path, monkeypatch, text, of="llama-server")
    assert "newer version of Linux: GLIBC 2.38" in undetected_gpu_error(engine / "llama-server", Backend.CUDA).detail


def test_driver_hint(tmp_path: Path) -> None:
    for backend in Backend:
        error = undetected_gpu_error(tmp_path / "llama-server", backend)
        assert error.title == "The engine does not detect the GPU"
        assert error.detail.endswith(".")
