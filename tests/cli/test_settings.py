"""`kvchat settings` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvchat.__main__ import main
from kvchat.settings import SETTING_NAMES, Settings, load_settings
from kvchat.system.paths import resolve_paths
from tests.cli.owner import running_owner


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "")
    return tmp_path / "home"


def stored() -> Settings:
    return load_settings(resolve_paths().settings_file)


def test_all_are_listed(capsys):
    assert main(["settings"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in SETTING_NAMES)
    assert main(["settings", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["zoom"] == 100


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["zoom", "150"], 150),
        (["theme", "dark"], "dark"),
        (["show_numbers", "false"], False),
        (["quota_bytes", "20GB"], 20_000_000_000),
        (["free_floor_bytes", "500MB"], 500_000_000),
        (["temperature", "0.7"], 0.7),
        (["temperature", "0"], 0),
        (["context_size", "8192"], 8192),
        (["model_path", "/models/a b.gguf"], "/models/a b.gguf"),
        (["model_path", "7"], "7"),
        (["engine_path", "embedded"], "embedded"),
        (["model_folders", "/a", "/b"], ("/a", "/b")),
        (["engine_url", "http://127.0.0.1:8080"], "http://127.0.0.1:8080"),
        (["api_port", "9000"], 9000),
    ],
)
def test_one_is_changed_and_reset(words, value, capsys):
    name = words[0]
    assert main(["settings", "set", *words]) == 0
    assert getattr(stored(), name) == value
    capsys.readouterr()
    assert main(["settings", "get", name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)[name]
    assert told == (list(value) if isinstance(value, tuple) else value)
    assert main(["settings", "reset", name]) == 0
    assert stored() == Settings()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["zoom", "7000"], "at most 250 %"),
        (["zoom", "large"], "whole number"),
        (["theme", "pink"], "must be one of"),
        (["show_numbers", "maybe"], "true or false"),
        (["quota_bytes", "lots"], "is not a valid size"),
        (["quota_bytes", "1MB"], "at least 100 MB"),
        (["temperature", "9"], "from 0 to 5"),
        (["engine_url", "nowhere"], "start with http://"),
        (["zoom", "1", "2"], "2 values were given"),
    ],
)
def test_what_makes_no_sense_is_refused(words, why, capsys):
    assert main(["settings", "set", *words]) == 1
    assert why in capsys.readouterr().err
    assert stored() == Settings()


def test_an_unknown_name_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["settings", "set", "colour", "blue"])
    assert ended.value.code == 2
    assert "zoom" in capsys.readouterr().err


def test_a_kvchat_that_runs_takes_a_change_over_at_once(capsys):
    """It would write its own settings over them."""
    paths = resolve_paths().ensure()
    with running_owner(paths) as owner:
        assert main(["settings", "set", "zoom", "150"]) == 0
        assert owner.settings.zoom == 150
        assert main(["models", "use", "x"]) == 1
    assert "No model" in capsys.readouterr().err
    assert stored().zoom == 150
