"""`kvchat settings` in this process."""

import pytest

from kvchat.__main__ import main
from kvchat.settings import SETTING_NAMES, Settings, load_settings
from kvchat.system.paths import Paths
from tests.cli.owner import running_owner


@pytest.fixture(autouse=True)
def no_programs(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


def test_all_are_listed(run_json, run):
    shown = run("settings").out
    assert all(name in shown for name in SETTING_NAMES)
    assert run_json("settings")["zoom"] == 100


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["zoom", "150"], 150),
        (["theme", "dark"], "dark"),
        (["show_numbers", "false"], False),
        (["quota_bytes", "20GB"], 20_000_000_000),
        (["free_floor_bytes", "500MB"], 500_000_000),
        (["temperature", "0.7"], 0.7),
        (["temperature", "0"], 0),
        (["model_path", "7"], "7"),
        (["model_folders", "/a", "/b"], ("/a", "/b")),
        (["engine_url", "http://127.0.0.1:8080"], "http://127.0.0.1:8080"),
    ],
)
def test_one_is_changed_and_reset(arguments, value, paths, run_json):
    name = arguments[0]
    expected = list(value) if isinstance(value, tuple) else value
    assert run_json("settings", "set", *arguments) == {name: expected}
    assert getattr(load_settings(paths.settings_file), name) == value
    assert run_json("settings", "get", name) == {name: expected}
    assert main(["settings", "reset", name]) == 0
    assert load_settings(paths.settings_file) == Settings()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["zoom", "7000"], "at most 250%"),
        (["zoom", "2.5"], "whole number"),
        (["max_age_days", "4000"], "at most 3,650 days"),
        (["theme", "pink"], "must be one of"),
        (["show_numbers", "maybe"], "true or false"),
        (["quota_bytes", "lots"], "is not a valid size"),
        (["quota_bytes", "1MB"], "at least 100 MB"),
        (["temperature", "9"], "from 0 to 5"),
        (["engine_url", "nowhere"], "start with http://"),
        (["zoom", "1", "2"], "2 values were given"),
    ],
)
def test_an_invalid_value_is_refused(arguments, reason, paths, run):
    assert reason in run("settings", "set", *arguments, code=1).err
    assert load_settings(paths.settings_file) == Settings()


def test_an_unknown_name_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["settings", "set", "colour", "blue"])
    assert ended.value.code == 2
    assert "zoom" in capsys.readouterr().err


def test_a_running_kvchat_applies_a_change(paths, run):
    """Otherwise it would overwrite the change with its own settings."""
    with running_owner(paths.ensure()) as owner:
        assert main(["settings", "set", "zoom", "150"]) == 0
        assert owner.settings.zoom == 150
        assert "No model" in run("models", "use", "x", code=1).err
    assert load_settings(paths.settings_file).zoom == 150
