"""Which of llama.cpp's released builds suit a graphics card, by their files' names. Pure.

The names: https://github.com/ggml-org/llama.cpp/blob/master/.github/workflows/release.yml; as of b11457 they are
`llama-b11457-bin-ubuntu-cuda-12.8-x64.tar.gz`, `…-ubuntu-vulkan-x64.tar.gz`, `…-win-cuda-12.4-x64.zip`,
`…-win-rocm-10.0-x64.zip` (`…-win-hip-radeon-x64.zip` before), `…-win-sycl-x64.zip`, `…-macos-arm64.tar.gz`. CUDA's own
libraries are in a file beside: `cudart-llama-b11457-bin-ubuntu-cuda-12.8-x64.tar.gz`, on Windows without the build; for
Linux since https://github.com/ggml-org/llama.cpp/pull/28186. Every build is a preview on GitHub; what is not one, as
v0.7.0, has no builds, only the name of one (https://github.com/ggml-org/llama.cpp/pull/27485).

The wheels of xllamacpp's indexes (https://xorbitsai.github.io/xllamacpp/whl/cu128 and others) are no source. They hold
the same llama.cpp, and GitHub knows their hashes, but one for CUDA on Linux leaves CUDA's libraries out and depends on
no package that has them (https://github.com/xorbitsai/xllamacpp/blob/main/setup.py and pyproject.toml; its workflow
build-wheel-cuda-hip.yaml repairs those for ROCm and Vulkan alone): they run where CUDA is installed, these here where
NVIDIA's driver is. Nor can they take the user's own arguments or share the work.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvchat.engine.finding.graphics import Backend, Graphics, suiting
from kvchat.library.remote.github import Release
from kvchat.library.remote.hub import HubFile, HubPart
from kvchat.library.remote.hub_download import Order
from kvchat.words.language import _
from kvchat.words.wording import size as size_in_words

REPOSITORY = "ggml-org/llama.cpp"
_NAME = re.compile(r"llama-(b\d+)-bin-(ubuntu|win|macos)-(?:(.+)-)?(x64|arm64)\.(?:zip|tar\.gz)")
_SYSTEMS = {"linux": "ubuntu", "win32": "win", "darwin": "macos"}
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_BACKENDS = {
    "cuda": Backend.CUDA,
    "rocm": Backend.ROCM,
    "hip": Backend.ROCM,
    "vulkan": Backend.VULKAN,
    "sycl": Backend.SYCL,
    "metal": Backend.METAL,  # the one for macOS has no word for it
}
# About how large they are, in bytes, with the libraries beside them (b11457): said before anything is asked.
_ABOUT = {
    ("linux", Backend.CUDA): 770_000_000,
    ("linux", Backend.ROCM): 245_000_000,
    ("linux", Backend.VULKAN): 32_000_000,
    ("linux", Backend.SYCL): 52_000_000,
    ("win32", Backend.CUDA): 640_000_000,
    ("win32", Backend.ROCM): 320_000_000,
    ("win32", Backend.VULKAN): 34_000_000,
    ("win32", Backend.SYCL): 120_000_000,
    ("darwin", Backend.METAL): 11_000_000,
}


@dataclass(frozen=True)
class EngineBuild:
    """A build that suits a card of this computer."""

    backend: Backend
    order: Order

    @property
    def name(self) -> str:
        """What its folder is called: "llama.cpp-b11457-cuda-12.8"."""
        return self.order.file.name

    @property
    def size(self) -> int:
        """Bytes to download."""
        return self.order.file.size


def about(backend: Backend, system: str = sys.platform) -> str:
    """How much there would be to download, in words: "about 770 MB"; empty where that is not known."""
    count = _ABOUT.get((system, backend))
    return _("about {count}", count=size_in_words(count)) if count else ""


def builds_for(
    graphics: Graphics, releases: Sequence[Release], machine: str = platform.machine()
) -> tuple[EngineBuild, ...]:
    """The newest build of each kind that suits these cards, the best kind first. `releases`: the newest first."""
    found = []
    for backend in suiting(graphics):
        builds = (build for release in releases for build in _builds(release, backend, graphics.system, machine))
        if build := next(builds, None):
            found.append(build)
    return tuple(found)


def backend_of(name: str) -> Backend | None:
    """What an engine kvchat fetched computes with, by its folder's name; None for a name of another kind."""
    return _kind("-".join(name.split("-")[2:]))


def _kind(flavour: str) -> Backend | None:
    return _BACKENDS.get(flavour.partition("-")[0])


def _builds(release: Release, backend: Backend, system: str, machine: str) -> Iterable[EngineBuild]:
    """Those of one release, the one that runs with most drivers first: the oldest version of what it computes with."""
    wanted, found = (_SYSTEMS.get(system), _MACHINES.get(machine.lower())), []
    for file in release.files:
        match = _NAME.fullmatch(file.path)
        if match is None or (match[2], match[4]) != wanted:
            continue
        flavour = match[3] or ("metal" if system == "darwin" else "")
        if _kind(flavour) is backend:
            name = f"llama.cpp-{match[1]}-{flavour}"
            parts = (file, *_libraries(file.path, match[1], release))
            order = Order(REPOSITORY, release.tag, HubFile(name, "", parts))
            found.append((_version(flavour), EngineBuild(backend, order)))
    return [build for _, build in sorted(found, key=lambda one: one[0])]


def _libraries(path: str, tag: str, release: Release) -> list[HubPart]:
    """CUDA's libraries for a build, if they come in a file of their own."""
    names = {f"cudart-{path}", f"cudart-{path.replace(f'{tag}-', '', 1)}"}
    return [file for file in release.files if file.path in names][:1]


def _version(flavour: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(number) for number in re.findall(r"\d+", flavour)), flavour
