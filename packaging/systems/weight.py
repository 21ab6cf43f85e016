"""Memory of kvchat's window and the time until it takes keys, compared with a bare Qt window on the same system.

Both are started in the same way, in turn, by `tests/blocks/first_picture.py`. No engine runs.
"""

import os
import re
import signal
import statistics
import time
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).resolve().parents[2] / "tests/blocks/first_picture.py"
_STARTS = 3  # measured; an earlier one fills caches
_TIMEOUT_S = 120.0
_SETTLE_S = 10.0  # time for work after the start


def compare_with_bare_window(system: Any) -> list[str]:
    """Return a Markdown table of median times, memory and their ratios."""
    system.run("settings", "set", "engine_start", "message")
    measured: dict[str, list[list[float]]] = {"bare window": [], "kvchat": []}
    for _ in range(_STARTS + 1):
        for name, starts in measured.items():
            starts.append(_start(system, *(["bare"] if name == "bare window" else [])))
    medians = [list(map(statistics.median, zip(*starts[1:], strict=True))) for starts in measured.values()]
    bare, kvchat = ([f"{time:.2f} s", f"{rss:.0f} MB", f"{pss:.0f} MB"] for time, rss, pss in medians)
    ratios = [f"{mine / plain:.1f}" for plain, mine in zip(*medians, strict=True)]
    rows = ["", "usable after", "RSS", "PSS"], ["---"] * 4, ["bare window", *bare], ["kvchat", *kvchat]
    return [f"| {' | '.join(row)} |" for row in (*rows, ["ratio", *ratios])]


def _start(system: Any, *arguments: str) -> list[float]:
    """Return the seconds until the window took a key, and its process's RSS and PSS in MB some time later."""
    report, python = system.home / "picture.json", system.python[-1]
    report.unlink(missing_ok=True)
    os.environ |= {"KVCHAT_TEST_PICTURE": system.path(report.name), "KVCHAT_TEST_BEGAN": "0"}
    script = str(_SCRIPT) if "/" in python else "Z:" + str(_SCRIPT).replace("/", "\\")
    began = time.monotonic()
    system.spawn(*system.inside(*system.python, script, *arguments))
    while not report.exists():  # polled here, because Wine has another clock
        if time.monotonic() > began + _TIMEOUT_S:
            raise TimeoutError("the window did not take a key")
        time.sleep(0.01)
    usable = time.monotonic() - began
    time.sleep(_SETTLE_S)
    [pid] = system.pids(rf"^{re.escape(python)} .*first_picture")
    pages = dict(re.findall(r"^(Rss|Pss): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
    os.kill(pid, signal.SIGTERM)
    while system.pids(rf"^{re.escape(python)} .*first_picture"):
        time.sleep(0.2)
    return [usable, int(pages["Rss"]) / 1000, int(pages["Pss"]) / 1000]
