"""One kvchat for one data folder."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PySide6.QtNetwork import QLocalSocket

from kvchat.ui.app.single_instance import SingleInstance, Wish, _give_way
from tests.ui.waiting import until

HERE = str(Path("a.gguf").resolve())
SECOND_START = """
import sys
from pathlib import Path
from types import SimpleNamespace
from PySide6.QtCore import QCoreApplication
from kvchat.ui.app.single_instance import SingleInstance, wish_for
app = QCoreApplication([])
sys.exit(0 if SingleInstance(Path(sys.argv[1])).claim(wish_for(("kvchat://new", "a.gguf"))) else 3)
"""


def start_again(folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"XDG_ACTIVATION_TOKEN": "let it"}
    return subprocess.Popen([sys.executable, "-c", SECOND_START, str(folder)], env=environment)


@pytest.mark.parametrize("lock", ["made", "cannot be made"])
async def test_a_second_start_raises_the_first(tmp_path: Path, lock: str) -> None:
    """Also where its lock cannot be made: the window opens all the same."""
    if lock == "cannot be made":
        (tmp_path / "app.lock").mkdir()
    first = SingleInstance(tmp_path)
    assert first.claim()
    heard: list[Wish] = []
    first.asked.connect(heard.append)
    second = start_again(tmp_path)
    await until(lambda: second.poll() is not None, "the second start to end")
    assert second.returncode == 3
    await until(lambda: heard)
    assert heard == [Wish(("kvchat://new", HERE), token="let it")]
    first.release()


async def test_another_folder_is_another_kvchat(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    instances = []
    for folder in folders:
        folder.mkdir()
        instances.append(SingleInstance(folder))
    assert all(instance.claim() for instance in instances)
    for instance in instances:
        instance.release()


async def test_the_folder_is_free_after_release(tmp_path: Path) -> None:
    first = SingleInstance(tmp_path)
    assert first.claim()
    first.release()
    second = start_again(tmp_path)
    await until(lambda: second.poll() is not None)
    assert second.returncode == 0


async def test_another_version_s_words_raise_the_window(tmp_path: Path) -> None:
    first, heard = SingleInstance(tmp_path), list[Wish]()
    assert first.claim()
    first.asked.connect(heard.append)
    socket = QLocalSocket()
    socket.connectToServer(first.name)
    socket.write(b"raise\n")
    socket.disconnectFromServer()
    await until(lambda: heard)
    assert heard == [Wish()]
    first.release()


def test_windows_is_told_to_let_the_other_one_to_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    let: list[int] = []
    windows = SimpleNamespace(user32=SimpleNamespace(AllowSetForegroundWindow=let.append))
    monkeypatch.setattr(ctypes, "windll", windows, raising=False)
    _give_way()
    assert not let
    monkeypatch.setattr(sys, "platform", "win32")
    _give_way()
    assert let == [-1]
