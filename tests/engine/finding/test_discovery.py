from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvchat.engine.finding.discovery import (
    Device,
    EngineKind,
    EngineLocation,
    EngineNotFound,
    engine_version,
    find_engine,
    install_places,
    list_devices,
    parse_devices,
    parse_embedded_devices,
)
from tests.engine_fixtures import FakeEngine


def test_the_settings_come_first(fake_engine: FakeEngine) -> None:
    found = find_engine(str(fake_engine.path), search=[], embedded_present=True)
    assert found == EngineLocation(EngineKind.LLAMA_SERVER, fake_engine.path)


def test_the_settings_may_name_the_folder(fake_engine: FakeEngine) -> None:
    assert find_engine(str(fake_engine.path.parent)).path == fake_engine.path


def test_then_the_places_in_their_order(fake_engine: FakeEngine, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "llama-server").symlink_to(fake_engine.path)
    places = [tmp_path / "missing", second, fake_engine.path.parent]
    assert find_engine(None, search=places, embedded_present=True).path == second / "llama-server"


def test_the_settings_may_ask_for_the_embedded_engine(fake_engine: FakeEngine) -> None:
    places = [fake_engine.path.parent]
    assert find_engine("embedded", search=places, embedded_present=True).kind is EngineKind.EMBEDDED
    with pytest.raises(EngineNotFound):
        find_engine("embedded", search=places, embedded_present=False)


def test_what_cannot_be_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "llama-server").write_text("no program")
    found = find_engine(None, search=[tmp_path], embedded_present=True)
    assert found == EngineLocation(EngineKind.EMBEDDED)


def test_without_any_engine_there_is_advice() -> None:
    with pytest.raises(EngineNotFound) as error:
        find_engine(None, search=[], embedded_present=False)
    assert "xllamacpp" in error.value.advice


@pytest.mark.parametrize("kind", ["missing", "folder", "text"])
def test_a_wrong_path_in_the_settings_is_said_not_passed_over(tmp_path: Path, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no program")
    with pytest.raises(EngineNotFound) as error:
        find_engine(str(tmp_path / kind), embedded_present=True)
    assert str(tmp_path / kind) in error.value.detail
    assert error.value.advice


def test_path_comes_before_the_usual_places() -> None:
    places = install_places({"PATH": os.pathsep.join(["/first", "", "/second"])})
    assert places[:2] == [Path("/first"), Path("/second")]
    assert Path("/usr/local/bin") in places[2:]


def test_version_and_devices_of_a_program(fake_engine: FakeEngine) -> None:
    assert engine_version(fake_engine.location) == "version: 0 (fake)"
    assert list_devices(fake_engine.location) == (Device("FAKE0", "Fake GPU", 1 << 30, 1 << 29),)


def test_a_program_that_fails_is_said(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho broken here; exit 3\n")
    program.chmod(0o755)
    with pytest.raises(EngineNotFound, match="broken here"):
        engine_version(EngineLocation(EngineKind.LLAMA_SERVER, program))


def test_devices_as_llama_server_prints_them() -> None:
    text = "Available devices:\n  CUDA0: NVIDIA RTX (x) 4090 (24564 MiB, 23800 MiB free)\n  (none)\n"
    assert parse_devices(text) == (Device("CUDA0", "NVIDIA RTX (x) 4090", 24564 << 20, 23800 << 20),)
    assert parse_devices("Available devices:\n  (none)\n") == ()
    workers = "".join(
        f"  RPC{n}: {at} (24105 MiB, 24105 MiB free)\n" for n, at in enumerate(("den:1", "den:1", "attic:2"))
    )
    assert [device.name for device in parse_devices(workers)] == ["RPC0[den:1]", "RPC1[den:1]", "RPC0[attic:2]"]


def test_devices_as_the_embedded_engine_prints_them() -> None:
    text = 'ggml: a line\n[{"name": "CPU", "description": "EPYC", "memory_free": 1, "memory_total": 2}]\n'
    assert parse_embedded_devices(text) == (Device("CPU", "EPYC", 2, 1),)
    assert parse_embedded_devices("") == parse_embedded_devices("oops") == ()
