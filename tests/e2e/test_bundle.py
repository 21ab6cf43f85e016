"""The package to double-click: built by its one command, it chats and quits with nothing else installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvchat.library.remote.starter import starter_path
from kvchat.system.paths import resolve_paths
from tests.e2e.desktop import Desktop
from tests.e2e.home import Home
from tests.e2e.window import left_behind, open_window

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("bundle")]  # built once
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle's executable."""
    folder = tmp_path_factory.mktemp("dist")
    build = str(ROOT / "packaging" / "build-bundle")
    command = [build, "--python", sys.executable, "--dist", str(folder)]
    subprocess.run(command, check=True, timeout=400, stdin=subprocess.DEVNULL)
    return folder / "kvchat" / "kvchat"


@pytest.fixture
def home(tmp_path: Path, smollm2: Path) -> Home:
    """A fresh KVCHAT_HOME in which the starter model was fetched already."""
    home = Home(tmp_path / "home")
    models = resolve_paths({"KVCHAT_HOME": str(home.folder)}).models
    models.mkdir(parents=True)
    starter_path(models).symlink_to(smollm2)
    return home


def run_without_python(program: Path, *arguments: str, home: Home) -> str:
    """Run the bundle with nothing in its environment that could lend it a Python."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home.folder), "KVCHAT_HOME": str(home.folder)}
    done = subprocess.run(
        [program, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_knows_itself(program: Path, home: Home) -> None:
    found = json.loads(run_without_python(program, "doctor", "--json", home=home))
    assert found["engine"]["found"] is True
    devices = run_without_python(program, "--embedded-engine", "--devices", home=home)
    assert [device["name"] for device in json.loads(devices)]


def test_it_remembers_without_a_window(program: Path, home: Home) -> None:
    ask = ("ask", "--starter", "--json", "--max-tokens", "8", "--temperature", "0")
    first = json.loads(run_without_python(program, *ask, "--new", "Name a fruit.", home=home))
    second = json.loads(run_without_python(program, *ask, "And another one.", home=home))
    assert second["chat_id"] == first["chat_id"]
    assert second["receipt"]["source"] == "disk"
    assert second["receipt"]["cached_tokens"] > 0
    assert not left_behind(home)


def test_it_chats_in_its_window_and_quits_cleanly(program: Path, home: Home) -> None:
    with Desktop() as desktop, open_window(desktop, home, program, "--starter") as window:
        assert window.exchange("Say hello in one short sentence.")
        desktop.screenshot().save(Path(os.environ.get("KVCHAT_TEST_PICTURES", home.folder)) / "bundle.png")
        window.quit()
