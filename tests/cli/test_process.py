"""Signals, exit codes and standard streams of the kvchat process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvchat.system.paths import resolve_paths
from tests.systems import not_on_windows

pytestmark = [pytest.mark.slow, not_on_windows("uses POSIX signals and pipes")]

# kvchat on a computer where every access below /dead hangs, as in a lost network folder. The main thread does not even
# receive signals there.
DEAD = """
import os, signal, sys, threading, time
import kvchat.system.files
kvchat.system.files.ACCESS_TIMEOUT_S = float(sys.argv.pop(1))
def hanging(real):
    def call(path, *rest, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith("/dead"):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            print("hangs", file=sys.stderr, flush=True)
            while True:
                time.sleep(1000)
        return real(path, *rest, **options)
    return call
for name in ("stat", "lstat", "open", "mkdir", "access", "listdir", "scandir"):
    setattr(os, name, hanging(getattr(os, name)))
"""
COMMAND = DEAD + "from kvchat.__main__ import main; main()"
WINDOW = (
    DEAD
    + """
from pathlib import Path
from kvchat.__main__ import main
from kvchat.ui.app.main_window import MainWindow
async def start(self, begin=MainWindow.start):
    await begin(self)
    self.attachments.load_files([Path("/dead/a.txt")])
MainWindow.start = start
main()
"""
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"KVCHAT_HOME": str(tmp_path / "home")}


@contextmanager
def run_hanging(
    *arguments: str, patience_s: float, environment: dict[str, str], script: str = COMMAND
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, str(patience_s), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, encoding="utf-8"
    ) as process:
        try:
            yield process
        finally:
            process.kill()


READS = [
    ("ask", "--new", "--model", "/dead/m.gguf", "--attach", "/dead/a.txt", "Hello"),
    ("import", "/dead/a.json"),
    ("restore", "/dead/b.zip"),
    ("export", "/dead/c.json"),
]


@pytest.mark.parametrize("command", READS, ids=lambda command: command[0])
def test_a_hung_folder_is_given_up(command, environment):
    with run_hanging(*command, patience_s=0.2, environment=environment) as process:
        _, errors = process.communicate()
    assert process.returncode == 1
    assert "No response for" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", [*READS, ("store",)], ids=lambda command: command[0])
def test_a_signal_ends_the_process_whatever_hangs(command, number, environment):
    home = {"KVCHAT_HOME": "/dead/home"} if command == ("store",) else {}  # the main thread itself hangs
    with run_hanging(*command, patience_s=100_000, environment=environment | home) as process:
        assert process.stderr.readline() == "hangs\n"
        process.send_signal(number)
        assert process.wait() == 128 + number
        assert "Traceback" not in process.stderr.read()


def test_a_signal_that_breaks_a_lock_still_counts(environment):
    """A signal between two steps of a lock of `threading` ends in a RuntimeError."""
    script = """
from kvchat.cli.terminal import SignalReceived, run_process
def main():
    try:
        raise SignalReceived(15)
    finally:
        raise RuntimeError("release unlocked lock")
run_process(main)
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, b"")


def test_the_window_quits_while_a_file_hangs(environment):
    offscreen = environment | {"QT_QPA_PLATFORM": "offscreen"}
    with run_hanging(patience_s=100_000, environment=offscreen, script=WINDOW) as process:
        while (line := process.stderr.readline()) and line != "hangs\n":
            pass
        assert line
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.parametrize("name", ["settings.json", "attachment", "model"])
def test_reading_a_pipe_does_not_hang(name, environment, tmp_path):
    pipe = resolve_paths(environment).settings_file if name == "settings.json" else tmp_path / name
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    command = {
        "settings.json": ["store"],
        "attachment": ["ask", "--new", "--model", "any.gguf", "--attach", str(pipe), "Hello"],
        "model": ["ask", "--new", "--model", str(pipe), "Hello"],
    }[name]
    done = kvchat(*command, environment=environment)
    assert done.returncode == (0 if name == "settings.json" else 1)
    assert b"Traceback" not in done.stderr
    if name != "settings.json":
        assert b"pipe, not a" in done.stderr


def kvchat(*arguments: str, environment: dict[str, str], **streams: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "kvchat", *arguments]
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(command, env=environment, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("command", [("store",), ("store", "--json"), ("export", "-"), ("--version",)])
def test_output_that_cannot_be_written_is_reported(command, environment):
    with Path("/dev/full").open("wb") as full:
        done = kvchat(*command, environment=environment, stdout=full)
    assert done.returncode == 1
    assert done.stderr == b"kvchat: The output could not be written\n  No space left on device.\n"


def test_a_closed_output_pipe_is_silent(environment):
    read, write = os.pipe()
    os.close(read)
    done = kvchat("store", environment=environment, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("closed", range(3))
def test_closed_streams_are_never_reused_for_files(closed, environment):
    script = f'exec {closed}{"<" if closed == 0 else ">"}&-; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "kvchat", "search", "nothing", "--json"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1  # nothing found, or nothing printed
    assert b"Traceback" not in done.stderr
    assert (b'"chats": []' in done.stdout) == (closed != 1)
    for file in resolve_paths(environment).data.rglob("*"):
        assert b'"chats"' not in file.read_bytes()


def test_a_missing_standard_input_is_empty(environment):
    """Simulate pythonw on Windows, where opening a file leaves the closed descriptors 0 to 2 invalid."""
    script = """
import fcntl, os, sys
real_open = os.open
def open_above_2(*arguments, **options):
    number = real_open(*arguments, **options)
    moved = fcntl.fcntl(number, fcntl.F_DUPFD, 3)
    os.close(number)
    return moved
os.open = open_above_2
from kvchat.cli.terminal import run_process
run_process(lambda: print(sys.stdin.read() == "") or 0)
"""
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"True\n"), done.stderr.decode()


def test_ctrl_c_during_imports_prints_no_traceback(environment, tmp_path):
    """A module sends the signal while it is imported: the first of all, and one among others."""
    for name in ("argparse", "httpx2", "sqlite3"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(
            "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(60)\n"
        )
        done = kvchat(
            "ask",
            "Hello",
            environment=environment | {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        )
        assert done.returncode in (-signal.SIGINT, 130)
        assert done.stderr == b""


def test_an_invalid_token_prints_no_traceback(environment):
    with Path("/dev/zero").open("rb") as zeros:
        done = kvchat("models", "token", environment=environment, stdin=zeros)
    assert (done.returncode, b"Traceback" in done.stderr) == (1, False)


def test_a_signal_between_two_waits_is_forwarded():
    busy = """
import os, random, signal, sys, threading, time
from multiprocessing import Pipe
from kvchat.cli import owned, terminal
owned._POLL_INTERVAL_S = 0.0005  # the wait ends all the time
sys.setswitchinterval(0.0001)
def occupy():
    while True: sum(range(300))
threading.Thread(target=occupy, daemon=True).start()
terminal.install_signal_handlers()
for _ in range(60):
    terminal.set_signal_handler(None)
    signal.signal(signal.SIGINT, terminal._handle_signal)
    ours, theirs = Pipe()
    received = []
    def own(theirs, received):
        theirs.recv()
        while terminal._signal_handler is None: time.sleep(0.001)
        time.sleep(random.random() / 100)
        os.kill(os.getpid(), signal.SIGINT)
        received.append(theirs.recv())
        theirs.send(("done", 0))
        received.append(theirs.recv())
        theirs.close()
    threading.Thread(target=own, args=(theirs, received), daemon=True).start()
    assert owned.run_client(ours, "x", None) == 0
    assert received[:1] == [("end", 130)], received
print("done", flush=True)
os._exit(0)
"""
    ended = subprocess.run([sys.executable, "-c", busy], capture_output=True, check=False)
    assert (ended.stdout, ended.returncode) == (b"done\n", 0), ended.stderr.decode()
