"""`kvchat export`, `import`, `backup` and `restore` as a user types them."""

from __future__ import annotations

import os
import stat
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.__main__ import main
from kvchat.system.paths import resolve_paths
from tests.cli.owner import running_owner
from tests.transfer.library import everything, made_conversation, open_library


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "home"))
    paths = resolve_paths()
    paths.ensure()
    return paths


def test_out_and_in_again(home, tmp_path, capsys):
    database = open_library(home.data)
    made = made_conversation(database)
    before = everything(database)
    assert main(["export", str(tmp_path / "all.json")]) == 0
    assert "exported 1 chat to" in capsys.readouterr().out
    database.delete(made.id)
    assert main(["import", str(tmp_path / "all.json")]) == 0
    assert capsys.readouterr().out == "imported 1 chat; 0 already existed\n"
    assert everything(database) == before
    (tmp_path / "x.json").write_text("{", "utf-8")
    assert main(["import", str(tmp_path / "x.json")]) == 1
    assert "x.json: line 1, column 2: invalid JSON" in capsys.readouterr().err


def test_one_conversation_in_a_form_of_its_own(home, tmp_path, capsys):
    made = made_conversation(open_library(home.data))
    assert main(["export", "--chat", made.id, "--form", "html", str(tmp_path / "x")]) == 0
    assert (tmp_path / "x").read_text("utf-8").startswith("<!doctype html>")
    assert main(["export", "--chat", made.id[:8], "--form", "html", str(tmp_path / "y")]) == 0
    assert (tmp_path / "y").read_text("utf-8") == (tmp_path / "x").read_text("utf-8")
    assert main(["export", "--chat", made.id[:8], "--with-memory", str(tmp_path / "z.kvchat")]) == 1
    assert "This chat has no saved memory" in capsys.readouterr().err, "the chat was found"
    assert main(["export", "--chat", "nobody", str(tmp_path / "x")]) == 1
    assert "No chat has the id" in capsys.readouterr().err


def test_a_backup_comes_back(home, tmp_path, capsys):
    database = open_library(home.data)
    made = made_conversation(database)
    before = everything(database)
    assert main(["backup", str(tmp_path / "b.zip")]) == 0
    database.delete(made.id)
    database.close()
    assert main(["restore", str(tmp_path / "b.zip")]) == 0
    assert "restored 1 chat; the replaced files are in" in capsys.readouterr().out
    assert everything(open_library(home.data)) == before


@pytest.mark.parametrize("command", ["export", "backup"])
def test_what_is_pointed_at_is_never_replaced_by_something_else(home, tmp_path, capsys, command):
    made_conversation(open_library(home.data))
    behind, link, pipe = tmp_path / "behind", tmp_path / "link", tmp_path / "pipe"
    behind.write_text("old", "utf-8")
    link.symlink_to(behind)
    assert main([command, str(link)]) == 0
    assert link.is_symlink()
    assert behind.read_bytes()[:2] in (b"PK", b'{"')
    os.mkfifo(pipe)
    device = tmp_path / "device"
    if os.geteuid():
        device.symlink_to("/dev/full")
    else:  # root could replace that one: it gets one to spare
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    for target, words in ((device, "a device"), (pipe, "a pipe"), (tmp_path, "a folder")):
        before = target.stat().st_mode
        assert main([command, str(target)]) == 1
        assert f"{target}: It is {words}, not a file." in capsys.readouterr().err
        assert target.stat().st_mode == before


@pytest.mark.parametrize(
    "command", [("export",), ("export", "--form", "html"), ("export", "--form", "md"), ("backup",)]
)
def test_a_dash_is_standard_output(home, tmp_path, capfdbinary, command):
    with closing(open_library(home.data)) as database:
        made_conversation(database)
    assert main([*command, str(tmp_path / "x")]) == 0
    capfdbinary.readouterr()
    assert main([*command, "-"]) == 0
    written = capfdbinary.readouterr()
    if command == ("backup",):
        (tmp_path / "x").write_bytes(written.out)
        assert main(["restore", str(tmp_path / "x")]) == 0
    else:
        assert written.out == (tmp_path / "x").read_bytes()
    assert not Path("-").exists()
    assert written.err == b""


def test_a_backup_is_for_its_owners_eyes_and_holds_no_locks(home, tmp_path):
    made_conversation(open_library(home.data))
    target = tmp_path / "b.zip"
    target.touch(0o644)
    (home.data / "owner.lock").write_text(str(os.getpid()), "utf-8")
    assert main(["backup", str(target)]) == 0
    assert target.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(target) as archive:
        assert sorted(archive.namelist()) == ["data/conversations.db", "manifest.json"]


def test_nothing_is_restored_under_a_running_kvchat(home, tmp_path, capsys):
    database = open_library(home.data)
    made_conversation(database)
    database.close()
    assert main(["backup", str(tmp_path / "b.zip")]) == 0
    with running_owner(home):
        for command in (["restore", str(tmp_path / "b.zip")], ["repair"]):
            assert main(command) == 1
            assert "kvchat is already running" in capsys.readouterr().err
    assert not [file for file in home.data.iterdir() if "replaced" in file.name or "restore" in file.name]
    assert main(["restore", str(tmp_path / "b.zip")]) == 0


def test_a_chat_with_its_memory_goes_alone_and_with_a_passphrase_out_of_a_file(home, tmp_path, capsys):
    made = made_conversation(open_library(home.data))
    target, secret, empty = str(tmp_path / "x.kvchat"), tmp_path / "secret", tmp_path / "empty"
    secret.write_text("correct horse\nsecond line", "utf-8")
    empty.write_text("\n", "utf-8")
    for arguments, words in (
        (["--with-memory", target], "contains a single chat"),
        (["--with-memory", "--chat", made.id, "--form", "md", target], "contains a single chat"),
        (["--with-memory", "--chat", made.id, "-"], "contains a single chat"),
        (["--passphrase-file", str(secret), target], "Only an export with memory can be encrypted"),
        (["--with-memory", "--chat", made.id, "--passphrase-file", str(empty), target], "The passphrase is empty"),
        (["--with-memory", "--chat", made.id, "--passphrase-file", "nowhere", target], "could not be read"),
        (["--with-memory", "--chat", "nobody", target], "No chat has the id nobody"),
        (["--with-memory", "--chat", made.id, target], "This chat has no saved memory"),
    ):
        assert main(["export", *arguments]) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "x.kvchat").exists()
