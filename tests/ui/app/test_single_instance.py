"""One kvchat for one data folder."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from kvchat.ui.app import single_instance
from kvchat.ui.app.single_instance import SingleInstance, Wish, _give_way
from tests.ui.waiting import until

HERE = str(Path("a.gguf").resolve())
SECOND_START = """
import sys
import tempfile
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
    socket.connectToServer(first.names[0])
    socket.write(b"raise\n")
    await until(lambda: socket.bytesAvailable(), "the answer")
    assert heard == [Wish()]
    first.release()


@pytest.mark.skipif(sys.platform == "win32", reason="its pipes have names of their own")
async def test_who_takes_the_name_that_others_can_guess_is_told_nothing(tmp_path: Path) -> None:
    """The temporary folder is everybody's: a stranger listened there and heard what kvchat was started for."""
    name = f"kvchat-{hashlib.sha256(str(tmp_path.resolve()).encode()).hexdigest()[:16]}"  # noqa: ASYNC240
    stranger = QLocalServer()
    heard: list[bool] = []
    QLocalServer.removeServer(name)
    assert stranger.listen(name)
    stranger.newConnection.connect(lambda: heard.append(True))
    start = start_again(tmp_path)
    await until(lambda: start.poll() is not None)
    assert start.returncode == 0, "it took the stranger for a kvchat"
    assert not heard
    stranger.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the socket's folder alone decides")
@pytest.mark.parametrize("stranger", ["listens", "asks"])
async def test_another_user_is_neither_told_nor_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: str
) -> None:
    first, heard = SingleInstance(tmp_path), list[Wish]()
    assert first.claim()
    first.asked.connect(heard.append)
    if stranger == "listens":
        monkeypatch.setattr(os, "getuid", lambda: -1)  # this process is somebody else now
        assert not SingleInstance(tmp_path).tell(Wish())
    else:
        monkeypatch.setattr(single_instance, "_is_own", lambda end: False)
        end = QLocalSocket()
        end.connectToServer(first.names[0])
        end.write(Wish().written())
        await until(lambda: end.state() is QLocalSocket.LocalSocketState.UnconnectedState, "the refusal")
    assert not heard
    first.release()


async def test_a_folder_whose_path_is_too_long_for_a_socket_is_one_kvchat_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="k") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        await test_a_second_start_raises_the_first(folder, "made")


async def test_a_start_while_the_other_one_quits_comes_after_it(tmp_path: Path) -> None:
    first = SingleInstance(tmp_path)
    assert first.claim()
    first.stop_listening()
    second = start_again(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        await asyncio.to_thread(second.wait, 2.0)  # it waits
    first.release()
    await until(lambda: second.poll() is not None)
    assert second.returncode == 0


def test_windows_is_told_to_let_the_other_one_to_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    let: list[int] = []
    windows = SimpleNamespace(user32=SimpleNamespace(AllowSetForegroundWindow=let.append))
    monkeypatch.setattr(ctypes, "windll", windows, raising=False)
    _give_way()
    assert not let
    monkeypatch.setattr(sys, "platform", "win32")
    _give_way()
    assert let == [-1]
