from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kvchat.library.memory import KV_TYPES
from kvchat.paths import NoFolder, resolve_paths
from kvchat.settings import KV_TYPE_NAMES, Settings, load_settings, save_settings


def test_settings_come_back_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "config" / "settings.json"
    settings = Settings(model_path="/models/晚.gguf", quota_bytes=5, theme="dark", temperature=0.0)
    save_settings(file, settings)
    assert load_settings(file) == settings
    assert not list(file.parent.glob("*.new"))


def test_what_is_missing_unknown_or_of_the_wrong_type_is_the_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"theme": 3, "quota_bytes": True, "kv_type": "q8_0", "from_the_future": 1}))
    assert load_settings(file) == Settings(kv_type="q8_0")
    file.write_text("[]")
    assert load_settings(file) == Settings()
    assert load_settings(tmp_path / "none.json") == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_type", "q9_9"),
        ("theme", "neon"),
        ("context_size", 0),
        ("context_size", -4096),
        ("quota_bytes", 0),
        ("free_floor_bytes", -1),
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 1e9),
        ("temperature", math.nan),
        ("seed", 2**32),
        ("model_path", "/models/\0.gguf"),
    ],
)
def test_a_value_that_makes_no_sense_is_the_default_and_the_others_stay(
    tmp_path: Path, name: str, value: object
) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"engine_path": "/bin/llama-server", name: value}))
    assert load_settings(file) == Settings(engine_path="/bin/llama-server")


def test_values_at_the_edge_are_kept(tmp_path: Path) -> None:
    settings = Settings(
        context_size=1, kv_type="iq4_nl", quota_bytes=1, free_floor_bytes=0, temperature=0, max_tokens=1, seed=-1
    )
    save_settings(tmp_path / "settings.json", settings)
    assert load_settings(tmp_path / "settings.json") == settings


def test_the_kv_types_are_those_whose_size_is_known() -> None:
    assert set(KV_TYPES) == KV_TYPE_NAMES


def test_a_broken_file_is_set_aside_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"theme": "dark"')
    assert load_settings(file) == Settings()
    assert file.with_suffix(".json.bad").read_text() == '{"theme": "dark"'


def test_kvchat_home_moves_everything(tmp_path: Path) -> None:
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")})
    paths.ensure()
    for folder in (paths.config, paths.data, paths.cache, paths.state):
        assert folder.is_relative_to(tmp_path / "home")
        assert folder.stat().st_mode & 0o777 == 0o700


def test_folders_that_cannot_be_made_are_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "file")})
    with pytest.raises(NoFolder) as refused:
        paths.ensure()
    assert str(paths.config) in refused.value.detail
    assert "KVCHAT_HOME" in refused.value.advice
