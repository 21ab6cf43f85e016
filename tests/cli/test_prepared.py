"""`kvchat prepare` and `kvchat prepared` in their own processes, with the fake engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.home import Home
from tests.library.gguf_files import LLAMA, write_gguf

STORY = "A long story of the river and the garden. " * 20

pytestmark = pytest.mark.long


@pytest.fixture
def engine_settings(engine_settings: dict[str, object]) -> dict[str, object]:
    return engine_settings | {"context_size": 4096}


def list_prepared(home: Home, *arguments: str) -> list[dict[str, Any]]:
    done = home.run("prepared", "--json", *arguments, code=0)
    prepared: list[dict[str, Any]] = json.loads(done.stdout)["prepared"]
    return prepared


def test_a_folder_is_prepared_used_changed_reprocessed_and_removed(home, tmp_path, engine_settings):
    folder = tmp_path / "manual"
    folder.mkdir()
    (folder / "a.md").write_text("The river. " + STORY)
    (folder / "b.md").write_text("The garden. " + STORY)
    assert "No prepared documents" in home.run("prepared").stdout
    assert home.run("prepare", "--name", "Manual").returncode == 1
    done = home.run("prepare", str(folder), "--name", "Manual", code=0)
    assert "2 files, about" in done.stderr
    assert "“Manual” is prepared: 2 files" in done.stdout
    [documents] = list_prepared(home)
    assert (documents["ready"], documents["stale"], documents["files"]) == (True, False, 2)
    assert Path(documents["place"]).is_dir()
    assert documents["bytes"] > 0
    answer = home.ask("--on", "Manual", "What of the boat?")
    assert answer["receipt"]["source"] == "disk"
    assert answer["receipt"]["cached_tokens"] >= documents["tokens"] - 1
    assert home.ask("--new", "--on", "Manual", "And the garden?")["chat_id"] != answer["chat_id"]
    assert "Prepared documents: Manual" in home.run("store").stdout

    (folder / "b.md").write_text("The boat. " + STORY)
    [stale] = list_prepared(home)
    assert (stale["stale"], stale["changes"]) == (True, "1 file changed")
    assert "1 file changed since" in home.run("prepared").stdout
    assert home.run("prepare", "--name", "Manual").returncode == 0
    assert not list_prepared(home)[0]["stale"]

    assert "already" in home.run("prepare", str(tmp_path), "--name", "Manual").stderr, "made from other files"
    home.run("prepare", str(folder), "--name", "Manual", code=0)
    home.write_settings(**engine_settings | {"context_size": 512})
    assert "longer than the current context" in list_prepared(home)[0]["why_not"]
    other = write_gguf(tmp_path / "other.gguf", LLAMA | {"context_length": 4096})
    assert list_prepared(home, "--model", str(other))[0]["why_not"] == "it was processed with another model"
    done = home.run("ask", "--new", "--on", "Manual", "--model", str(other), "And the boat?")
    assert "“Manual” must be processed first" in done.stderr
    assert "it was processed with another model" in done.stderr

    assert home.run("ask", "--on", "Nothing", "Hello").returncode == 1
    assert home.run("prepared", "remove", "Manual").returncode == 0
    assert list_prepared(home) == []


def test_documents_that_are_too_long_are_refused_and_leave_nothing(home, tmp_path):
    text = tmp_path / "long.txt"
    text.write_text(STORY * 10)
    done = home.run("prepare", str(text), "--name", "Long", code=1)
    assert "% of it" in done.stderr
    assert list_prepared(home) == []
