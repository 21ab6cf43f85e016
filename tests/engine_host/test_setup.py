from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine_host.setup import EngineSetup
from kvchat.engine_host.trial import TrialStep
from kvchat.settings import Settings
from kvchat.system.paths import Paths, resolve_paths
from tests.engine_fixtures import FakeEngine


async def unused(path: str | None) -> None:
    """No engine is taken into use here."""
    raise AssertionError(path)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")})


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("engine_arguments", "--threads 2", ""),
        ("engine_arguments", "--port 1", "from this computer only"),
        ("engine_arguments", "--nope", "does not support the option --nope"),
        ("rpc_workers", "den:1", ""),
        ("rpc_workers", "den", '"den" is not a valid name and port'),
        ("engine_url", "http://127.0.0.1:8080", ""),
        ("engine_url", "127.0.0.1", "start with http://"),
    ],
)
async def test_validation_error(paths: Paths, fake_engine: FakeEngine, name: str, text: str, reason: str) -> None:
    setup = EngineSetup(paths, lambda: Settings(engine_path=str(fake_engine.path)), unused)
    said = await setup.validation_error(name, text)
    assert reason in said
    assert bool(said) is bool(reason)


async def test_trial_uses_the_available_model(
    paths: Paths, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvchat.engine_host.setup.installed_starter", lambda: None)
    settings = Settings(engine_path=str(fake_engine.path))
    heard: list[TrialStep] = []
    await EngineSetup(paths, lambda: settings, unused).test_engine(fake_engine.location, heard.append)
    assert fake_engine.launches() == []
    with_model = replace(settings, model_path=str(fake_engine.plan.model))
    trial = await EngineSetup(paths, lambda: with_model, unused).test_engine(fake_engine.location, heard.append)
    assert trial.works
    assert str(fake_engine.plan.model) in fake_engine.launches()[0]["arguments"]


async def test_server_key_is_in_no_settings_file(paths: Paths) -> None:
    setup = EngineSetup(paths, Settings, unused)
    assert await setup.save_key("s3cret") is not None
    kept = setup.key.load()
    assert kept[0] == "s3cret"
    assert "s3cret" not in json.dumps(vars(Settings()))
    assert await setup.save_key("") is None
    assert setup.key.load() is None
