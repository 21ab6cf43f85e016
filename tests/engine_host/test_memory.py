"""The memory of a loaded model is shown; a load that runs out of memory is reported and retried with less."""

import asyncio
import os
import shlex
import stat
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvchat.chat.events import Notice
from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.errors import FailureKind
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine_host.choice import EngineChoice
from kvchat.engine_host.engines import ManagedEngine
from kvchat.runtime import Runtime
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import LLAMA, write_gguf
from tests.running import ask, running

MIB = 1024 * 1024
LONG = LLAMA | {"context_length": 65_536}


def notices(runtime: Runtime) -> list[Notice]:
    shown: list[Notice] = []
    runtime.events.subscribe(lambda event: shown.append(event) if isinstance(event, Notice) else None)
    return shown


def arguments(fake: FakeEngine) -> list[dict[str, str]]:
    """Return each launch's options with their values."""
    launched = [launch["arguments"] for launch in fake.launches()]
    return [dict(zip(options, [*options[1:], ""], strict=True)) for options in launched]


async def test_context_is_halved_until_it_fits(tmp_path: Path, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_MOST_CONTEXT=20_000, FAKE_KV_MIB_PER_1K=1)
    model = str(write_gguf(tmp_path / "long.gguf", dict(LONG)))
    async with running(tmp_path, fake_engine, model_path=model) as runtime:
        shown, statuses = notices(runtime), list[EngineStatus]()
        runtime.events.subscribe(lambda event: statuses.append(event.status) if hasattr(event, "status") else None)
        await ask(runtime, (await runtime.chat.new_conversation()).id, "Hello")
        assert fake_engine.context_sizes() == [65_536, 32_768, 16_384]
        assert runtime.engine.context_size == 16_384
        assert runtime.engine.context_reason.startswith("16,384 tokens: not enough memory for 65,536")
        (notice,) = shown
        assert notice.title == "The model ran out of memory while loading"
        assert "65,536" in notice.detail
        assert "will try a larger context again on" in notice.detail
        retried = [status.failure for status in statuses if status.state is EngineState.STARTING and status.failure]
        assert [failure.kind for failure in retried] == [FailureKind.OUT_OF_MEMORY] * 2
        assert "32,768 tokens" in retried[0].advice
        psutil.Process(runtime.engine.engine_pid).kill()
        await ask(runtime, (await runtime.chat.new_conversation()).id, "Hello once more")  # restarted, same choice
    async with running(tmp_path, fake_engine, model_path=model) as runtime:
        shown = notices(runtime)
        await ask(runtime, (await runtime.chat.new_conversation()).id, "Hello again")
        assert fake_engine.context_sizes()[3:] == [16_384, 16_384]
        assert shown == []


async def test_gpu_placement_is_shown(runtime: Runtime, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_MOST_LAYERS=3, FAKE_KV_MIB_PER_1K=1)
    await runtime.engine.ready()
    (values,) = arguments(fake_engine)
    assert (values["--fit"], values["--fit-target"]) == ("on", "128"), "half of the margin of 512 MiB"
    assert runtime.engine.context_reason == (
        "4,096 tokens: the full context length of this model. 3 of 5 layers fit on the GPU."
    )
    gpu, _computer = runtime.engine.memory_uses
    assert (gpu.device, gpu.measured, gpu.kv) == ("FAKE0", True, 4 * MIB)


async def test_model_leaves_a_full_gpu(runtime: Runtime, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_GPU_FULL=1)
    await ask(runtime, (await runtime.chat.new_conversation()).id, "Hello")
    first, second = arguments(fake_engine)
    assert "--n-gpu-layers" not in first
    assert (second["--n-gpu-layers"], second["--fit"]) == ("0", "off")
    assert runtime.engine.context_reason.startswith(
        "4,096 tokens: not enough memory on the GPU. No part of the model fits on the GPU."
    )


async def test_model_leaves_a_gpu_whose_driver_crashes(runtime: Runtime, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_GPU_FULL="crash", FAKE_KV_MIB_PER_1K=1)
    await ask(runtime, (await runtime.chat.new_conversation()).id, "Hello")
    *crashed, last = arguments(fake_engine)
    assert len(crashed) == 2
    assert all("--n-gpu-layers" not in start for start in crashed)
    assert (last["--n-gpu-layers"], last["--fit"]) == ("0", "off")
    assert runtime.engine.context_reason.endswith("No part of the model fits on the GPU.")


async def test_failure_at_the_smallest_context(runtime: Runtime, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_MOST_CONTEXT=1000)
    shown = notices(runtime)
    with pytest.raises(Exception, match="ran out of memory"):
        await runtime.engine.ready()
    assert fake_engine.context_sizes()[-1] == 2048
    assert runtime.engine.status.state is EngineState.FAILED
    assert shown == []


async def test_no_start_after_close(runtime: Runtime, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    claims, goes_on, chosen = threading.Event(), threading.Event(), ManagedEngine.choose

    def choose(*given: Any, **more: Any) -> EngineChoice:
        claims.set()
        goes_on.wait()
        return chosen(*given, **more)

    monkeypatch.setattr(ManagedEngine, "choose", choose)
    await runtime.start_engine()
    await until(claims.is_set)
    closing = asyncio.ensure_future(runtime.engine.close())
    await asyncio.sleep(0)
    goes_on.set()
    await closing
    await runtime._background.wait_until_idle()
    assert runtime.engine.status.state is EngineState.STOPPED
    assert not fake_engine.launches()


@pytest.mark.engine
@pytest.mark.parametrize("engine", ["llama-server", "embedded"])
async def test_estimate_is_close_to_real_engines(
    tmp_path: Path, fake_engine: FakeEngine, real_llama_server: EngineLocation, smollm2: Path, engine: str
) -> None:
    path = "embedded" if engine == "embedded" else str(real_llama_server.path)
    async with running(tmp_path, fake_engine, model_path=str(smollm2), engine_path=path) as runtime:
        await runtime.engine.ready()
        (estimated,), (measured,) = runtime.engine.choice.context.memory_uses, runtime.engine.memory_uses
        assert measured.measured
        assert measured.kv == estimated.kv == 8192 * 23_040
        assert measured.needed == pytest.approx(estimated.needed, rel=0.03)


@pytest.mark.engine
@pytest.mark.skipif(os.name != "posix", reason="ulimit is a shell's")
async def test_real_engine_under_a_memory_limit(
    tmp_path: Path, fake_engine: FakeEngine, real_llama_server: EngineLocation, smollm2: Path
) -> None:
    """65,536 tokens of this model take 1.5 GB, more than the limited address space."""
    limited = tmp_path / "llama-server"
    limited.write_text(f'#!/bin/sh\nulimit -v 1000000\nexec {shlex.quote(str(real_llama_server.path))} "$@"\n')
    limited.chmod(limited.stat().st_mode | stat.S_IXUSR)
    changes = {"model_path": str(smollm2), "engine_path": str(limited), "context_size": 65_536, "max_tokens": 4}
    async with running(tmp_path, fake_engine, **changes) as runtime:
        shown = notices(runtime)
        reply = await ask(runtime, (await runtime.chat.new_conversation()).id, "Say xylophone")
        assert reply.content
        assert "xylophone" not in "\n".join(runtime.engine.log_lines)  # the log has memory use, no conversations
        tokens = runtime.engine.choice.context.tokens
        assert tokens in (8192, 16_384)  # other uses of address space differ between machines
        assert runtime.engine.context_reason.startswith(f"{tokens:,} tokens: not enough memory for 65,536 tokens.")
        assert [notice.title for notice in shown] == ["The model ran out of memory while loading"]
        (bar,) = runtime.engine.memory_uses
        assert bar.measured
        assert bar.kv == tokens * 23_040
