from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.engine.finding.graphics import (
    Backend,
    Graphics,
    Maker,
    find_graphics,
    install_advice,
    linux_makers,
    suiting,
)


def device(folder: Path, name: str, kind: str, vendor: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "class").write_text(f"{kind}\n")
    (folder / name / "vendor").write_text(f"{vendor}\n")


def test_display_controllers_and_nothing_else(tmp_path: Path) -> None:
    device(tmp_path, "0000:00:02.0", "0x030000", "0x8086")  # an Intel GPU
    device(tmp_path, "0000:01:00.0", "0x030200", "0x10de")  # an NVIDIA card without a screen
    device(tmp_path, "0000:01:00.1", "0x040300", "0x10de")  # the sound on it
    device(tmp_path, "0000:02:00.0", "0x020000", "0x1002")  # no display
    device(tmp_path, "0000:03:00.0", "0x030000", "0x1234")  # QEMU's
    device(tmp_path, "0000:04:00.0", "nonsense", "0x1002")
    (tmp_path / "0000:05:00.0").mkdir()
    assert linux_makers(tmp_path) == (Maker.NVIDIA, Maker.INTEL)
    assert linux_makers(tmp_path / "missing") == ()


def test_this_computer_can_be_looked_at() -> None:
    assert install_advice(find_graphics())


@pytest.mark.parametrize(
    ("graphics", "told", "not_told"),
    [
        (Graphics("linux", (Maker.NVIDIA,)), "fetches one for CUDA", "driver first"),
        (Graphics("linux", (Maker.NVIDIA,)), "`kvchat engines get vulkan`", "driver first"),
        (Graphics("linux", (Maker.NVIDIA,), nvidia_driver=False), "driver first", "Metal"),
        (Graphics("linux", (Maker.AMD,), nvidia_driver=False), "fetches one for Vulkan", "NVIDIA"),
        (Graphics("linux", (Maker.INTEL,)), "`kvchat engines get sycl`", "CUDA"),
        (Graphics("win32", (Maker.AMD,)), "`kvchat engines get rocm`", "CUDA"),
        (Graphics("darwin", (Maker.APPLE,)), "for Metal", "Vulkan"),
        (Graphics("linux", ()), "as well as any", "Vulkan"),
    ],
)
def test_the_advice_fits_the_system_and_the_card(graphics: Graphics, told: str, not_told: str) -> None:
    advice = " ".join(install_advice(graphics))
    assert told in advice
    assert not_told not in advice


def test_what_an_engine_can_compute_with() -> None:
    both = Graphics("linux", (Maker.NVIDIA, Maker.AMD))
    assert suiting(both) == (Backend.CUDA, Backend.VULKAN, Backend.ROCM)
    assert suiting(Graphics("linux", ())) == ()
