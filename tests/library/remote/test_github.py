"""GitHub: builds for a GPU, by the names of llama.cpp's releases, and newer kvchat versions."""

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from kvchat.engine.discovery.graphics import Backend, GpuVendor, Graphics
from kvchat.library.remote import github as github_module
from kvchat.library.remote.github import LLAMA_CPP_REPOSITORY, GitHub, Release, approximate_size, backend_of, builds_for
from kvchat.library.remote.hub import HubError, HubPart, Unreachable
from tests.library.fake_hub import FakeHub

# The names of a real release, b11457.
NAMES = """
cudart-llama-b11457-bin-ubuntu-cuda-12.8-x64.tar.gz cudart-llama-b11457-bin-ubuntu-cuda-13.4-arm64.tar.gz
cudart-llama-b11457-bin-ubuntu-cuda-13.4-x64.tar.gz cudart-llama-bin-win-cuda-12.4-x64.zip
cudart-llama-bin-win-cuda-13.4-x64.zip llama-b11457-bin-macos-arm64.tar.gz llama-b11457-bin-macos-x64.tar.gz
llama-b11457-bin-ubuntu-arm64.tar.gz llama-b11457-bin-ubuntu-cuda-13.4-x64.tar.gz
llama-b11457-bin-ubuntu-cuda-12.8-x64.tar.gz llama-b11457-bin-ubuntu-cuda-13.4-arm64.tar.gz
llama-b11457-bin-ubuntu-openvino-2026.4-x64.tar.gz llama-b11457-bin-ubuntu-rocm-10.0-x64.tar.gz
llama-b11457-bin-ubuntu-s390x.tar.gz llama-b11457-bin-ubuntu-sycl-fp16-x64.tar.gz
llama-b11457-bin-ubuntu-sycl-fp32-x64.tar.gz llama-b11457-bin-ubuntu-vulkan-arm64.tar.gz
llama-b11457-bin-ubuntu-vulkan-x64.tar.gz llama-b11457-bin-ubuntu-x64.tar.gz llama-b11457-bin-win-cpu-x64.zip
llama-b11457-bin-win-cuda-12.4-x64.zip llama-b11457-bin-win-cuda-13.4-arm64.zip llama-b11457-bin-win-cuda-13.4-x64.zip
llama-b11457-bin-win-opencl-adreno-arm64.zip llama-b11457-bin-win-rocm-10.0-x64.zip llama-b11457-bin-win-sycl-x64.zip
llama-b11457-bin-win-vulkan-x64.zip llama-b11457-xcframework.zip
"""
NEWEST = Release("b11457", tuple(HubPart(name, 10, "0" * 64) for name in NAMES.split()))
OLD = Release("b10240", (HubPart("llama-b10240-bin-win-hip-radeon-x64.zip", 10, "0" * 64),))


def files(
    system: str, *vendors: GpuVendor, machine: str = "x86_64", releases: tuple[Release, ...] = (NEWEST,)
) -> list[str]:
    """Return the varying parts of the builds' file names."""
    builds = builds_for(Graphics(system, vendors), releases, machine)
    names = [" + ".join(part.path for part in order.file.parts) for order in builds]
    return [re.sub(r"llama-b11457-bin-|\.zip|\.tar\.gz", "", name) for name in names]


@pytest.mark.parametrize(
    ("system", "vendors", "machine", "expected"),
    [
        (
            *("linux", (GpuVendor.NVIDIA, GpuVendor.INTEL), "x86_64"),
            ["ubuntu-cuda-12.8-x64 + cudart-ubuntu-cuda-12.8-x64", "ubuntu-vulkan-x64", "ubuntu-sycl-fp16-x64"],
        ),
        ("linux", (GpuVendor.AMD,), "x86_64", ["ubuntu-vulkan-x64", "ubuntu-rocm-10.0-x64"]),
        (
            *("win32", (GpuVendor.NVIDIA,), "AMD64"),
            ["win-cuda-12.4-x64 + cudart-llama-bin-win-cuda-12.4-x64", "win-vulkan-x64"],
        ),
        ("darwin", (GpuVendor.APPLE,), "arm64", ["macos-arm64"]),
        ("linux", (GpuVendor.AMD,), "riscv64", []),
    ],
)
def test_best_build_for_the_gpu_comes_first(
    system: str, vendors: tuple[GpuVendor, ...], machine: str, expected: list[str]
) -> None:
    assert files(system, *vendors, machine=machine) == expected


def test_build_names_and_sizes() -> None:
    builds = builds_for(Graphics("linux", (GpuVendor.NVIDIA,)), (NEWEST,), "x86_64")
    assert [(order.file.name, order.file.size) for order in builds] == [
        ("llama.cpp-b11457-cuda-12.8", 20),
        ("llama.cpp-b11457-vulkan", 10),
    ]
    assert [backend_of(order.file.name) for order in builds] == [Backend.CUDA, Backend.VULKAN]
    names = ("llama.cpp-b1-metal", "llama.cpp-b1-hip-radeon", "mine")
    assert [backend_of(name) for name in names] == [Backend.METAL, Backend.ROCM, None]
    assert approximate_size(Backend.CUDA, "linux") == "about 770 MB"
    assert approximate_size(Backend.METAL, "linux") == ""
    newest = Release("b11457", tuple(file for file in NEWEST.files if "rocm" not in file.path))
    found = files("win32", GpuVendor.AMD, releases=(newest, OLD))
    assert found == ["win-vulkan-x64", "llama-b10240-bin-win-hip-radeon-x64"], "an older release fills gaps"


async def test_releases_of_github(github: FakeHub) -> None:
    github.releases = {"b2": {"one.zip": b"1"}, "v1": {"two.zip": b"22"}}
    github.claims["one.zip"] = "f" * 64
    assert await GitHub().releases(LLAMA_CPP_REPOSITORY) == (
        Release("b2", (HubPart("one.zip", 1, "f" * 64),), is_prerelease=True),
        Release("v1", (HubPart("two.zip", 2, "785f3ec7eb32f30b90cd0fcf3657d388b5ff4297f2f9716ff66e9b69c05ddd09"),)),
    )
    asked = github.requests[0]
    assert asked.path == "/repos/ggml-org/llama.cpp/releases?per_page=10"
    assert asked.headers["accept"] == "application/vnd.github+json"


async def test_errors_of_github(github: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(kind: type[HubError], message: str) -> None:
        with pytest.raises(kind) as caught:
            await GitHub().releases(LLAMA_CPP_REPOSITORY)
        assert message in str(caught.value)

    for github.status, kind, message in (
        (404, HubError, "File not found"),
        (429, HubError, "rate limit"),
        (502, Unreachable, "502"),
    ):
        await check(kind, message)
    github.status, github.makes_sense = 0, False
    await check(HubError, "response is invalid")
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:9")
    await check(Unreachable, "GitHub cannot be reached")


def released(github: FakeHub, *tags: str) -> None:
    github.releases = {tag: {"kvchat.deb": b"x"} for tag in tags}


@pytest.mark.parametrize(
    ("tags", "newest"),
    [
        (("v0.1.0",), ""),
        (("v0.10.0", "v0.9.1", "v0.1.0"), "v0.10.0"),
        (("nightly", "v1.0"), "v1.0"),
        (("v2.0", "v1.0"), "v1.0"),
    ],
)
async def test_newer_tag(github: FakeHub, tags: tuple[str, ...], newest: str) -> None:
    released(github, *tags)
    github.previews = r"v2\.0"
    assert await github_module.newer_tag() == newest


async def test_updates_are_checked_once_a_day(github: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released(github, "v9.0.0")
    monkeypatch.setattr(github_module, "_CHECK_INTERVAL_S", 0.001)
    notices: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    checks, is_enabled = asyncio.Semaphore(0), False

    def enabled() -> bool:
        checks.release()
        return is_enabled

    async def wait_for_checks(count: int) -> None:
        for _ in range(count):
            await checks.acquire()

    watching = asyncio.create_task(
        github_module.watch_updates(tmp_path, enabled, lambda *notice: notices.put_nowait(notice))
    )
    await wait_for_checks(3)
    assert not github.requests, "it is not enabled"
    is_enabled = True
    assert await notices.get() == ("9.0.0", f"{github.url}/kvchat/kvchat/releases/tag/v9.0.0")
    await wait_for_checks(5)
    assert [request.path.partition("?")[0] for request in github.requests] == ["/repos/kvchat/kvchat/releases"]
    assert "cookie" not in github.requests[0].headers
    yesterday = time.time() - github_module.UPDATE_INTERVAL_S
    os.utime(tmp_path / "asked-for-updates", (yesterday, yesterday))
    github.status = 503
    while len(github.requests) < 2:
        await wait_for_checks(1)
    await wait_for_checks(5)
    assert notices.empty(), "a failed check is silent"
    assert len(github.requests) == 2
    watching.cancel()
