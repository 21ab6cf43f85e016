"""Guard that kills the engine when the app ends, even by SIGKILL.

The engine is started through this file, run as a separate script (stdlib only, a few milliseconds). On Linux it
asks the kernel to be killed when its parent dies and then becomes the engine. Elsewhere it stays as a small parent
that holds a pipe from the app: when the pipe closes, the app is gone and the engine is killed. On Windows both are
in a job that ends with the guard, so that the engine does not outlive the guard either.
"""

import os
import signal
import sys
from collections.abc import Sequence

FLAG = "--parent-guard"  # runs a frozen kvchat as the guard: `kvchat --parent-guard …`
EXIT_NOT_FOUND = 127  # as in shells
EXIT_NOT_EXECUTABLE = 126
EXIT_PARENT_GONE = 125

OPTION_PREFIX = "LLAMA_ARG_"  # llama.cpp's common/arg.cpp: all options can be set in the environment
_KERNEL_MODE = "kernel"
_PIPE_MODE = "pipe"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_KILL_ON_JOB_CLOSE = 0x2000  # winnt.h: JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
_EXTENDED_LIMIT_INFORMATION = 9  # winnt.h: JobObjectExtendedLimitInformation
_CREATE_NO_WINDOW = 0x08000000  # winbase.h


def command(engine_command: Sequence[str], *, use_pipe: bool) -> list[str]:
    """Return the command that runs `engine_command` guarded by this process.

    With `use_pipe`, the caller must hold standard input open. Without it, only Linux has a guard.
    """
    mode = _PIPE_MODE if use_pipe else _KERNEL_MODE
    # -I -S: no site-packages or user paths; this script needs neither and starts in a third of the time.
    this = [sys.executable, FLAG] if getattr(sys, "frozen", False) else [sys.executable, "-I", "-S", __file__]
    return [*this, mode, str(os.getpid()), *engine_command]


def main(arguments: Sequence[str]) -> int:
    """Run `MODE PARENT_PID COMMAND…`; on Linux this returns only when the engine cannot be started."""
    mode, parent, *engine_command = arguments
    try:
        if mode == _PIPE_MODE:
            return _run_under_pipe(engine_command)
        import ctypes

        # Have the kernel kill us when our parent dies. This survives the exec that follows (prctl(2)).
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != int(parent):  # it died before prctl took effect; nobody would kill us
            return EXIT_PARENT_GONE
        os.execvpe(engine_command[0], engine_command, engine_environment(engine_command[0]))
    except FileNotFoundError:
        print(f"{engine_command[0]}: not found", file=sys.stderr)
        return EXIT_NOT_FOUND
    except OSError as error:
        print(f"{engine_command[0]}: cannot execute: {error}", file=sys.stderr)
        return EXIT_NOT_EXECUTABLE


def _join_job() -> None:
    """On Windows, join a job that the engine inherits; the job ends when this process closes the last handle."""
    if sys.platform == "win32":
        import ctypes

        kernel = ctypes.WinDLL("kernel32")
        kernel.CreateJobObjectW.restype = kernel.GetCurrentProcess.restype = ctypes.c_void_p
        job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
        limits = (ctypes.c_uint32 * 36)()  # winnt.h: JOBOBJECT_EXTENDED_LIMIT_INFORMATION, 144 bytes on 64 bits
        limits[4] = _KILL_ON_JOB_CLOSE  # BasicLimitInformation.LimitFlags
        kernel.SetInformationJobObject(job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits))
        kernel.AssignProcessToJobObject(job, ctypes.c_void_p(kernel.GetCurrentProcess()))


def no_window_flags() -> int:
    """Return creation flags that keep Windows from opening a console window for a program."""
    if sys.platform == "win32":
        import ctypes

        return 0 if ctypes.WinDLL("kernel32").GetConsoleWindow() else _CREATE_NO_WINDOW
    return 0


def _run_under_pipe(engine_command: Sequence[str]) -> int:
    """Run the engine as a child; kill it when standard input ends. Return its code."""
    import subprocess  # imported only here: this and `threading` take longer to import than all the rest
    import threading

    # Signals to the group are meant for the engine. This process ends when the engine does.
    for name in ("SIGTERM", "SIGINT", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: None)
    _join_job()
    with subprocess.Popen(
        engine_command,
        stdin=subprocess.DEVNULL,
        env=engine_environment(engine_command[0]),
        creationflags=no_window_flags(),
    ) as engine:

        def kill_at_end_of_input() -> None:
            while os.read(0, 4096):
                pass
            engine.kill()

        threading.Thread(target=kill_at_end_of_input, daemon=True).start()
        code = engine.wait()
    if code < 0:  # die of the same signal to report it to the app
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def engine_environment(program: str) -> dict[str, str]:
    """Return our environment for `program`, with the user's LD_LIBRARY_PATH and without LLAMA_ARG_* options.

    PyInstaller points LD_LIBRARY_PATH into the bundle: an external llama-server would load our libraries. Options set
    for another server, such as LLAMA_ARG_SWA_FULL, would change what a saved KV state means without being recorded.
    """
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith(OPTION_PREFIX)}
    if getattr(sys, "frozen", False) and program != sys.executable:
        environment.pop("LD_LIBRARY_PATH", None)
        if "LD_LIBRARY_PATH_ORIG" in environment:
            environment["LD_LIBRARY_PATH"] = environment.pop("LD_LIBRARY_PATH_ORIG")
    return environment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
