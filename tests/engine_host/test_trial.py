from pathlib import Path

import pytest

from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine_host.trial import EngineTrial, TrialStep, try_engine
from tests.engine.waiting import is_alive
from tests.engine_fixtures import FakeEngine
from tests.systems import needs_signals


async def tried(fake: FakeEngine, *, model: bool = True) -> EngineTrial:
    steps: list[TrialStep] = []
    trial = await try_engine(fake.location, fake.plan.model if model else None, steps.append)
    assert tuple(steps) == trial.steps
    assert not [launch for launch in fake.launches() if is_alive(launch["pid"])]
    return trial


async def test_good_engine_passes(fake_engine: FakeEngine) -> None:
    assert (await tried(fake_engine, model=False)).works
    assert fake_engine.launches() == [], "without a model it is only asked who it is"
    trial = await tried(fake_engine)
    assert trial.works
    assert [step.name for step in trial.steps] == ["Version", "Devices", "Model", "Reply", "Chat memory"]
    assert "--slot-save-path" in fake_engine.launches()[0]["arguments"]


@pytest.mark.parametrize(
    ("switches", "title"),
    [
        ({"FAKE_VERSION": 6000}, "too old"),
        ({"FAKE_EXIT_AT_START": "1:error loading model: unknown model architecture: 'x'"}, "cannot be loaded"),
        ({"FAKE_EXIT_AT_START": "-11:"}, "crashed"),
        ({"FAKE_DIE_DURING": "stream"}, "crashed"),
        pytest.param({"FAKE_DIE_DURING": "restore", "FAKE_DIE_HOW": "kill"}, "killed", marks=needs_signals),
        ({"FAKE_EMPTY_SAVE": 1}, "Chat memory may not work"),
        ({"FAKE_REFUSE_RESTORE": 1}, "Chat memory does not work"),
        ({"FAKE_HOLLOW_RESTORE": 1}, "Chat memory does not work"),
    ],
)
async def test_problems_are_reported(fake_engine: FakeEngine, switches: dict[str, object], title: str) -> None:
    fake_engine.set(**switches)
    trial = await tried(fake_engine)
    assert not trial.works
    assert title in trial.steps[-1].name


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\necho usage: something else\n", "\x7fELF"])
async def test_other_programs_are_reported(tmp_path: Path, script: str) -> None:
    program = tmp_path / "llama-server"
    program.write_text(script)
    program.chmod(0o755)
    trial = await try_engine(EngineLocation(program), None)
    assert not trial.works
    assert trial.steps[0].error.advice


@pytest.mark.engine
async def test_real_engine_passes(real_llama_server: EngineLocation, smollm2: Path) -> None:
    trial = await try_engine(real_llama_server, smollm2)
    assert trial.works, trial.steps[-1]
    assert len(trial.steps) == 5
