"""Vectors of texts, computed by real engines with a tiny model."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvchat.engine.discovery.engines import EMBEDDED, EngineLocation
from kvchat.engine_host import embedding
from kvchat.engine_host.embedding import MAX_CHARS, MAX_MODEL_BYTES, EmbeddingEngine
from kvchat.errors import KvchatError
from kvchat.library.model_library import ModelLibrary
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.embedding_models import tiny_embedding_model
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import LLAMA, write_gguf


def library(folder: Path) -> ModelLibrary:
    paths = resolve_paths({"KVCHAT_HOME": str(folder / "home")})
    return ModelLibrary(paths, lambda: [str(folder)])


@pytest.fixture(params=["real_llama_server", "embedded_engine"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EmbeddingEngine]:
    location: EngineLocation = request.getfixturevalue(request.param)
    tiny_embedding_model(tmp_path)
    settings = Settings(engine_path=str(location.path) if location.path else EMBEDDED)
    engine = EmbeddingEngine(lambda: settings, library(tmp_path).embedding_models)
    yield engine
    await engine.close()


@pytest.mark.engine
async def test_texts_of_any_length_get_vectors_and_the_idle_engine_stops(
    engine: EmbeddingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "IDLE_S", 0.0)
    assert await engine.identity()
    heron, same, stork, long = await engine.embed(["heron", "heron", "stork", "heron " * MAX_CHARS])
    assert heron == pytest.approx(same)
    assert heron != pytest.approx(stork, rel=0.01)
    assert len(heron) == len(stork) == len(long) == 32
    assert await engine.embed(["青鹭住在松树上。" * MAX_CHARS], is_query=True)
    stopping = engine._stopping
    assert stopping is not None
    await asyncio.wait({stopping})
    assert engine._supervisor is None
    assert (await engine.embed(["heron"]))[0] == pytest.approx(heron), "it starts again"


async def test_smallest_embedding_model_is_used(tmp_path: Path) -> None:
    engine = EmbeddingEngine(Settings, library(tmp_path).embedding_models)
    assert await engine.identity() == ""
    write_gguf(tmp_path / "chat.gguf")
    large = write_gguf(tmp_path / "large.gguf", architecture="qwen3", fields=LLAMA | {"pooling_type": 3})
    with large.open("r+b") as file:
        file.truncate(MAX_MODEL_BYTES + 1)  # a hole
    assert await engine.identity() == ""
    pools = LLAMA | {"pooling_type": 1}
    write_gguf(tmp_path / "middle.gguf", pools, architecture="bert", weights=2048)
    small = write_gguf(tmp_path / "small.gguf", pools, architecture="bert")
    write_gguf(tmp_path / "no vectors.gguf", architecture="bert", weights=512)
    write_gguf(tmp_path / "reranker.gguf", LLAMA | {"pooling_type": 4}, architecture="bert", weights=512)
    assert await engine.identity()
    assert engine._model is not None
    assert engine._model.path == small


async def test_model_is_chosen_again_when_its_file_has_changed(tmp_path: Path) -> None:
    engine, pools = EmbeddingEngine(Settings, library(tmp_path).embedding_models), LLAMA | {"pooling_type": 1}
    small = write_gguf(tmp_path / "small.gguf", pools, architecture="bert")
    first = await engine.identity()
    write_gguf(small, pools, architecture="bert", weights=512)
    second = await engine.identity()
    assert second not in ("", first), "vectors of both files cannot be compared"
    small.unlink()
    assert await engine.identity() == ""
    with pytest.raises(KvchatError):  # as after an id that was asked for before
        await engine.embed(["heron"])
    write_gguf(tmp_path / "other.gguf", pools, architecture="bert")
    assert await engine.identity()


async def test_closing_waits_for_a_stop_that_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping:
        begun, may_end, is_closed = asyncio.Event(), asyncio.Event(), False

        async def close(self) -> None:
            self.begun.set()
            await self.may_end.wait()
            self.is_closed = True

    monkeypatch.setattr(embedding, "IDLE_S", 0.0)
    engine, supervisor = EmbeddingEngine(Settings, library(tmp_path).embedding_models), Stopping()
    monkeypatch.setattr(engine, "_supervisor", supervisor)
    engine._stopping = asyncio.create_task(engine._stop_when_idle())
    await supervisor.begun.wait()
    closing = asyncio.create_task(engine.close())
    await asyncio.wait({engine._stopping})
    supervisor.may_end.set()
    await closing
    assert supervisor.is_closed


async def test_damaged_model_does_not_block_a_larger_one(fake_engine: FakeEngine, tmp_path: Path) -> None:
    fake_engine.set(FAKE_EXIT_AT_START="1:llama_model_load: error loading model: missing tensor")
    for name, weights in (("small", 512), ("large", 1024)):
        write_gguf(tmp_path / f"{name}.gguf", LLAMA | {"pooling_type": 1}, architecture="bert", weights=weights)
    settings = Settings(engine_path=str(fake_engine.path))
    engine = EmbeddingEngine(lambda: settings, library(tmp_path).embedding_models)
    for name in ("small", "large"):
        assert await engine.identity()
        assert engine._model is not None
        assert engine._model.path.stem == name
        with pytest.raises(KvchatError):
            await engine.embed(["heron"])
    assert not await engine.identity()
    await engine.close()
