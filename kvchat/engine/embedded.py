"""The embedded engine: llama.cpp's server from the xllamacpp package, in a child process.

The child runs this file as a script, without importing kvchat. No other file imports xllamacpp, whose crashes must not
end the app.
"""

import functools
import importlib.util
import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

FLAG = "--embedded-engine"  # makes a bundled kvchat run as the engine: `kvchat --embedded-engine JSON`
KEY_VARIABLE = "KVCHAT_ENGINE_KEY"
DEVICES_ARGUMENT = "--devices"  # argument that prints the devices as JSON

EXIT_LOAD_FAILED = 70
EXIT_PORT_TAKEN = 71
EXIT_NOT_INSTALLED = 72
EXIT_BAD_ARGUMENTS = 64


def command(argument: str) -> list[str]:
    if getattr(sys, "frozen", False):
        return [sys.executable, FLAG, argument]
    # -P: do not import a json.py from the current folder.
    return [sys.executable, "-P", __file__, argument]


def main(arguments: Sequence[str]) -> int:
    """Run the server until it is killed; return an exit code if it cannot start.

    The only argument is a JSON object with xllamacpp's parameters, or `DEVICES_ARGUMENT`.
    """
    if len(arguments) != 1:
        return _fail(EXIT_BAD_ARGUMENTS, "the embedded engine takes one argument")
    qt = importlib.util.find_spec("shiboken6")
    if sys.platform == "win32" and qt is not None and qt.submodule_search_locations:
        # It contains Microsoft's C++ and OpenMP libraries, which llama.cpp needs and not every Windows has.
        os.add_dll_directory(qt.submodule_search_locations[0])
    try:
        import xllamacpp
    except ImportError as error:
        return _fail(EXIT_NOT_INSTALLED, f"cannot import xllamacpp: {error}")
    if arguments[0] == DEVICES_ARGUMENT:
        names = ("name", "description", "memory_free", "memory_total")
        print(json.dumps([{name: device.get(name) for name in names} for device in xllamacpp.get_device_info()]))
        return 0
    try:
        parameters = xllamacpp.CommonParams()
        for name, value in json.loads(arguments[0]).items():
            if name.startswith("cache_type_"):
                value = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{str(value).upper()}")
            *path, field = name.split(".")  # such as `model.path`
            target = functools.reduce(getattr, path, parameters)
            getattr(target, field)  # raises AttributeError for a parameter that this version lacks
            setattr(target, field, value)
    except (ValueError, AttributeError, TypeError) as error:
        return _fail(EXIT_BAD_ARGUMENTS, f"invalid argument: {error}")
    parameters.api_keys = [os.environ.pop(KEY_VARIABLE)] if KEY_VARIABLE in os.environ else []
    return _serve(xllamacpp, parameters)


def _serve(xllamacpp: Any, parameters: Any) -> int:
    """Load the model and serve; return an exit code if that fails."""
    host, port = parameters.hostnames[0], parameters.port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # llama.cpp binds with SO_REUSEADDR, which on Windows succeeds even if another program uses the port.
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        try:
            probe.bind((host, port))
        except OSError:  # with llama.cpp's words, which kvchat looks for in the log
            return _fail(EXIT_PORT_TAKEN, f"couldn't bind HTTP server socket, hostname: {host}, port: {port}")
    try:
        _server = xllamacpp.Server(parameters)  # serves in threads of its own as long as it is referenced
    except (RuntimeError, ValueError) as error:
        return _fail(EXIT_LOAD_FAILED, str(error))
    threading.Event().wait()
    return 0


def _fail(code: int, message: str) -> int:
    print(message, file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
