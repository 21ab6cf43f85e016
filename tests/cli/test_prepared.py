"""`kvchat prepare` and `kvchat prepared` in processes of their own, on the fake engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.home import Home
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import LLAMA, write_gguf

STORY = "A long story of the river and the garden. " * 20

pytestmark = pytest.mark.fake


@pytest.fixture
def chosen(fake_engine: FakeEngine, smollm2: Path) -> dict[str, object]:
    engine = {"engine_path": str(fake_engine.path), "context_size": 4096, "free_floor_bytes": 0}
    return {"model_path": str(smollm2), **engine}


@pytest.fixture
def home(tmp_path: Path, chosen: dict[str, object]) -> Home:
    home = Home(tmp_path / "home")
    home.write_settings(**chosen)
    return home


def listed(home: Home, *arguments: str) -> list[dict[str, Any]]:
    done = home.run("prepared", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    prepared: list[dict[str, Any]] = json.loads(done.stdout)["prepared"]
    return prepared


def test_a_folder_is_prepared_asked_about_changed_read_again_and_removed(home, tmp_path, chosen):
    folder = tmp_path / "manual"
    folder.mkdir()
    (folder / "a.md").write_text("The river. " + STORY)
    (folder / "b.md").write_text("The garden. " + STORY)
    nothing = home.run("prepared")
    assert "No prepared documents" in nothing.stdout
    assert home.run("prepare", "--name", "Manual").returncode == 1
    done = home.run("prepare", str(folder), "--name", "Manual")
    assert done.returncode == 0, done.stderr
    assert "2 files, about" in done.stderr
    assert "“Manual” is prepared: 2 files" in done.stdout
    [one] = listed(home)
    assert (one["ready"], one["stale"], one["files"]) == (True, False, 2)
    assert Path(one["place"]).is_dir()
    assert one["bytes"] > 0
    asked = home.ask("--on", "Manual", "What of the boat?")
    assert asked["receipt"]["source"] == "disk"
    assert asked["receipt"]["cached_tokens"] >= one["tokens"] - 1
    assert home.ask("--new", "--on", "Manual", "And the garden?")["chat_id"] != asked["chat_id"]
    store = home.run("store")
    assert "Prepared: Manual" in store.stdout

    (folder / "b.md").write_text("The boat. " + STORY)
    [stale] = listed(home)
    assert (stale["stale"], stale["changes"]) == (True, "1 file changed")
    assert "1 file changed since" in home.run("prepared").stdout
    assert home.run("prepare", "--name", "Manual").returncode == 0
    assert not listed(home)[0]["stale"]

    assert "already" in home.run("prepare", str(tmp_path), "--name", "Manual").stderr  # of other files
    again = home.run("prepare", str(folder), "--name", "Manual")
    assert again.returncode == 0, again.stderr
    home.write_settings(**chosen | {"context_size": 512})
    assert "longer than the current context" in listed(home)[0]["why_not"]
    other = write_gguf(tmp_path / "other.gguf", LLAMA | {"context_length": 4096})
    [another] = listed(home, "--model", str(other))
    assert another["why_not"] == "it was processed with another model"
    asked_with = home.run("ask", "--new", "--on", "Manual", "--model", str(other), "And the boat?")
    assert "“Manual” must be processed first" in asked_with.stderr
    assert "it was processed with another model" in asked_with.stderr

    assert home.run("ask", "--on", "Nothing", "Hello").returncode == 1
    assert home.run("prepared", "remove", "Manual").returncode == 0
    assert listed(home) == []


def test_what_is_too_long_is_refused_and_nothing_is_left(home, tmp_path):
    text = tmp_path / "long.txt"
    text.write_text(STORY * 10)
    done = home.run("prepare", str(text), "--name", "Long")
    assert done.returncode == 1
    assert "of it fit" in done.stderr
    assert listed(home) == []
