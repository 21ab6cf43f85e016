"""The self-test with both real engines, for every kind of memory."""

from pathlib import Path

import pytest

from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import LaunchPlan
from kvchat.engine.process.supervisor import EngineSupervisor, RestartPolicy
from kvchat.kvstore import disk
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.session import self_test as module
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import RestoreFinding, Strategy
from kvchat.session.self_test import self_test
from kvchat.text.reasons import Reason, ReasonCode
from tests.e2e.home import engine_path
from tests.models import tiny_model

pytestmark = pytest.mark.engine

SERVER, EMBEDDED = "llama-server", "embedded"
FINGERPRINT = Fingerprint("tiny", "f16", "f16", "auto", 1, "")


async def run_self_test(
    folder: Path, architecture: str, engine: str, promised: Strategy, *extra: str, window: int | None = None
) -> RestoreFinding:
    """Return its finding; check that it leaves nothing behind."""
    path = engine_path(engine)
    location = EngineLocation(Path(path)) if path else EngineLocation()
    supervisor = EngineSupervisor(policy=RestartPolicy(max_deaths=1))
    plan = LaunchPlan(tiny_model(architecture, window), 2048, folder, extra_arguments=extra)
    await supervisor.start(location, iter([plan]))
    try:
        client = await supervisor.ready()
        assert isinstance(client, LlamaServerClient)
        promise = RestoreFinding(promised, proved=False)
        host = ReadyEngine(client, 1, folder, FINGERPRINT, 2048, 1000.0, promise, window or 0)
        finding = await self_test(host)
        assert not disk.list_folder(folder)
        assert (await client.save_slot("after")).tokens == 0, "the slot is empty again"
        (folder / "after").unlink()
        return finding
    finally:
        await supervisor.close()


@pytest.mark.parametrize(
    ("architecture", "engine", "promised", "window", "extra"),
    [
        ("llama", SERVER, Strategy.PLAIN, None, ()),
        ("deepseek2", EMBEDDED, Strategy.PLAIN, None, ()),
        ("qwen35", EMBEDDED, Strategy.SETTLE, None, ()),
        ("mamba", SERVER, Strategy.SETTLE, None, ()),
        ("gemma3", SERVER, Strategy.COMPLETE, 32, ()),
        ("gemma3", SERVER, Strategy.FULL_WINDOW, 32, ("--swa-full",)),
        ("gpt-oss", EMBEDDED, Strategy.COMPLETE, 32, ()),
        ("smallthinker", EMBEDDED, Strategy.COMPLETE, 1024, ()),
    ],
)
async def test_the_expected_strategy_is_confirmed(
    tmp_path: Path, architecture: str, engine: str, promised: Strategy, window: int | None, extra: tuple[str, ...]
) -> None:
    finding = await run_self_test(tmp_path, architecture, engine, promised, *extra, window=window)
    assert finding == RestoreFinding(promised, proved=True)


@pytest.mark.parametrize(
    ("architecture", "wrong", "window", "right"),
    [
        ("qwen35", Strategy.PLAIN, None, Strategy.SETTLE),
        ("gemma3", Strategy.FULL_WINDOW, 32, Strategy.COMPLETE),
        ("gemma3", Strategy.SETTLE, 32, Strategy.NONE),
    ],
)
async def test_a_wrong_expectation_is_corrected(
    tmp_path: Path, architecture: str, wrong: Strategy, window: int | None, right: Strategy
) -> None:
    finding = await run_self_test(tmp_path, architecture, SERVER, wrong, window=window)
    assert (finding.strategy, finding.proved) == (right, True)
    assert finding.reason.code in (ReasonCode.USED_LESS, ReasonCode.NO_PARTS, ReasonCode.NEEDS_SWA_FULL)


async def test_an_engine_that_cannot_restore_chats_shorter_than_the_window_is_detected(tmp_path: Path) -> None:
    """llama-server b11434 saves no checkpoints, and such a chat has no token older than the window."""
    finding = await run_self_test(tmp_path, "gemma3", SERVER, Strategy.COMPLETE, window=1024)
    assert (finding.strategy, finding.proved) == (Strategy.LONG, True)
    used = Reason(ReasonCode.USED_LESS, {"accepted": 96, "used": 0})
    assert finding.reason == Reason(ReasonCode.NEEDS_SWA_FULL, {"reason": used})

    finding = await run_self_test(tmp_path, "llama4", SERVER, Strategy.COMPLETE, window=8192)
    assert (finding.strategy, finding.proved) == (Strategy.NONE, True), "no chat is longer than its window"


async def test_a_window_that_takes_too_long_to_test_stays_unproved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PREFILL_MS", 0.0)
    finding = await run_self_test(tmp_path, "gemma3", EMBEDDED, Strategy.COMPLETE, window=128)
    assert (finding.strategy, finding.proved) == (Strategy.COMPLETE, False)
    assert finding.reason == Reason(ReasonCode.NOT_TRIED, {"reason": Reason(ReasonCode.TAKES_LONG)})
