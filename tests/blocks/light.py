"""Weight of the window: `python -m tests.blocks.light [--chats N] [--idle SECONDS]`.

Time until it is usable, compared with a bare Qt window in the same run; CPU use while idle; memory. A private desktop,
no engine.
"""

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

MAX_RATIO, MAX_CPU, MAX_MEMORY = 2.4, 0.005, 250_000_000
_TIMEOUT_S = 120.0
_SETTLE_S = 15.0  # for work after the start


def main() -> None:
    """Measure and print. Exit code 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.blocks.light", description=__doc__)
    parser.add_argument("--chats", type=int, default=10)
    parser.add_argument("--starts", type=int, default=5, help="number of starts of each")
    parser.add_argument(
        "--idle", type=float, default=0.0, metavar="SECONDS", help="measure idle use for this time; 0: not"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # its children end with it
    with tempfile.TemporaryDirectory(prefix="kvchat-light-") as folder, Desktop() as desktop:
        desktop.environment.pop("QT_LINUX_ACCESSIBILITY_ALWAYS_ON")  # accessibility changes the times
        desktop.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed modules are compiled
        desktop.environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "compiled")
        home = _make_home(Path(folder) / "home", options.chats)
        heavy = not _check_start(desktop, home, options.starts)
        if options.idle:
            heavy |= not _check_idle(desktop, home, options.idle)
    sys.exit(heavy)


def _make_home(folder: Path, chats: int) -> Home:
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


def _check_start(desktop: Desktop, home: Home, starts: int) -> bool:
    """Return True if the window is usable soon enough. The first start of each fills caches and does not count."""
    measured: dict[str, list[dict[str, float]]] = {BARE: [], "kvchat": []}
    for _ in range(starts + 1):
        for name, times in measured.items():
            times.append(_start(desktop, home, name, 0.0)[0])
    medians = {name: _median(times[1:], "usable") for name, times in measured.items()}
    for name, times in measured.items():
        shown, core = _median(times[1:], "shown"), _median(times[1:], "of a core")
        least = min(start["usable"] for start in times[1:])
        text = f"shown {shown:.2f} s, usable {medians[name]:.2f} s (at least {least:.2f})"
        print(f"{name:<8} {text}, takes {core:.2f} s of a core")
    ratio = medians["kvchat"] / medians[BARE]
    print(f"{ratio:.2f} x the time of a bare window; allowed is {MAX_RATIO}", flush=True)
    return ratio <= MAX_RATIO


def _check_idle(desktop: Desktop, home: Home, seconds: float) -> bool:
    _, core, memory = _start(desktop, home, "kvchat", seconds)
    print(f"idle: {core:.2%} of a core; allowed is {MAX_CPU:.1%}")
    print(f"memory: {memory / 1e6:.0f} MB; allowed are {MAX_MEMORY / 1e6:.0f}", flush=True)
    return core <= MAX_CPU and memory <= MAX_MEMORY


def _start(desktop: Desktop, home: Home, name: str, seconds: float) -> tuple[dict[str, float], float, int]:
    """Return the start times, the CPU use during `seconds` of idling, and the memory afterwards."""
    out = home.folder / "picture.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.blocks.first_picture", *([BARE] if name == BARE else [])]
    environment = {OUT: str(out), "KVCHAT_HOME": str(home.folder)}
    with desktop.application(
        *command, output=home.folder / "output", **environment, **{BEGAN: str(time.monotonic())}
    ) as child:
        wait_until(out.exists, seconds=_TIMEOUT_S, what=(home.folder / "output").read_text("utf-8", "replace"))
        process, core, memory = psutil.Process(child.pid), 0.0, 0
        if seconds:
            time.sleep(_SETTLE_S)
            before = process.cpu_times()
            time.sleep(seconds)
            after = process.cpu_times()
            core = (after.user + after.system - before.user - before.system) / seconds
            memory = process.memory_info().rss
        if name != BARE:
            os.kill(child.pid, signal.SIGTERM)
            child.wait(_TIMEOUT_S)
    return json.loads(out.read_text("utf-8")), core, memory


def _median(times: list[dict[str, float]], name: str) -> float:
    return statistics.median(start[name] for start in times)


if __name__ == "__main__":
    main()
