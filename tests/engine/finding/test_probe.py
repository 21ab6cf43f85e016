from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.engine.finding import discovery as probing
from kvchat.engine.finding.discovery import (
    Device,
    EngineEntry,
    EngineKind,
    EngineLocation,
    EngineNotFound,
    EngineTooOld,
    build_number,
    probe,
    take_inventory,
    usable_engine,
)
from tests.engine_fixtures import FakeEngine, make_fake_engine


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
def test_the_build_number(text: str, number: int | None) -> None:
    assert build_number(text) == number


def test_an_engine_is_asked_once_for_each_file(fake_engine: FakeEngine) -> None:
    first = probe(fake_engine.location)
    assert first.options is not None
    assert first.options.find("--slot-save-path") is not None
    assert probe(fake_engine.location) is first
    fake_engine.path.write_text(fake_engine.path.read_text() + "\n")
    assert probe(fake_engine.location) is not first


def test_an_old_engine_is_refused_in_words(fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_VERSION=6000)
    with pytest.raises(EngineTooOld) as refused:
        usable_engine(str(fake_engine.path))
    assert "build 6000" in refused.value.detail
    assert "newer" in refused.value.advice


def test_one_without_a_number_is_judged_by_its_options(fake_engine: FakeEngine) -> None:
    assert usable_engine(str(fake_engine.path))[0] == fake_engine.location
    fake_engine.path.write_text("#!/bin/sh\necho '--model FNAME  x'; echo '--port PORT  x'\n")
    with pytest.raises(EngineTooOld, match="slot-save-path"):
        usable_engine(str(fake_engine.path))


def test_left_to_choose_kvchat_passes_over_what_it_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, old, good = (make_fake_engine(tmp_path / name) for name in ("broken", "old", "good"))
    broken.path.write_text("#!/bin/sh\nexit 1\n")
    old.set(FAKE_VERSION=6000)
    there = [engine.location for engine in (broken, old, good)]
    monkeypatch.setattr(probing, "installed_engines", lambda: there)
    assert usable_engine(None)[0] == good.location
    del there[2]
    with pytest.raises(EngineNotFound):
        usable_engine(None)


@pytest.mark.engine
def test_the_real_llama_server_tells_its_options(real_llama_server: EngineLocation) -> None:
    options = probe(real_llama_server).options
    assert options is not None
    assert options.missing((*probing.NEEDED_OPTIONS, "--kv-unified", "--cache-ram", "--cors-origins")) == frozenset()
    assert len(options.options) > 100


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeEngine, FakeEngine]:
    """An old engine and a good one, found in this order."""
    old, good = (make_fake_engine(tmp_path / name) for name in ("old", "good"))
    old.set(FAKE_VERSION=6000)
    monkeypatch.setattr(probing, "installed_engines", lambda: [old.location, good.location])
    return old, good


def test_each_engine_with_what_it_is_or_what_is_wrong(two: tuple[FakeEngine, FakeEngine]) -> None:
    old, good = take_inventory(None)
    assert (old.chosen, good.chosen) == (False, True)
    assert old.problem is not None
    assert "too old" in old.problem.title
    assert (good.version, good.backends) == ("0 (fake)", ("FAKE",))
    assert good.devices[0].description == "Fake GPU"


def test_the_one_in_the_settings_comes_first_and_is_not_listed_twice(
    two: tuple[FakeEngine, FakeEngine], tmp_path: Path
) -> None:
    other_name = tmp_path / "link"
    other_name.symlink_to(two[1].path)
    entries = take_inventory(str(other_name))
    assert [entry.location.path for entry in entries] == [other_name, two[0].path]
    assert entries[0].chosen
    assert not any(entry.chosen for entry in take_inventory(str(two[0].path)))
    assert len(take_inventory("/nowhere")) == 2


def test_backends_are_told_by_the_devices() -> None:
    devices = tuple(Device(name, "", None, None) for name in ("CUDA0", "CUDA1", "Vulkan0", "CPU"))
    assert EngineEntry(EngineLocation(EngineKind.EMBEDDED), False, devices=devices).backends == (
        "CUDA",
        "Vulkan",
    )
