"""Fixtures for commands that run in this process (`paths`, `run`, `run_json`) or in one of their own (`home`)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.__main__ import main
from kvchat.system.paths import Paths, resolve_paths
from tests.e2e.home import Home
from tests.engine_fixtures import FakeEngine


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "home"))
    return resolve_paths()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a command and returns what it printed, as `out` and `err`."""

    def run(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*arguments]) == code
        return capsys.readouterr()

    return run


@pytest.fixture
def run_json(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, code=0: json.loads(run(*arguments, "--json", code=code).out)


@pytest.fixture
def engine_settings(fake_engine: FakeEngine, smollm2: Path) -> dict[str, object]:
    settings = {"model_path": str(smollm2), "engine_path": str(fake_engine.path)}
    return settings | {"context_size": 8192, "free_floor_bytes": 0}


@pytest.fixture
def home(tmp_path: Path, engine_settings: dict[str, object]) -> Home:
    home = Home(tmp_path / "home")
    home.write_settings(**engine_settings)
    return home
