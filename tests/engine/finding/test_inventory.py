from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.engine.finding import probe as probing
from kvchat.engine.finding.discovery import Device, EngineKind, EngineLocation
from kvchat.engine.finding.probe import EngineEntry, take_inventory
from tests.engine_fixtures import FakeEngine, make_fake_engine


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
