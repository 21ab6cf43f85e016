from __future__ import annotations

import json
from pathlib import Path

from kvchat.paths import resolve_paths
from kvchat.settings import Settings, load_settings, save_settings


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
