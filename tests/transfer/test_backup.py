"""Backups: contents, restore after interruptions, and hostile files."""

import errno
import json
import os
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from blake3 import blake3

from kvchat.errors import KvchatError
from kvchat.settings import Settings, load_settings, save_settings
from kvchat.system import migrations
from kvchat.system.paths import Paths, resolve_paths
from kvchat.transfer import backup
from kvchat.transfer.backup import check_backup, engine_settings_of, finish_restore, make_backup, stage_restore
from tests.systems import has_mode
from tests.transfer.library import everything, made_conversation, open_library


@pytest.fixture
def paths(tmp_path) -> Paths:
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")})
    paths.ensure()
    paths.settings_file.write_text('{"theme": "dark"}', "utf-8")
    (paths.config / "huggingface-token").write_text("hf_secret", "utf-8")
    paths.models.mkdir()
    (paths.models / "big.gguf").write_bytes(b"GGUF" * 1000)
    engine = paths.engines / "b1" / "llama-server"
    engine.parent.mkdir(parents=True)
    engine.write_bytes(b"ELF")
    engine.chmod(0o755)
    return paths


def contents(folder: Path) -> list[object]:
    with closing(open_library(folder)) as database:
        return everything(database)


def add_conversation(paths: Paths) -> None:
    with closing(open_library(paths.data)) as database:
        made_conversation(database)


@pytest.fixture
def backup_file(paths, tmp_path) -> tuple[Path, list[object]]:
    """A backup and the contents it should restore; the data has changed since."""
    add_conversation(paths)
    before = contents(paths.data)
    target = tmp_path / "kvchat.zip"
    made = make_backup(paths, target)
    assert (made.conversations, made.size) == (1, target.stat().st_size)
    add_conversation(paths)
    paths.settings_file.write_text("{}", "utf-8")
    return target, before


def test_backup_has_no_models_engines_or_secrets(backup_file, paths, tmp_path):
    with pytest.raises(KvchatError, match="could not be created"):
        make_backup(paths, tmp_path / "no folder" / "x.zip")
    assert has_mode(backup_file[0], 0o600)
    with zipfile.ZipFile(backup_file[0]) as archive:
        assert sorted(archive.namelist()) == ["config/settings.json", "data/conversations.db", "manifest.json"]
    facts = check_backup(backup_file[0])
    assert (facts.conversations, facts.size) == (1, backup_file[0].stat().st_size)
    assert facts.size < facts.unpacked / 10


def test_backup_is_a_snapshot(paths, tmp_path, monkeypatch):
    monkeypatch.setattr(migrations, "_PAGES_AT_ONCE", 1)
    add_conversation(paths)
    database, steps = open_library(paths.data), []

    def progress(done: int, total: int) -> None:
        steps.append(total)
        if len(steps) <= 10:
            made_conversation(database)

    assert make_backup(paths, tmp_path / "b.zip", progress).conversations == 1
    assert steps.count(0) > 10  # one for each page
    assert len(database.conversations()) == 11
    database.close()


@pytest.mark.parametrize("swaps", range(3))
def test_restore_keeps_the_replaced_data_and_can_be_interrupted(backup_file, paths, monkeypatch, swaps):
    source, before = backup_file
    newer = contents(paths.data)
    stage_restore(paths, source)
    assert contents(paths.data) == newer  # nothing has changed yet
    swap, done = backup._swap, []

    def until_killed(*places: Path) -> None:
        if len(done) == swaps:
            raise KeyboardInterrupt
        swap(*places)
        done.append(places)

    monkeypatch.setattr(backup, "_swap", until_killed)
    if swaps < 2:
        with pytest.raises(KeyboardInterrupt):
            finish_restore(paths)
        monkeypatch.setattr(backup, "_swap", swap)
    replaced = finish_restore(paths)
    assert replaced is not None
    assert contents(paths.data) == before
    assert load_settings(paths.settings_file).theme == "dark"
    assert (paths.models / "big.gguf").exists()
    assert contents(replaced / "data") == newer
    assert finish_restore(paths) is None


def rewritten(source: Path, target: Path, change: str) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if change == "flip" and name == "data/conversations.db":
                content = content[:100] + bytes([content[100] ^ 1]) + content[101:]
            if change == "lack" and name == "config/settings.json":
                continue
            if change == "newer":
                content = content.replace(b'"version": 1', b'"version": 2')
            if change == "no list" and name == "manifest.json":
                continue
            if change == "huge" and name == "manifest.json":
                manifest = json.loads(content)
                manifest["files"]["data/conversations.db"]["size"] = 10**15
                content = json.dumps(manifest).encode()
            new.writestr(name, content)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("flip", "data/conversations.db is damaged"),
        ("lack", "config/settings.json is missing"),
        ("newer", "it was created by a newer version"),
        ("no list", "it is not a kvchat backup"),
        ("huge", "it needs 1000000 GB of disk space"),
    ],
)
def test_unusable_backup_changes_nothing(backup_file, paths, tmp_path, change, problem):
    newer = contents(paths.data)
    bad = tmp_path / "bad.zip"
    rewritten(backup_file[0], bad, change)
    with pytest.raises(KvchatError) as refusal:
        stage_restore(paths, bad)
    assert problem in refusal.value.detail
    assert finish_restore(paths) is None
    assert contents(paths.data) == newer


def with_files(source: Path, target: Path, extra: dict[str, bytes]) -> None:
    """Add files to a backup."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        manifest = json.loads(old.read("manifest.json"))
        for name in manifest["files"]:
            new.writestr(name, old.read(name))
        for name, content in extra.items():
            new.writestr(name, content)
            manifest["files"][name] = {"size": len(content), "blake3": blake3(content).hexdigest()}
        new.writestr("manifest.json", json.dumps(manifest))


def test_only_chats_and_settings_are_restored(backup_file, paths, tmp_path):
    """An engine in it would be run, and a name could point outside kvchat's folders."""
    hostile = tmp_path / "hostile.zip"
    engine = "data/engines/b1/llama-server"
    others = ("data/app.lock", "data/conversations.db-wal", "data/restore/ready", "config/huggingface-token")
    extra = (engine, "data/engines/b1/libggml.so", "data/models/big.gguf", "data/../../x.txt", "/x.txt", *others)
    with_files(backup_file[0], hostile, dict.fromkeys(extra, b"theirs"))
    (paths.data / "app.lock").write_text("ours", "utf-8")
    assert check_backup(hostile).unpacked == check_backup(backup_file[0]).unpacked
    stage_restore(paths, hostile)
    assert finish_restore(paths) is not None
    home = paths.data.parent
    assert (home / engine).read_bytes() == b"ELF"
    assert has_mode(home / engine, 0o755)
    theirs = [file for file in tmp_path.rglob("*") if file.is_file() and file.read_bytes() == b"theirs"]
    assert theirs == []
    assert contents(paths.data) == backup_file[1]


@pytest.mark.parametrize("confirmed", [False, True])
def test_backup_does_not_change_engine_or_access_settings(paths, tmp_path, confirmed):
    answers = {"engine_path": "/tmp/theirs", "engine_arguments": "--log-file /tmp/x"}
    answers |= {"engine_url": "http://192.0.2.7:8080", "rpc_workers": "192.0.2.7:50052"}
    theirs = Settings(**answers, theme="light", api_server=True, api_port=1234, api_origins="*")
    save_settings(paths.settings_file, theirs)
    add_conversation(paths)
    make_backup(paths, tmp_path / "b.zip")
    own = Settings(engine_path="/opt/own", engine_arguments="-fa on", theme="dark")
    save_settings(paths.settings_file, own)
    facts = stage_restore(paths, tmp_path / "b.zip", with_engine=confirmed)
    assert facts.engine == tuple(answers.values())
    finish_restore(paths)
    after = load_settings(paths.settings_file)
    assert after.theme == "light"
    expected = theirs if confirmed else own
    assert engine_settings_of(after) == engine_settings_of(expected)
    assert (after.api_server, after.api_port, after.api_origins) == (own.api_server, own.api_port, own.api_origins)


LISTED = '{"format": "kvchat-backup", "version": 1, "made_at": "2026-11-22", "files": {"data/conversations.db": %s}%s}'
ENTRY = '{"size": 1, "blake3": ""}'


@pytest.mark.parametrize(
    "content",
    [
        *(b"[" * 100_000, b" " * 20_000_000, b'{"format": "kvchat-backup"}', b"\xff", (LISTED % (ENTRY, "")).encode()),
        *((LISTED % (ENTRY, f', "conversations": {count}')).encode() for count in ("null", "Infinity")),
        (LISTED % ("7", ', "conversations": 1')).encode(),
    ],
)
def test_invalid_manifest_is_refused(paths, tmp_path, content):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", content)
    with pytest.raises(KvchatError) as refusal:
        check_backup(tmp_path / "x.zip")
    assert "it is not a kvchat backup" in refusal.value.detail


def test_settings_on_another_file_system_are_restored(backup_file, paths, monkeypatch):
    """~/.config may be on another file system than ~/.local/share; a rename works only within one."""
    real = Path.replace

    def replace(self, target):
        if self.is_relative_to(paths.config) != Path(target).is_relative_to(paths.config):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(self))
        return real(self, target)

    stage_restore(paths, backup_file[0])
    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(Path, "rename", replace)
    replaced = finish_restore(paths)
    assert load_settings(paths.settings_file).theme == "dark"
    assert (replaced / "config" / "settings.json").read_text("utf-8") == "{}"
    assert contents(paths.data) == backup_file[1]


def test_backup_grants_no_tool_calls(paths, tmp_path):
    add_conversation(paths)
    with closing(open_library(paths.data)) as database:
        database.write("INSERT INTO tool_grants VALUES ('digest', 'git', 'git_add', '', 1)", ())
        database.write("UPDATE conversations SET options = ?", ('{"permission": "all", "tools": ["git/*"]}',))
    save_settings(paths.settings_file, Settings(tool_folders=("/",), web_search_url="http://elsewhere"))
    target = tmp_path / "kvchat.zip"
    make_backup(paths, target)
    save_settings(paths.settings_file, Settings(tool_folders=("/home/me",)))
    stage_restore(paths, target)
    finish_restore(paths)
    with closing(open_library(paths.data)) as database:
        assert database.rows("SELECT * FROM tool_grants") == []
        assert [row[0] for row in database.rows("SELECT options FROM conversations")] == ['{"tools": ["git/*"]}']
    settings = load_settings(paths.settings_file)
    assert (settings.tool_folders, settings.web_search_url) == (("/home/me",), "")
