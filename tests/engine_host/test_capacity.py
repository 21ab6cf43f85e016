"""Whether models fit is judged by which earlier loads of them ran out of memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from kvchat.engine.api.errors import EngineFailed
from kvchat.engine.discovery.engines import EngineLocation, EngineNotFound
from kvchat.engine_host import choice as choosing
from kvchat.engine_host.choice import Capacity, ModelJudge, memory_for, query_capacity
from kvchat.library.gguf.facts import model_identity
from kvchat.library.memory.demand import Circumstances, LoadLimits, MemoryFacts
from kvchat.library.memory.verdict import Verdict
from kvchat.settings import Settings
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import llama_8b

GB = 1_000_000_000
HERE = Capacity(MemoryFacts(16 * GB), "version: 1")


def test_failed_load_changes_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, limits = llama_8b(tmp_path), LoadLimits(tmp_path / "limits.json")
    judge = ModelJudge(Settings(), HERE, limits)
    assert judge(facts).verdict is Verdict.FITS
    limits.learn(Circumstances("another", facts.size + 1, "version: 1", "CPU"), 4096, ran_out=True)
    with monkeypatch.context() as patch:  # weights are not read for a model that no load can have been of
        patch.setattr(choosing, "model_identity", lambda path: pytest.fail(f"{path} was read"))
        assert judge(facts).verdict is Verdict.FITS
    limits.learn(Circumstances("another", facts.size, "version: 1", "CPU"), 4096, ran_out=True)
    assert judge(facts).verdict is Verdict.FITS
    limits.learn(Circumstances(model_identity(facts.path), facts.size, "version: 1", "CPU"), 4096, ran_out=True)
    assert judge(facts).verdict is Verdict.TIGHT
    assert ModelJudge(Settings(), Capacity(HERE.memory, "version: 2"), limits)(facts).verdict is Verdict.FITS


def test_missing_engine_leaves_the_computers_memory(tmp_path: Path, fake_engine: FakeEngine) -> None:
    assert query_capacity(Settings(engine_path=str(fake_engine.path))).build
    nobody = query_capacity(Settings(engine_path=str(tmp_path / "gone")))
    assert (nobody.build, nobody.memory.devices) == ("", ())
    assert nobody.memory.available > 0


def test_silent_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_devices(_: EngineLocation, workers: Sequence[str]) -> NoReturn:
        raise EngineNotFound("The engine cannot run", f"/src/ggml-rpc.cpp:547: Failed to connect to {workers[0]}\n")

    monkeypatch.setattr(choosing, "list_devices", no_devices)
    with pytest.raises(EngineFailed, match=r"no response from the RPC server den:50052\."):
        memory_for(EngineLocation(tmp_path), ["den:50052"])
