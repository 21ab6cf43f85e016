import errno
import json
import math
from pathlib import Path

import pytest

from kvchat import settings as settings_module
from kvchat.library.gguf.kv_cache import KV_TYPES
from kvchat.settings import (
    KV_TYPE_NAMES,
    Settings,
    load_settings,
    save_settings,
)
from kvchat.system.paths import resolve_paths
from tests.systems import has_mode, not_on_windows


def test_settings_round_trip(tmp_path):
    file = tmp_path / "config" / "settings.json"
    paths = {"model_path": str(Path("/models/晚.gguf")), "model_folders": ("/a", "/b")}
    edges = {"context_size": 256, "quota_bytes": 100_000_000, "max_age_days": 1, "max_tokens": 1, "seed": -1}
    for settings in (Settings(theme="dark", **paths), Settings(kv_type="iq4_nl", temperature=0, **edges)):
        save_settings(file, settings)
        assert load_settings(file) == settings
    assert not list(file.parent.glob("*.new"))


def test_model_path_is_written_like_those_of_found_models():
    assert Settings(model_path="/models//a.gguf").model_path == str(Path("/models/a.gguf"))


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
        ("context_size", 255),
        ("context_size", 2**24 + 1),
        ("quota_bytes", 99_999_999),
        ("free_floor_bytes", -1),
        ("max_age_days", 0),
        ("max_age_days", 1.5),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("seed", 2**32),
        ("model_path", "/models/\0.gguf"),
        ("model_folders", "/models"),
        ("model_folders", ["/models", 3]),
        pytest.param("model_path", "/models/\ud83d.gguf", marks=not_on_windows("a valid name there")),
        ("engine_url", "http://\udcff"),
        ("quota_bytes", 10**400),
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


def test_kvchat_home(tmp_path):
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")})
    paths.ensure()
    for folder in (paths.config, paths.data, paths.cache, paths.state):
        assert folder.is_relative_to(tmp_path / "home")
        assert has_mode(folder, 0o700)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_settings_file_saved_by_a_text_editor(tmp_path, encoding):
    file, settings = tmp_path / "settings.json", Settings(theme="dark", model_path="/Jürgens Ordner/晚.gguf")
    save_settings(file, settings)
    file.write_bytes(file.read_text("utf-8").replace("\n", "\r\n").encode(encoding))
    assert load_settings(file) == settings


def test_settings_file_that_another_program_has_locked_is_read_later(tmp_path, monkeypatch):
    file, read, attempts = tmp_path / "settings.json", settings_module.read_json, []
    save_settings(file, Settings(theme="dark"))

    def read_as_windows(*arguments):
        attempts.append(1)
        if len(attempts) == 1:
            error = PermissionError(errno.EACCES, "in use")
            error.winerror = None  # as `os.open` raises it on Windows
            raise error
        return read(*arguments)

    monkeypatch.setattr(settings_module, "read_json", read_as_windows)
    assert load_settings(file) == Settings(theme="dark")
    assert len(attempts) == 2


@pytest.mark.parametrize(
    "content",
    [
        b'{"theme": "dark"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"\xff\xfe",
        '{"model_path": "C:/Jürgen/a.gguf"}'.encode("cp1252"),
        b" " * 5_000_000,
        b"",
    ],
    ids=["cut", "lists", "objects", "digits", "bytes", "code page", "large", "empty"],
)
def test_unreadable_settings_file_is_renamed(tmp_path, content):
    file = tmp_path / "settings.json"
    file.write_bytes(content)
    assert load_settings(file) == Settings()
    assert (tmp_path / "settings.json.bad").read_bytes() == content
    assert not file.exists()
