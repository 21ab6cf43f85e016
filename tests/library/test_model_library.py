"""Model search, Hub and downloads combined."""

import asyncio
import functools
from pathlib import Path

import pytest

from kvchat.library.gguf.facts import GgufFacts
from kvchat.library.memory.demand import (
    COMPUTER,
    DeviceMemory,
    MemoryFacts,
    MemoryUse,
    ModelDemand,
    with_freed_memory,
)
from kvchat.library.memory.verdict import Judgement, Verdict, judge
from kvchat.library.model_files import model_folders
from kvchat.library.model_library import FoundModel, ModelLibrary
from kvchat.library.remote.hub import HubFile, HubPart, HubRepository
from kvchat.system.paths import Paths, resolve_paths
from tests.library.gguf_files import write_gguf

PLENTY = MemoryFacts(64_000_000_000)


def fits(facts: GgufFacts) -> Judgement:
    return judge(ModelDemand(facts), PLENTY)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Return the folders of a user without models of other programs."""
    nothing = functools.partial(model_folders, environment={}, home=tmp_path / "home", platform="linux")
    monkeypatch.setattr("kvchat.library.model_library.model_folders", nothing)
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "kvchat")})
    paths.models.mkdir(parents=True)
    return paths


async def test_find_judges_models_and_finds_the_one_in_use_anywhere(paths: Paths, tmp_path: Path) -> None:
    kept, broken, folder = write_gguf(paths.models / "kept.gguf"), tmp_path / "mine" / "broken.gguf", tmp_path / "other"
    for parent in (folder, broken.parent):
        parent.mkdir()
    broken.write_bytes(b"GGUF")
    for name in ("in-use-00001-of-00002.gguf", "in-use-00002-of-00002.gguf", "another.gguf"):
        write_gguf(folder / name)
    for in_use, names in (
        (folder / "in-use-00001-of-00002.gguf", ["kept", "broken", "in-use"]),
        (folder / "gone.gguf", ["kept", "broken"]),
        (kept, ["kept", "broken"]),
    ):
        found: list[FoundModel] = []
        await ModelLibrary(paths, lambda: [str(broken.parent)]).find(fits, found.append, str(in_use))
        assert [model.name for model in found] == names
        assert found[0].judgement is not None
        assert found[0].judgement.verdict is Verdict.FITS
        assert found[1].judgement is None


async def test_find_can_be_cancelled(paths: Paths) -> None:
    for number in range(300):
        write_gguf(paths.models / f"{number}.gguf", weights=8)
    found: list[FoundModel] = []
    search: asyncio.Task[object]

    def on_found(model: FoundModel) -> None:
        found.append(model)
        search.cancel()

    search = asyncio.ensure_future(ModelLibrary(paths, tuple).find(fits, on_found))
    with pytest.raises(asyncio.CancelledError):
        await search
    assert len(found) < 300


def test_is_downloaded_and_repository_of(paths: Paths) -> None:
    file = HubFile("x", "", (HubPart("x.gguf", 3, "0"),))
    repository = HubRepository("org/x-GGUF", "1", False, (file,))
    library = ModelLibrary(paths, tuple)
    assert not library.is_downloaded(repository, file)
    (paths.models / "org" / "x-GGUF").mkdir(parents=True)
    (paths.models / "org" / "x-GGUF" / "x.gguf").write_bytes(b"abc")
    assert library.is_downloaded(repository, file)
    assert library.repository_of(paths.models / "org" / "x-GGUF" / "BF16" / "x.gguf") == "org/x-GGUF"
    assert library.repository_of(paths.models / "starter.gguf") is None
    assert library.repository_of(Path("/elsewhere/x.gguf")) is None


def test_memory_freed_by_unloading() -> None:
    memory = MemoryFacts(10, devices=(DeviceMemory("CUDA0", 5), DeviceMemory("CUDA1", 6)))
    bars = (
        MemoryUse("CUDA0", free=20, margin=1, weights=8, kv=4, compute=2, other=1),
        MemoryUse(COMPUTER, free=20, margin=1, weights=7, kv=0, compute=3, other=2),
    )
    after = with_freed_memory(memory, bars)
    assert [device.free for device in after.devices] == [20, 6]
    assert after.available == 15, "weights in the computer's memory count as free already"
