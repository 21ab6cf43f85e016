"""`kvchat export`, `import`, `backup` and `restore` as a user types them."""

from __future__ import annotations

import pytest

from kvchat.__main__ import main
from kvchat.paths import resolve_paths
from tests.keeping.library import everything, open_library, talk


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "home"))
    paths = resolve_paths()
    paths.ensure()
    return paths


def test_out_and_in_again(home, tmp_path, capsys):
    database = open_library(home.data)
    made = talk(database)
    before = everything(database)
    assert main(["export", str(tmp_path / "all.json")]) == 0
    assert "exported 1 chat to" in capsys.readouterr().out
    database.delete(made.id)
    assert main(["import", str(tmp_path / "all.json")]) == 0
    assert capsys.readouterr().out == "imported 1 chat, 0 were here already\n"
    assert everything(database) == before


def test_what_cannot_be_imported_is_named(home, tmp_path, capsys):
    (tmp_path / "x.json").write_text("{", "utf-8")
    assert main(["import", str(tmp_path / "x.json")]) == 1
    assert "x.json: line 1, column 2: it is not JSON" in capsys.readouterr().err


def test_one_conversation_in_a_form_of_its_own(home, tmp_path, capsys):
    made = talk(open_library(home.data))
    assert main(["export", "--chat", made.id, "--form", "html", str(tmp_path / "x")]) == 0
    assert (tmp_path / "x").read_text("utf-8").startswith("<!doctype html>")
    assert main(["export", "--chat", "nobody", str(tmp_path / "x")]) == 1
    assert "There is no such chat" in capsys.readouterr().err


def test_a_backup_comes_back(home, tmp_path, capsys):
    database = open_library(home.data)
    made = talk(database)
    before = everything(database)
    assert main(["backup", str(tmp_path / "b.zip")]) == 0
    database.delete(made.id)
    database.close()
    assert main(["restore", str(tmp_path / "b.zip")]) == 0
    assert "restored 1 chat; what was here is in" in capsys.readouterr().out
    assert everything(open_library(home.data)) == before
