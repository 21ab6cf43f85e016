"""The embedded engine: llama.cpp's server from the xllamacpp package, in a child process.

This file is the child's whole program. It runs as a script, so it imports nothing of kvchat, and it is the only
file that imports xllamacpp: a crash in it must not take the app down.
"""

import functools
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

FLAG = "--embedded-engine"  # runs a frozen kvchat as the engine: `kvchat --embedded-engine JSON`
KEY_VARIABLE = "KVCHAT_ENGINE_KEY"
DEVICES = "--devices"

EXIT_LOAD_FAILED = 70
EXIT_PORT_TAKEN = 71
EXIT_NOT_INSTALLED = 72
EXIT_BAD_ARGUMENTS = 64


def command(argument: str) -> list[str]:
    """Return the child's command line. `argument`: see `main`."""
    if getattr(sys, "frozen", False):
        return [sys.executable, FLAG, argument]
    # -P: do not import a json.py from the current folder.
    return [sys.executable, "-P", __file__, argument]


def main(arguments: Sequence[str]) -> int:
    """Run the server until SIGTERM and return the exit code.

    `arguments` is one item: the parameters as JSON, or `DEVICES`. The engine's log goes to standard error.
    """
    if len(arguments) != 1:
        return _fail(EXIT_BAD_ARGUMENTS, "the embedded engine takes one argument")
    try:
        import xllamacpp
    except ImportError as error:
        return _fail(EXIT_NOT_INSTALLED, f"cannot import xllamacpp: {error}")
    if arguments[0] == DEVICES:
        names = ("name", "description", "memory_free", "memory_total")
        print(json.dumps([{name: device.get(name) for name in names} for device in xllamacpp.get_device_info()]))
        return 0
    try:
        parameters = xllamacpp.CommonParams()
        for name, value in json.loads(arguments[0]).items():
            if name.startswith("cache_type_"):
                value = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{str(value).upper()}")
            *path, field = name.split(".")  # as in `model.path`
            target = functools.reduce(getattr, path, parameters)
            getattr(target, field)  # raises AttributeError if this build lacks it
            setattr(target, field, value)
    except (ValueError, AttributeError, TypeError) as error:
        return _fail(EXIT_BAD_ARGUMENTS, f"invalid argument: {error}")
    parameters.api_keys = [os.environ.pop(KEY_VARIABLE)] if KEY_VARIABLE in os.environ else []
    return _serve(xllamacpp, parameters)


def _serve(xllamacpp: Any, parameters: Any) -> int:
    """Load and serve; quit on the first SIGTERM or SIGINT, at once on the second."""
    host, port = parameters.hostnames[0], parameters.port
    if not _is_free(host, port):
        # llama.cpp's wording, so one log parser fits both engines.
        return _fail(EXIT_PORT_TAKEN, f"couldn't bind HTTP server socket, hostname: {host}, port: {port}")
    # No Python runs during loading, so signals keep their default action: the process exits.
    try:
        server = xllamacpp.Server(parameters)
    except (RuntimeError, ValueError) as error:
        return _fail(EXIT_LOAD_FAILED, str(error))  # llama.cpp logged the reason
    stopping = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            os._exit(1)
        stopping.set()

    for name in ("SIGTERM", "SIGINT", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), on_signal)
    while not stopping.wait(3600.0):  # Windows handles signals only in waits with a limit
        pass
    del server  # finishes the running batch and joins its threads
    return 0


def _is_free(host: str, port: int) -> bool:
    """True if the port is not in use. llama.cpp binds with SO_REUSEADDR, which on Windows succeeds on a port in use."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _fail(code: int, message: str) -> int:
    print(message, file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
