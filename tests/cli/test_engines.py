"""`kvchat engines` in this process, with the fake engine."""

import json
from pathlib import Path

import pytest

from kvchat.__main__ import main
from kvchat.engine.discovery.engines import program_name
from kvchat.engine.discovery.graphics import GpuVendor, Graphics
from tests.engine_fixtures import FakeEngine
from tests.library.engine_archives import tarred
from tests.systems import not_on_windows


@pytest.fixture
def home(tmp_path: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "settings.json").write_text(
        json.dumps({"engine_path": str(fake_engine.path), "model_path": str(fake_engine.plan.model)})
    )
    monkeypatch.setenv("KVCHAT_HOME", str(folder))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("kvchat.engine_host.setup.installed_starter", lambda: None)
    return folder


def test_engines_are_listed(home, fake_engine, run_json, run):
    shown = run("engines").out
    assert f"* {fake_engine.path}" in shown
    assert "Fake GPU" in shown
    listed = run_json("engines")
    first = listed["engines"][0]
    assert (first["path"], first["chosen"], first["backends"]) == (str(fake_engine.path), True, ["FAKE"])
    assert listed["advice"]
    assert set(first) == {"kind", "path", "chosen", "version", "build", "backends", "devices", "problem"}
    assert set(first["devices"][0]) == {"name", "description", "total_bytes", "free_bytes"}


def test_an_unusable_engine_is_listed_with_the_reason(home, fake_engine, run):
    fake_engine.set(FAKE_VERSION=6000)
    assert "build 6000" in run("engines", code=1).out


def test_an_engine_is_tested(home, fake_engine, run_json, run):
    assert "Chat memory works" in run("engines", "test").out
    fake_engine.set(FAKE_EXIT_AT_START="1:error loading model")
    result = run_json("engines", "test", str(fake_engine.path), code=1)
    assert (result["works"], result["steps"][-1]["failed"]) == (False, True)
    assert "nowhere does not exist" in run("engines", "test", "/nowhere", code=1).err


@not_on_windows("the driver is named as Linux names it")
def test_an_engine_is_downloaded_used_and_removed(home, fake_engine, github, monkeypatch, run_json, run):
    monkeypatch.setattr("kvchat.engine_host.setup.detect_graphics", lambda: Graphics("linux", (GpuVendor.AMD,)))
    monkeypatch.setattr("kvchat.library.remote.github.builds_for.__defaults__", ("x86_64",))
    archive = tarred({f"llama-b11457/{program_name()}": fake_engine.path.read_bytes()})
    github.releases = {"b11457": {"llama-b11457-bin-ubuntu-vulkan-x64.tar.gz": archive}}
    settings, name = home / "config" / "settings.json", "llama.cpp-b11457-vulkan"
    program = home / "data" / "engines" / name / program_name()

    fake_engine.set(FAKE_NO_GPU=1)
    shown = run("engines", "get", code=1).out
    assert f"from {github.url}/ggml-org/llama.cpp/releases" in shown
    assert "! The engine does not detect the GPU: No Vulkan driver for the GPU was found" in shown
    assert json.loads(settings.read_text())["engine_path"] == str(fake_engine.path), "the old one stays"

    fake_engine.set(FAKE_NO_GPU=None)
    result = run_json("engines", "get", "vulkan")
    assert (result["works"], result["engine"]) == (True, str(program))
    assert json.loads(settings.read_text())["engine_path"] == str(program)
    listed = run_json("engines")
    assert listed["fetched"][0]["name"] == name
    assert (listed["engines"][0]["path"], listed["engines"][0]["chosen"]) == (str(program), True)

    assert "No ROCm engine is available" in run("engines", "get", "rocm", code=1).err
    assert main(["engines", "remove", name]) == 0
    assert not program.exists()
    assert json.loads(settings.read_text())["engine_path"] is None
    assert "No downloaded engine" in run("engines", "remove", name, code=1).err
