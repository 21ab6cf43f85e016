"""Ownership of the data folder by one process, and connections of others."""

import ctypes
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvchat.system.owner import InstanceLock, allow_owner_to_raise_window, connect, owner_of
from tests.systems import has_mode

OWN = """
import sys
from pathlib import Path
from kvchat.system.owner import InstanceLock
ownership = InstanceLock(Path(sys.argv[1]), "kvchat serve")
print(ownership.claim(), flush=True)
ownership.listen(lambda connection: connection.send(connection.recv()))
sys.stdin.read()
"""


def echo(connection: Connection) -> None:
    connection.send(connection.recv())


def answers(folder: Path) -> bool:
    connection = connect(folder)
    if connection is None:
        return False
    with connection:
        connection.send("hello")
        return bool(connection.recv() == "hello")


@contextmanager
def listening(folder: Path) -> Iterator[InstanceLock]:
    ownership = InstanceLock(folder, "x")
    assert ownership.claim()
    ownership.listen(echo)
    yield ownership
    ownership.release()


def test_another_process_takes_over_from_a_killed_owner(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWN, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline().split() == [b"True"]
        ours = InstanceLock(tmp_path, "kvchat ask")
        assert not ours.claim()
        while not answers(tmp_path):
            pass
        owner = owner_of(tmp_path)
        assert (owner.name, owner.pid) == ("kvchat serve", other.pid)
        other.kill()
        other.wait()
        assert ours.claim()
        assert connect(tmp_path) is None
    ours.listen(echo)
    assert answers(tmp_path)
    ours.release()


def test_client_without_the_key_is_refused(tmp_path: Path) -> None:
    ownership, connected = InstanceLock(tmp_path, "x"), threading.Event()
    assert ownership.claim()
    ownership.listen(lambda connection: connected.set())
    owner = owner_of(tmp_path)
    with Client(owner.address) as stranger:
        stranger.send_bytes(b"let me in")
        stranger.recv_bytes()  # the challenge
        assert b"FAILURE" in stranger.recv_bytes()
    note = tmp_path / "owner.json"
    assert has_mode(note, 0o600)
    note.write_text(json.dumps(asdict(replace(owner, key="00" * 32))), "utf-8")
    assert connect(tmp_path) is None
    assert not connected.is_set()
    ownership.release()


def test_folder_is_free_after_the_owner_ends(tmp_path: Path) -> None:
    with listening(tmp_path) as ownership:
        with Client(owner_of(tmp_path).address):  # a silent client blocks nobody
            assert answers(tmp_path)
        ownership.stop_listening()
        assert connect(tmp_path) is None
        assert not InstanceLock(tmp_path, "y").claim()
    assert [file.name for file in tmp_path.iterdir()] in ([], ["owner.lock"])
    another = InstanceLock(tmp_path, "y")
    assert another.claim()
    another.release()
    (tmp_path / "owner.lock").unlink(missing_ok=True)
    (tmp_path / "owner.lock").mkdir()
    with listening(tmp_path):  # without a lock, everyone owns it
        assert answers(tmp_path)
    folder = tmp_path / ("long" * 30)  # too long for a socket in it
    folder.mkdir()
    with listening(folder):
        owner = owner_of(folder)
        assert answers(folder)
    assert not Path(owner.address).parent.exists()
    for note in ("", "[]", '{"name": 1}', '{"name": "x", "pid": 1, "address": "/nowhere"}'):
        (tmp_path / "owner.json").write_text(note, "utf-8")
        assert connect(tmp_path) is None


def test_windows_lets_the_owner_raise_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    windows = SimpleNamespace(user32=SimpleNamespace(AllowSetForegroundWindow=calls.append))
    monkeypatch.setattr(ctypes, "windll", windows, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    allow_owner_to_raise_window()
    assert not calls
    monkeypatch.setattr(sys, "platform", "win32")
    allow_owner_to_raise_window()
    assert calls == [-1]
