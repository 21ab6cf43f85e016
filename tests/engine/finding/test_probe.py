from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.engine.finding import probe as probing
from kvchat.engine.finding.discovery import EngineLocation, EngineNotFound
from kvchat.engine.finding.probe import EngineTooOld, build_number, probe, usable_engine
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
