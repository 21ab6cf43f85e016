"""The command line in real processes."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from kvchat.system.paths import resolve_paths
from tests.cli.owner import running_owner

pytestmark = pytest.mark.slow


def run_kvchat(
    *arguments: str, environment: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvchat", *arguments]
    return subprocess.run(
        command,
        env=dict(environment),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
    )


@pytest.fixture
def headless(tmp_path: Path) -> dict[str, str]:
    return {"KVCHAT_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}


def test_no_display_is_explained_without_loading_qt(headless):
    ended = run_kvchat(environment=headless | {"PYTHONVERBOSE": "1"})
    assert ended.returncode == 1
    assert "kvchat cannot open a window. There is no display" in ended.stderr
    assert "neither DISPLAY nor WAYLAND_DISPLAY is set" in ended.stderr
    assert "kvchat ask" in ended.stderr
    assert "import 'kvchat.system.display'" in ended.stderr
    assert "PySide6" not in ended.stderr
    ended = run_kvchat(environment=headless | {"DISPLAY": ":5999"})
    assert ended.returncode == 1
    assert "Cannot connect to the display at DISPLAY=:5999" in ended.stderr


@pytest.mark.parametrize("command", [("ask", "--new"), ("bench",), ("ask", "--starter")])
def test_home_cannot_be_created(headless, tmp_path, command):
    (tmp_path / "file").write_text("in the way")
    arguments = [*command] if "--starter" in command else [*command, "--model", str(tmp_path / "any.gguf")]
    question = ["Hello"] if "ask" in command else []
    ended = run_kvchat(*arguments, *question, environment=headless | {"KVCHAT_HOME": str(tmp_path / "file")})
    assert ended.returncode == 1
    assert ended.stderr.startswith("kvchat: A required folder could not be created\n")
    assert str(tmp_path / "file") in ended.stderr


BOX = """
import sys
from PySide6.QtWidgets import QMessageBox
from kvchat import app
open_box = QMessageBox.open
def read_and_close(box):
    open_box(box)
    print(box.text(), box.informativeText(), box.isVisible(), flush=True)
    box.done(0)
QMessageBox.open = read_and_close
sys.exit(app.run(starter=False, hidden=False))
"""


@pytest.mark.parametrize("home", ["in the way", "owned"])
def test_window_reports_startup_errors_in_a_dialog(tmp_path, home):
    folder = tmp_path / home
    environment = os.environ | {"KVCHAT_HOME": str(folder), "QT_QPA_PLATFORM": "offscreen"}
    if home == "owned":
        owner = running_owner(resolve_paths({"KVCHAT_HOME": str(folder)}).ensure())
        words = "kvchat is already running The chats are in use by kvchat serve (process "
    else:
        folder.write_text("a file")
        owner, words = nullcontext(), f"A required folder could not be created {folder}"
    with owner:
        command = [sys.executable, "-c", BOX]
        ended = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=240)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert ended.stdout.startswith(words)
    assert ended.stdout.rstrip().endswith("True")


def test_engine_child_imports_no_app_code_and_parent_guard_runs_the_command(headless):
    ended = run_kvchat("--embedded-engine", "not JSON", environment=headless | {"PYTHONVERBOSE": "1"})
    assert ended.returncode == 64
    assert "invalid argument" in ended.stderr
    assert "import 'argparse'" not in ended.stderr
    assert "import 'kvchat.errors'" not in ended.stderr
    ended = run_kvchat("--parent-guard", "kernel", str(os.getpid()), "sh", "-c", "exit 7", environment=headless)
    assert ended.returncode == 7


def test_pyside_still_has_the_search_that_the_start_turns_off():
    import PySide6  # noqa: F401

    assert sys.modules["PySide6.support.feature"]._mod_uses_pyside(sys.modules[__name__])
