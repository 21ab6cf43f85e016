import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from kvchat.engine.process.child import EngineProcess
from kvchat.engine.process.log import EngineLog
from kvchat.system import parent_guard
from tests.engine.waiting import is_alive, until
from tests.systems import not_on_windows

pytestmark = [pytest.mark.slow, not_on_windows("speaks of signals")]


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", "import signal, sys, time, os\n" + code]


async def spawn(command: list[str], *, use_pipe: bool = False) -> tuple[EngineProcess, EngineLog]:
    log = EngineLog()
    return await EngineProcess.spawn(command, dict(os.environ), log, use_pipe=use_pipe), log


async def test_exit_code_and_last_lines() -> None:
    session = "assert os.getsid(0) == os.getpid() != os.getsid(os.getppid())\n"  # Ctrl+C is for the app
    process, log = await spawn(python(session + "print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"))
    outcome = await process.wait()
    assert (outcome.code, outcome.signal) == (3, None)
    assert outcome.last_lines == ("out", "err")
    assert not process.running
    assert (await process.stop()).code == 3
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"  # it keeps the pipe open
    process = await EngineProcess.spawn(python(code), dict(os.environ), log)
    outcome = await process.wait()
    (grandchild,) = outcome.last_lines  # without the lines of the process before
    os.kill(int(grandchild), signal.SIGKILL)
    assert outcome.code == 0


@pytest.mark.parametrize("use_pipe", [False, True])
async def test_stop_kills(use_pipe: bool) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"
    process, log = await spawn(python(code), use_pipe=use_pipe)
    await until(lambda: bool(log.since_start))
    assert (await process.stop()).signal == signal.SIGKILL
    assert not is_alive(int(log.since_start[0]))


@pytest.mark.parametrize("use_pipe", [False, True])
async def test_missing_program(tmp_path: Path, use_pipe: bool) -> None:
    process, _ = await spawn([str(tmp_path / "nothing")], use_pipe=use_pipe)
    outcome = await process.wait()
    assert outcome.code == parent_guard.EXIT_NOT_FOUND
    assert outcome.last_lines[-1].endswith("nothing: not found")
    (tmp_path / "text").write_text("no program")
    process, _ = await spawn([str(tmp_path / "text")])
    assert (await process.wait()).code == parent_guard.EXIT_NOT_EXECUTABLE


APP = """
import asyncio, os, sys
from kvchat.engine.process.log import EngineLog
from kvchat.engine.process.child import EngineProcess
async def main():
    log = EngineLog()
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    await EngineProcess.spawn([sys.executable, "-I", "-S", "-c", code], dict(os.environ), log, use_pipe=BY_PIPE)
    while not log.since_start:
        await asyncio.sleep(0.01)
    print(log.since_start[0], flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("use_pipe", [False, True])
async def test_engine_dies_with_a_killed_app(use_pipe: bool) -> None:
    app_code = APP.replace("BY_PIPE", str(use_pipe))
    app = await asyncio.create_subprocess_exec(sys.executable, "-c", app_code, stdout=asyncio.subprocess.PIPE)
    engine = int(await app.stdout.readline())
    assert is_alive(engine)
    app.kill()
    await app.wait()
    await until(lambda: not is_alive(engine))


async def test_engine_of_dead_parent_does_not_start() -> None:
    command = parent_guard.command(python("print('started')"), use_pipe=False)
    command[command.index("kernel") + 1] = "1"  # not its real parent
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert (output, process.returncode) == (b"", parent_guard.EXIT_PARENT_GONE)


def test_bundle_libraries_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/bundle")
    monkeypatch.setenv("LD_LIBRARY_PATH_ORIG", "/home/lib")
    assert parent_guard.engine_environment("/usr/bin/llama-server")["LD_LIBRARY_PATH"] == "/home/lib"
    assert parent_guard.engine_environment(sys.executable)["LD_LIBRARY_PATH"] == "/bundle"
    assert parent_guard.command(["x"], use_pipe=False)[:2] == [sys.executable, parent_guard.FLAG]
