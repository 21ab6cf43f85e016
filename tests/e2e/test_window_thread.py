"""The window's thread accesses no file while the window is open, so no disk can block it."""

import json
import os
import subprocess
import sys

import pytest

from kvchat.engine.process.plan import free_port
from tests.e2e.home import GREEDY, Home
from tests.e2e.watched_thread import ROUNDS
from tests.models import tiny_model

pytestmark = pytest.mark.e2e


def test_no_disk_blocks_the_window(tmp_path):
    home = Home(tmp_path / "home")
    api_settings = {"api_server": True, "api_port": free_port("127.0.0.1")}
    home.write_settings(
        model_path=str(tiny_model("llama")), engine_path="embedded", max_tokens=12, **api_settings, **GREEDY
    )
    (tmp_path / "attached.txt").write_text("Words to attach.")
    out = tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.watched_thread", str(out)],
        env=os.environ | {"KVCHAT_HOME": str(home.folder), "QT_QPA_PLATFORM": "offscreen"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    assert out.exists(), done.stderr
    report = json.loads(out.read_text("utf-8"))
    assert not report["fault"]
    accesses = [f"{access} by {place}" for place, access in report["found"].items()]
    assert not accesses, "\n".join(accesses)
    assert report["held"], "no thread used the hanging disk"
    assert report["rounds"] == ROUNDS
    assert done.returncode == 0, done.stderr
