"""`kvchat export`, `import`, `backup` and `restore` in this process."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.__main__ import main
from kvchat.cli.options import read_passphrase
from kvchat.system.paths import Paths
from tests.cli.owner import running_owner
from tests.systems import needs_links
from tests.transfer.library import everything, made_conversation, open_library


@pytest.fixture
def paths(paths: Paths) -> Paths:
    return paths.ensure()


def test_an_export_can_be_imported_and_a_backup_restored(paths, tmp_path, run):
    database = open_library(paths.data)
    made = made_conversation(database)
    before = everything(database)
    assert "exported 1 chat to" in run("export", str(tmp_path / "all.json")).out
    database.delete(made.id)
    assert run("import", str(tmp_path / "all.json")).out == "imported 1 chat; 0 already existed\n"
    assert everything(database) == before
    (tmp_path / "x.json").write_text("{", "utf-8")
    assert "x.json: line 1, column 2: invalid JSON" in run("import", str(tmp_path / "x.json"), code=1).err
    assert main(["backup", str(tmp_path / "b.zip")]) == 0
    database.delete(made.id)
    database.close()
    with running_owner(paths):
        for command in (["restore", str(tmp_path / "b.zip")], ["repair"]):
            assert "kvchat is already running" in run(*command, code=1).err
    assert not [file for file in paths.data.iterdir() if "replaced" in file.name or "restore" in file.name]
    assert "restored 1 chat; the replaced files are in" in run("restore", str(tmp_path / "b.zip")).out
    assert everything(open_library(paths.data)) == before


def test_importing_a_recently_deleted_chat_restores_it(paths, tmp_path, run):
    made = made_conversation(open_library(paths.data))
    assert main(["export", str(tmp_path / "all.json")]) == 0
    assert main(["chats", "delete", made.id]) == 0
    assert "Restored from Recently deleted: 1." in run("import", str(tmp_path / "all.json")).out
    assert made.id[:8] in run("chats").out


def test_passphrase_file_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "secret"
    file.write_bytes("correct horse\r\n".encode("utf-8-sig"))
    assert read_passphrase(str(file)) == "correct horse"


def test_one_chat_is_exported_in_a_chosen_format_and_invalid_options_are_refused(paths, tmp_path, run):
    made = made_conversation(open_library(paths.data))
    for id, name in ((made.id, "x"), (made.id[:8], "y")):
        assert main(["export", "--chat", id, "--form", "html", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text("utf-8").startswith("<!doctype html>")
    target, secret, empty = str(tmp_path / "x.kvchat"), tmp_path / "secret", tmp_path / "empty"
    secret.write_text("correct horse\nsecond line", "utf-8")
    empty.write_text("\n", "utf-8")
    for arguments, problem in (
        (["--chat", "nobody", target], "No chat has the id nobody"),
        (["--with-memory", target], "contains a single chat"),
        (["--with-memory", "--chat", made.id, "--form", "md", target], "contains a single chat"),
        (["--with-memory", "--chat", made.id, "-"], "contains a single chat"),
        (["--passphrase-file", str(secret), target], "Only an export with memory can be encrypted"),
        (["--with-memory", "--chat", made.id, "--passphrase-file", str(empty), target], "The passphrase is empty"),
        (["--with-memory", "--chat", made.id, "--passphrase-file", "nowhere", target], "could not be read"),
        (["--with-memory", "--chat", "nobody", target], "No chat has the id nobody"),
        (["--with-memory", "--chat", made.id[:8], target], "This chat has no saved memory"),
    ):
        assert problem in run("export", *arguments, code=1).err
    assert not (tmp_path / "x.kvchat").exists()


@needs_links
@pytest.mark.parametrize("command", ["export", "backup"])
def test_links_are_followed_and_special_files_never_replaced(paths, tmp_path, command, run):
    made_conversation(open_library(paths.data))
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old", "utf-8")
    link.symlink_to(target)
    assert main([command, str(link)]) == 0
    assert link.is_symlink()
    assert target.read_bytes()[:2] in (b"PK", b'{"')
    os.mkfifo(pipe)
    for path, kind in ((pipe, "a pipe"), (tmp_path, "a folder")):
        before = path.stat().st_mode
        assert f"{path}: It is {kind}, not a file." in run(command, str(path), code=1).err
        assert path.stat().st_mode == before


@pytest.mark.parametrize(
    "command", [("export",), ("export", "--form", "html"), ("export", "--form", "md"), ("backup",)]
)
def test_a_dash_means_standard_output(paths, tmp_path, capfdbinary, command):
    with closing(open_library(paths.data)) as database:
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
