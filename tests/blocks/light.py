"""How light the window is: `python -m tests.blocks.light [--chats N] [--idle SECONDS]`.

How long until it can be used, beside a bare window of Qt's in the same run; what it takes of a core while nobody does
anything; its memory. A desktop of its own, no engine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from kvchat.chat.record.database import Database
from kvchat.chat.search import index_batch
from kvchat.system.paths import resolve_paths
from tests.blocks.first_picture import BARE, BEGAN, OUT
from tests.chat.library import fill
from tests.e2e.desktop import Desktop
from tests.e2e.home import Home
from tests.e2e.waiting import wait_until
from tests.models import tiny_model

MOST_TIMES_BARE, MOST_OF_A_CORE, MOST_MEMORY = 2.5, 0.005, 250_000_000
_PATIENCE_S = 120.0
_SETTLES_S = 15.0  # until what follows the start is done


def main() -> None:
    """Measure and print. Exit code 1 where it is not as light as it has to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.blocks.light", description=__doc__)
    parser.add_argument("--chats", type=int, default=10)
    parser.add_argument("--starts", type=int, default=5, help="of each, one after the other")
    parser.add_argument("--idle", type=float, default=0.0, metavar="SECONDS", help="and look for so long; 0: do not")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # and what it has started ends with it
    with tempfile.TemporaryDirectory(prefix="kvchat-light-") as folder, Desktop() as desktop:
        desktop.environment.pop("QT_LINUX_ACCESSIBILITY_ALWAYS_ON")  # who is read to has other times
        desktop.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
        desktop.environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "compiled")
        home = _furnished(Path(folder) / "home", asked.chats)
        heavy = not _starts_soon(desktop, home, asked.starts)
        if asked.idle:
            heavy |= not _rests(desktop, home, asked.idle)
    sys.exit(heavy)


def _furnished(folder: Path, chats: int) -> Home:
    home = Home(folder)
    home.write_settings(model_path=str(tiny_model("llama")), engine_start="message")
    paths = resolve_paths({"KVCHAT_HOME": str(folder)})
    paths.ensure()
    database = Database(paths.database)
    fill(database, chats)
    while index_batch(database):
        pass
    database.close()
    return home


def _starts_soon(desktop: Desktop, home: Home, starts: int) -> bool:
    """Whether the window can be used soon enough. A first start of each fills the caches and does not count."""
    found: dict[str, list[dict[str, float]]] = {BARE: [], "kvchat": []}
    for _ in range(starts + 1):
        for name, times in found.items():
            times.append(_start(desktop, home, name, 0.0)[0])
    medians = {name: _median(times[1:], "usable") for name, times in found.items()}
    for name, times in found.items():
        shown, core = _median(times[1:], "shown"), _median(times[1:], "of a core")
        least = min(one["usable"] for one in times[1:])
        told = f"shown {shown:.2f} s, can be used {medians[name]:.2f} s (at least {least:.2f})"
        print(f"{name:<8} {told}, takes {core:.2f} s of a core")
    ratio = medians["kvchat"] / medians[BARE]
    print(f"{ratio:.2f} x the time of a bare window; allowed is {MOST_TIMES_BARE}", flush=True)
    return ratio <= MOST_TIMES_BARE


def _rests(desktop: Desktop, home: Home, seconds: float) -> bool:
    _, core, memory = _start(desktop, home, "kvchat", seconds)
    print(f"idle: {core:.2%} of a core; allowed is {MOST_OF_A_CORE:.1%}")
    print(f"memory: {memory / 1e6:.0f} MB; allowed are {MOST_MEMORY / 1e6:.0f}", flush=True)
    return core <= MOST_OF_A_CORE and memory <= MOST_MEMORY


def _start(desktop: Desktop, home: Home, name: str, seconds: float) -> tuple[dict[str, float], float, int]:
    """When it could be used; what it took of a core during the seconds after that, and its memory at their end."""
    out = home.folder / "picture.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.blocks.first_picture", *([BARE] if name == BARE else [])]
    told = {OUT: str(out), "KVCHAT_HOME": str(home.folder)}
    with desktop.application(*command, output=home.folder / "output", **told, **{BEGAN: str(time.monotonic())}) as one:
        wait_until(out.exists, seconds=_PATIENCE_S, what=(home.folder / "output").read_text("utf-8", "replace"))
        process, core, memory = psutil.Process(one.pid), 0.0, 0
        if seconds:
            time.sleep(_SETTLES_S)
            before = process.cpu_times()
            time.sleep(seconds)
            after = process.cpu_times()
            core = (after.user + after.system - before.user - before.system) / seconds
            memory = process.memory_info().rss
        if name != BARE:
            os.kill(one.pid, signal.SIGTERM)
            one.wait(_PATIENCE_S)
    return json.loads(out.read_text("utf-8")), core, memory


def _median(times: list[dict[str, float]], name: str) -> float:
    return statistics.median(one[name] for one in times)


if __name__ == "__main__":
    main()
