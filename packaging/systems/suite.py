"""Run kvchat's quick tests with Windows' Python under Wine; started by packaging/try windows tests.

    suite.py BASE REPORT [NAME..]

BASE holds what packaging/try has set up. NAME: folder or file in tests; without one, all are run. REPORT receives
pytest's output and report.md: one line for each, then the failed tests.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tour import Windows

UNIT = "not engine and not e2e and not slow"
TEST_LIMIT_S = 600
FOLDER_LIMIT_S = 3600
NOTHING_SELECTED = 5  # pytest's exit code
SOURCE = "wine-prefix/drive_c/kvchat-source"
NOT_COPIED = (".git", ".venv", ".debian", ".*cache", ".hypothesis", "__pycache__", "build", "dist")


def run_tests(base: Path, name: str, log: Path) -> tuple[str, list[str]]:
    """Run the unit and window tests of a folder or file; return the outcome and the failed tests, a line each."""
    system = Windows(base)
    system.folder = base / SOURCE
    options = ("-q", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT_S}", "-n", str(os.cpu_count()), "-m", UNIT)
    try:
        system.setup()
        pytest = system.spawn(*system.inside(*system.console[:-1], "pytest", *options, f"tests/{name}"), output=log)
        status = pytest.wait(FOLDER_LIMIT_S)
        output = log.read_text("utf-8", errors="replace").strip()
    except subprocess.TimeoutExpired:
        return f"FAILED: not finished after {FOLDER_LIMIT_S} s", []
    finally:
        system.close()
    if status == NOTHING_SELECTED:
        return "no quick tests", []
    counts = ", ".join(re.findall(r"\d+ (?:failed|passed|skipped|errors?)", output.rpartition("\n")[2]))
    failed = re.findall(r"^(?:FAILED|ERROR) .*", output, re.MULTILINE)
    return (counts if status == 0 else f"FAILED: {counts or f'exit code {status}'}"), failed


def main() -> int:
    base, report, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    shutil.rmtree(base / SOURCE, ignore_errors=True)
    shutil.copytree(".", base / SOURCE, ignore=shutil.ignore_patterns(*NOT_COPIED))
    for font in (base / "wine/usr/share/fonts/truetype/dejavu").iterdir():
        shutil.copy(font, base / "wine-prefix/drive_c/windows/Fonts")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if not names:
        tests = Path("tests").iterdir()
        names = sorted(path.name for path in tests if path.match("test_*.py") or any(path.rglob("test_*.py")))
    lines, failures = ["| tests | outcome | seconds |", "|---|---|---|"], []
    report.mkdir(parents=True, exist_ok=True)
    for name in names:
        began = time.monotonic()
        outcome, failed = run_tests(base, name, report / f"{name.replace('/', '-')}.log")
        lines.append(f"| {name} | {outcome} | {time.monotonic() - began:.0f} |")
        print(lines[-1], *failed, sep="\n", flush=True)
        failures += failed or ([name] if outcome.startswith("FAILED") else [])
        text = "\n".join(("# kvchat's quick tests on Windows", "", *lines, "", *(f"- {test}" for test in failures)))
        (report / "report.md").write_text(f"{text.rstrip()}\n", "utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
