"""Guard that kills the engine and MCP servers when the app ends, even by SIGKILL.

kvchat starts them through this file, which runs as a script and imports nothing of kvchat. On Linux, the engine's guard
asks the kernel to be killed when its parent dies, and then becomes the engine. Elsewhere it runs the engine as a child
and kills it when the pipe from the app closes. On Windows, both are in a job that ends with the guard. An MCP server
needs its standard input itself: its guard watches another pipe, and on Windows the app holds the job.
"""

import os
import signal
import sys
from collections.abc import Sequence

FLAG = "--parent-guard"  # makes a bundled kvchat run as the guard: `kvchat --parent-guard …`
EXIT_NOT_FOUND = 127  # as in shells
EXIT_NOT_EXECUTABLE = 126
EXIT_PARENT_GONE = 125

OPTION_PREFIX = "LLAMA_ARG_"  # of environment variables that set llama-server's options (common/arg.cpp)
_KERNEL_MODE = "kernel"
_PIPE_MODE = "pipe"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_KILL_ON_JOB_CLOSE = 0x2000  # winnt.h: JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
_EXTENDED_LIMIT_INFORMATION = 9  # winnt.h: JobObjectExtendedLimitInformation
_CREATE_NO_WINDOW = 0x08000000  # winbase.h


def command(engine_command: Sequence[str], *, use_pipe: bool, descriptor: int = 0) -> list[str]:
    """Return the command that runs `engine_command` under a guard.

    With `use_pipe`, which is optional on Linux only, the engine ends when the guard's standard input closes. With a
    `descriptor` that the guard inherits, the guard's process group ends when that pipe closes (not on Windows).
    """
    mode = (str(descriptor) if descriptor else _PIPE_MODE) if use_pipe else _KERNEL_MODE
    # -I -S: without site-packages, the script starts in a third of the time.
    this = [sys.executable, FLAG] if getattr(sys, "frozen", False) else [sys.executable, "-I", "-S", __file__]
    return [*this, mode, str(os.getpid()), *engine_command]


def main(arguments: Sequence[str]) -> int:
    """Run the guard with the arguments `MODE PARENT_PID COMMAND…`. On Linux, return only if the start fails."""
    mode, parent, *engine_command = arguments
    try:
        if mode != _KERNEL_MODE:
            return _run_under_pipe(engine_command, 0 if mode == _PIPE_MODE else int(mode))
        import ctypes

        # The kernel kills this process when its parent dies, also after the exec below (prctl(2)).
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != int(parent):  # the parent died before the call of prctl
            return EXIT_PARENT_GONE
        os.execvpe(engine_command[0], engine_command, engine_environment(engine_command[0]))
    except FileNotFoundError:
        print(f"{engine_command[0]}: not found", file=sys.stderr)
        return EXIT_NOT_FOUND
    except OSError as error:
        print(f"{engine_command[0]}: cannot execute: {error}", file=sys.stderr)
        return EXIT_NOT_EXECUTABLE


def join_job(process: int | None = None) -> int:
    """On Windows, put a process (handle; default: this one) and its future children into a job, and return its handle.

    Windows ends all of them when the handle is closed, at the latest when this process ends.
    """
    if sys.platform == "win32":
        import ctypes

        kernel = ctypes.WinDLL("kernel32")
        kernel.CreateJobObjectW.restype = kernel.GetCurrentProcess.restype = ctypes.c_void_p
        job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
        limits = (ctypes.c_uint32 * 36)()  # winnt.h: JOBOBJECT_EXTENDED_LIMIT_INFORMATION, 144 bytes on 64 bits
        limits[4] = _KILL_ON_JOB_CLOSE  # BasicLimitInformation.LimitFlags
        kernel.SetInformationJobObject(job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits))
        kernel.AssignProcessToJobObject(job, ctypes.c_void_p(process or kernel.GetCurrentProcess()))
        return job.value or 0
    return 0


def no_window_flags() -> int:
    """Return flags for `subprocess` that keep Windows from opening a console window."""
    if sys.platform == "win32":
        import ctypes

        return 0 if ctypes.WinDLL("kernel32").GetConsoleWindow() else _CREATE_NO_WINDOW
    return 0


def _run_under_pipe(engine_command: Sequence[str], descriptor: int) -> int:
    """Run the engine as a child and kill it when the pipe ends. Return its exit code."""
    import subprocess  # here, because these two take longer to import than all the rest
    import threading

    # Signals to the process group are for the engine. The guard ends after it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    join_job()
    with subprocess.Popen(
        engine_command,
        stdin=None if descriptor else subprocess.DEVNULL,
        env=engine_environment(engine_command[0]),
        creationflags=no_window_flags(),
    ) as engine:

        def kill_at_end_of_input() -> None:
            while os.read(descriptor, 4096):
                pass
            if descriptor and sys.platform != "win32":
                os.killpg(0, signal.SIGKILL)  # this process too: the server's children are in its group
            engine.kill()

        threading.Thread(target=kill_at_end_of_input, daemon=True).start()
        code = engine.wait()
    if sys.platform == "win32":  # sys.exit takes signed numbers, and makes -1 of larger ones, such as 0xC0000005
        return code - (code >> 31 << 32)
    if code < 0:  # the guard ends by the same signal, which tells kvchat how the engine ended
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def engine_environment(program: str) -> dict[str, str]:
    """Return the environment for `program`: without LLAMA_ARG_* options, and with the user's LD_LIBRARY_PATH.

    Such options, set for another server, would change saved KV caches without a trace in the fingerprint. PyInstaller
    changes LD_LIBRARY_PATH, so that a llama-server would load the bundle's libraries.
    """
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith(OPTION_PREFIX)}
    if getattr(sys, "frozen", False) and program != sys.executable:
        environment.pop("LD_LIBRARY_PATH", None)
        if "LD_LIBRARY_PATH_ORIG" in environment:
            environment["LD_LIBRARY_PATH"] = environment.pop("LD_LIBRARY_PATH_ORIG")
    return environment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
