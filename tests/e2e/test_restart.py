"""Restarts of the real application: to finish a restore, and while it quits."""

import contextlib
import os
import subprocess
import sys

import pytest

from kvchat.chat.record.database import Database
from kvchat.system.paths import resolve_paths
from kvchat.transfer.backup import make_backup

pytestmark = pytest.mark.e2e

# Prints at each start its process and the number of chats; the first start requests a restart.
_TWICE = """
import os, sys
from pathlib import Path
from kvchat import app
from kvchat.transfer.backup import stage_restore
from kvchat.ui.app.main_window import MainWindow

async def start(self, begin=MainWindow.start):
    await begin(self)
    chats = len(await self.runtime.chat.conversations())
    print("start", os.getpid(), chats, flush=True)
    if not chats:
        stage_restore(self.runtime.paths, Path(os.environ["BACKUP"]))
    (self.quit_requested if chats else self.transfer.restart_requested).emit()

MainWindow.start = start
sys.exit(app.run(starter=False, hidden=False))
"""


def test_a_restore_is_finished_by_the_restart(tmp_path):
    before = resolve_paths({"KVCHAT_HOME": str(tmp_path / "before")})
    before.ensure()
    database = Database(before.database)
    for title in ("one", "two", "three"):
        database.create_conversation(title)
    make_backup(before, tmp_path / "backup.zip")
    database.close()
    home = tmp_path / "home"
    driver = tmp_path / "twice.py"
    driver.write_text(_TWICE, "utf-8")
    environment = os.environ | {
        "KVCHAT_HOME": str(home),
        "BACKUP": str(tmp_path / "backup.zip"),
        "QT_QPA_PLATFORM": "offscreen",
    }
    ended = subprocess.run(
        [sys.executable, str(driver)], env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    starts = [line.split()[1:] for line in ended.stdout.splitlines() if line.startswith("start")]
    assert [chats for _, chats in starts] == ["0", "3"]


_HELD = """
import os, sys, time
from pathlib import Path
from kvchat import app
from kvchat.application import Application

async def start(self, begin=Application.start, **options):
    await begin(self, **options)
    print("start", flush=True)
    self.quitting.set()

async def close(self, end=Application.close):
    print("quitting", flush=True)
    while not Path(os.environ["GO"]).exists():
        time.sleep(0.02)
    await end(self)

Application.start, Application.close = start, close
sys.exit(app.run(starter=False, hidden=False))
"""


def test_a_start_while_kvchat_quits_opens_a_window_afterwards(tmp_path):
    (tmp_path / "held.py").write_text(_HELD, "utf-8")
    go = tmp_path / "go"
    environment = os.environ | {"KVCHAT_HOME": str(tmp_path / "home"), "GO": str(go), "QT_QPA_PLATFORM": "offscreen"}
    command = (sys.executable, str(tmp_path / "held.py"))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert [first.stdout.readline() for _ in range(2)] == ["start\n", "quitting\n"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as second:
            with contextlib.suppress(subprocess.TimeoutExpired):
                second.wait(5.0)  # it would end if it took the first for running
            go.touch()
            output, _ = second.communicate(timeout=240)
    assert output.splitlines() == ["start", "quitting"]
