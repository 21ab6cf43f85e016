"""A message box explains why the window cannot open; a signal ends kvchat without a button press."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.formats import earlier
from tests.systems import not_on_windows

pytestmark = [
    pytest.mark.slow,  # a process of its own
    not_on_windows("speaks of signals"),
]


def test_chats_of_a_newer_kvchat_are_left_alone_and_the_box_does_not_hold_the_session_up(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = earlier("chats", 1, tmp_path / "data" / "conversations.db")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("INSERT INTO migrations VALUES (999, 0)")
        db.commit()
    before = path.read_bytes()
    environment = os.environ | {"KVCHAT_HOME": str(tmp_path), "QT_QPA_PLATFORM": "offscreen"}
    started = subprocess.Popen([sys.executable, "-m", "kvchat"], env=environment, stdin=subprocess.DEVNULL)
    try:
        while not (tmp_path / "data" / "owner.lock").exists():
            time.sleep(0.05)
        while started.poll() is None:  # with or without an open message box, the signal ends it
            time.sleep(2)
            started.send_signal(signal.SIGTERM)
    finally:
        started.kill()
        started.wait()
    assert path.read_bytes() == before
