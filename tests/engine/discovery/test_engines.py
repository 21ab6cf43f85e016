import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.engine.discovery import engines as probing
from kvchat.engine.discovery.engines import (
    Device,
    EngineLocation,
    EngineNotFound,
    EngineTooOld,
    build_number,
    find_engine,
    list_devices,
    list_engines,
    parse_devices,
    parse_embedded_devices,
    probe,
    search_folders,
    usable_engine,
)
from kvchat.errors import KvchatError
from tests.engine_fixtures import FakeEngine, make_fake_engine, make_program
from tests.systems import needs_links, needs_scripts


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the folders that are searched, and whether the embedded engine is installed."""

    def has(*places: Path, embedded: bool = True) -> None:
        monkeypatch.setattr(probing, "search_folders", lambda: places)
        monkeypatch.setattr(probing.importlib.util, "find_spec", lambda name: embedded or None)

    return has


@needs_links
def test_search_order(
    machine: Callable[..., None], fake_engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(second), "", "/second"]))
    assert search_folders()[:2] == [second, Path("/second")]
    assert Path("/usr/local/bin") in search_folders()
    (second / "llama-server").symlink_to(fake_engine.path)
    machine(tmp_path / "missing", second, fake_engine.path.parent)
    assert find_engine(None).path == second / "llama-server"
    for named in (fake_engine.path, fake_engine.path.parent):
        assert find_engine(str(named)) == EngineLocation(fake_engine.path)
    assert find_engine("embedded") == EngineLocation()
    (tmp_path / "llama-server").write_text("no program")
    machine(tmp_path)
    assert find_engine(None) == EngineLocation(), "what cannot be run is passed over"
    machine(fake_engine.path.parent, embedded=False)
    with pytest.raises(EngineNotFound) as error:
        find_engine("embedded")
    assert "xllamacpp" in error.value.advice
    (tmp_path / "text").write_text("no program")
    (tmp_path / "empty").mkdir()
    for wrong in ("missing", "empty", "text"):
        with pytest.raises(EngineNotFound) as error:
            find_engine(str(tmp_path / wrong))
        assert str(tmp_path / wrong) in error.value.detail
        assert error.value.advice


def test_version_and_devices(fake_engine: FakeEngine, tmp_path: Path) -> None:
    assert probe(fake_engine.location).version == "0 (fake)"
    assert list_devices(fake_engine.location) == (Device("FAKE0", "Fake GPU", 1 << 30, 1 << 29),)
    program = make_program(tmp_path / "llama-server", "print('broken here'); raise SystemExit(3)")
    with pytest.raises(EngineNotFound, match="broken here"):
        probe(EngineLocation(program))


@needs_scripts
def test_rpc_servers_that_do_not_respond_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: str, *workers: str) -> str:
        with pytest.raises(KvchatError) as error:
            list_devices(EngineLocation(make_program(tmp_path / "llama-server", code)), workers)
        return error.value.detail

    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("127.0.0.1", 0)) as gone:
        worker, absent = (f"127.0.0.1:{server.getsockname()[1]}" for server in (here, gone))
        gone.close()
        devices = make_program(tmp_path / "devices", f"print('  RPC0: {worker} (8 MiB, 4 MiB free)')")
        assert list_devices(EngineLocation(devices), [worker]) == (Device(f"RPC0[{worker}]", worker, 8 << 20, 4 << 20),)
        unreachable = refuse("", worker, absent, "no..host:1")
        assert unreachable == (
            f"There is no response from the RPC server {absent}. There is no response from the RPC server no..host:1."
        )
        lost = "import sys; sys.exit('/src/ggml-rpc.cpp:547: Failed to connect to den:50052')"
        assert refuse(lost, worker) == "There is no response from the RPC server den:50052."
        assert refuse("import sys; sys.exit('RPC not supported')", worker).endswith("servers: RPC not supported")
        monkeypatch.setattr(probing, "_WORKERS_TIMEOUT_S", 0.2)
        assert f"The RPC server {worker} does not answer." in refuse("import time; time.sleep(60)", worker)


def test_device_lists_are_parsed() -> None:
    text = "Available devices:\n  CUDA0: NVIDIA RTX (x) 4090 (24564 MiB, 23800 MiB free)\n  (none)\n"
    assert parse_devices(text) == (Device("CUDA0", "NVIDIA RTX (x) 4090", 24564 << 20, 23800 << 20),)
    assert parse_devices("Available devices:\n  (none)\n") == ()
    (software,) = parse_devices("  Vulkan0: llvmpipe (LLVM 19.1.7, 256 bits) (24105 MiB, 22380 MiB free)\n")
    assert software.label == "llvmpipe (LLVM 19.1.7, 256 bits) (software, slow)"
    workers = "".join(
        f"  RPC{n}: {at} (24105 MiB, 24105 MiB free)\n" for n, at in enumerate(("den:1", "den:1", "attic:2"))
    )
    assert [device.name for device in parse_devices(workers)] == ["RPC0[den:1]", "RPC1[den:1]", "RPC0[attic:2]"]
    text = 'ggml: a line\n[{"name": "CPU", "description": "EPYC", "memory_free": 1, "memory_total": 2}]\n'
    assert parse_embedded_devices(text) == (Device("CPU", "EPYC", 2, 1),)
    assert parse_embedded_devices("") == parse_embedded_devices("oops") == ()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("version: 0.6.0-dev (build 11434, commit abc)", 11434),
        ("version: 6451 (1a2b3c4)\nbuilt with cc", 6451),
        ("b11549-0123abc", 11549),
        ("version: 0.6.0-dev (build 0, commit unknown)", None),
        ("version: 1 (unknown)", None),
        ("something else", None),
    ],
)
def test_build_number(text: str, number: int | None) -> None:
    assert build_number(text) == number


@needs_scripts
def test_probe_is_cached_by_file(fake_engine: FakeEngine) -> None:
    first = probe(fake_engine.location)
    assert first.options.find("--slot-save-path") is not None
    assert probe(fake_engine.location) is first
    fake_engine.path.write_text(fake_engine.path.read_text() + "\n")
    assert probe(fake_engine.location) is not first


@needs_scripts
def test_old_engine_is_refused(fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_VERSION=6000)
    with pytest.raises(EngineTooOld) as refused:
        usable_engine(str(fake_engine.path))
    assert "build 6000" in refused.value.detail
    assert "newer" in refused.value.advice
    fake_engine.path.write_text("#!/bin/sh\necho '--model FNAME  x'; echo '--port PORT  x'\n")
    with pytest.raises(EngineTooOld, match="slot-save-path"):  # without a build number, its options decide
        usable_engine(str(fake_engine.path))


def test_unusable_engines_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, old, good = (make_fake_engine(tmp_path / name) for name in ("broken", "old", "good"))
    broken.path.write_text("#!/bin/sh\nexit 1\n")
    old.set(FAKE_VERSION=6000)
    locations = [engine.location for engine in (broken, old, good)]
    monkeypatch.setattr(probing, "installed_engines", lambda: locations)
    assert usable_engine(None).location == good.location
    del locations[2]
    with pytest.raises(EngineNotFound):
        usable_engine(None)


@pytest.mark.engine
def test_options_of_real_llama_server(real_llama_server: EngineLocation) -> None:
    options = probe(real_llama_server).options
    assert options.missing((*probing.REQUIRED_OPTIONS, "--kv-unified", "--cache-ram", "--cors-origins")) == frozenset()
    assert len(options.options) > 100


@needs_links
def test_list_of_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_engine, good_engine = (make_fake_engine(tmp_path / name) for name in ("old", "good"))
    old_engine.set(FAKE_VERSION=6000)
    monkeypatch.setattr(probing, "installed_engines", lambda: [old_engine.location, good_engine.location])
    old, good = list_engines(None)
    assert (old.is_in_use, good.is_in_use) == (False, True)
    assert "too old" in old.problem.title
    assert (good.version, good.backends) == ("0 (fake)", ("FAKE",))
    assert good.devices[0].description == "Fake GPU"
    other_name = tmp_path / "link"
    other_name.symlink_to(good_engine.path)
    entries = list_engines(str(other_name))
    assert [(entry.location.path, entry.is_in_use) for entry in entries] == [
        (other_name, True),
        (old_engine.path, False),
    ]
    assert not any(entry.is_in_use for entry in list_engines(str(old_engine.path)))
    assert len(list_engines("/nowhere")) == 2
