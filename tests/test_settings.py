import json
import math

import pytest

from kvchat.errors import KvchatError
from kvchat.library.gguf.kv_cache import KV_TYPES
from kvchat.settings import (
    GB,
    KV_TYPE_NAMES,
    Settings,
    SettingsNotSaved,
    load_settings,
    save_settings,
    validation_error,
)
from kvchat.system.paths import resolve_paths


def test_settings_round_trip(tmp_path):
    file = tmp_path / "config" / "settings.json"
    paths = {"model_path": "/models/晚.gguf", "model_folders": ("/a", "/b")}
    edges = {"context_size": 256, "quota_bytes": 100_000_000, "max_age_days": 1, "max_tokens": 1, "seed": -1}
    for settings in (Settings(theme="dark", **paths), Settings(kv_type="iq4_nl", temperature=0, **edges)):
        save_settings(file, settings)
        assert load_settings(file) == settings
    assert not list(file.parent.glob("*.new"))


def test_missing_unknown_or_mistyped_settings_are_defaults(tmp_path):
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
        ("context_size", 255),
        ("context_size", 2**24 + 1),
        ("quota_bytes", 99_999_999),
        ("free_floor_bytes", -1),
        ("max_age_days", 0),
        ("max_age_days", 3651),
        ("max_age_days", 1.5),
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 1e9),
        ("temperature", math.nan),
        ("seed", 2**32),
        ("model_path", "/models/\0.gguf"),
        ("model_folders", "/models"),
        ("model_folders", ["/models", 3]),
        ("model_folders", [["/models"]]),
        ("model_path", "/models/\ud83d.gguf"),
        ("engine_url", "http://\udcff"),
        ("quota_bytes", 10**400),
        ("max_tokens", 10**30),
        ("temperature", 10**400),
        ("zoom", 1e308),
        ("seed", {"a": []}),
    ],
)
def test_invalid_value_is_replaced_by_the_default(tmp_path, name, value):
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"engine_path": "/bin/llama-server", name: value}))
    assert load_settings(file) == Settings(engine_path="/bin/llama-server")


def test_kv_types_have_known_sizes():
    assert set(KV_TYPES) == KV_TYPE_NAMES


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("context_size", 100, "This must be at least 256 tokens."),
        ("quota_bytes", 5, "This must be at least 100 MB."),
        ("max_age_days", 4000, "This must be at most 3,650 days."),
        ("max_tokens", 2.5, "This must be a whole number."),
        ("temperature", 7, "This must be a number from 0 to 5."),
        ("quota_bytes", 5 * GB, ""),
    ],
)
def test_validation_error(name, value, reason):
    assert validation_error(name, value) == reason


def test_settings_not_saved(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SettingsNotSaved) as refused:
        save_settings(tmp_path / "file" / "settings.json", Settings())
    assert "settings.json" in refused.value.detail


def test_kvchat_home(tmp_path):
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")})
    paths.ensure()
    for folder in (paths.config, paths.data, paths.cache, paths.state):
        assert folder.is_relative_to(tmp_path / "home")
        assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("in the way")
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "file")})
    with pytest.raises(KvchatError) as refused:
        paths.ensure()
    assert str(paths.config) in refused.value.detail
    assert "KVCHAT_HOME" in refused.value.advice


@pytest.mark.parametrize(
    "content",
    [
        b'{"theme": "dark"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"\xff\xfe",
        b" " * 5_000_000,
        b"",
    ],
    ids=["cut", "lists", "objects", "digits", "bytes", "large", "empty"],
)
def test_unreadable_settings_file_is_renamed(tmp_path, content):
    file = tmp_path / "settings.json"
    file.write_bytes(content)
    assert load_settings(file) == Settings()
    assert (tmp_path / "settings.json.bad").read_bytes() == content
    assert not file.exists()
