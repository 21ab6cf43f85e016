from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvchat.__main__ import main
from tests.engine_fixtures import FakeEngine


@pytest.fixture
def home(tmp_path: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kvchat whose settings name the fake engine, and a small model."""
    folder = tmp_path / "home"
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "settings.json").write_text(
        json.dumps({"engine_path": str(fake_engine.path), "model_path": str(fake_engine.plan.model)})
    )
    monkeypatch.setenv("KVCHAT_HOME", str(folder))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("kvchat.engine_host.setup.installed_starter", lambda: None)
    return folder


def test_the_list(home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines"]) == 0
    shown = capsys.readouterr().out
    assert f"* {fake_engine.path}" in shown
    assert "Fake GPU" in shown
    assert main(["engines", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    first = told["engines"][0]
    assert (first["path"], first["chosen"], first["backends"]) == (str(fake_engine.path), True, ["FAKE"])
    assert told["advice"]


def test_an_engine_that_cannot_be_used_says_why(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_engine.set(FAKE_VERSION=6000)
    assert main(["engines"]) == 1
    assert "build 6000" in capsys.readouterr().out


def test_the_trial(home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "test"]) == 0
    assert "Chats are remembered here" in capsys.readouterr().out
    fake_engine.set(FAKE_EXIT_AT_START="1:error loading model")
    assert main(["engines", "test", str(fake_engine.path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["works"] is False
    assert told["steps"][-1]["failed"] is True
    assert main(["engines", "test", "/nowhere"]) == 1
    assert "/nowhere" in capsys.readouterr().err
