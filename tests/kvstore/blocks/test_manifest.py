"""A manifest says the same after a journey, and nothing that another program wrote into one is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.kvstore.exchange import BadMemory, Manifest, from_json, stored_manifest, to_json
from tests.kvstore.store_bench import HYBRID, WINDOW, Bench, Model


def manifest_of(folder: Path, model: Model) -> Manifest:
    bench = Bench(folder / "store", model)
    for length in (300, 700, 701):
        bench.save("thesis", tuple(range(1, length + 1)))
    manifest = stored_manifest(bench.folder, "thesis")
    assert manifest is not None
    bench.store.close()
    return manifest


@pytest.mark.parametrize("model", [WINDOW, HYBRID])
def test_it_comes_back_from_json(tmp_path: Path, model: Model) -> None:
    manifest = manifest_of(tmp_path, model)
    told = json.loads(json.dumps(to_json(manifest)))
    assert from_json(told) == manifest
    assert sum(len(point["tokens"]) for point in told["points"]) == 701, "what turns share is told once"


Harm = Callable[[dict[str, Any]], object]
POINT: Callable[[dict[str, Any]], dict[str, Any]] = lambda d: d["points"][-1]  # noqa: E731
HARMS: dict[str, Harm] = {
    "not a memory": lambda d: d.update(format="kvchat-conversations"),
    "a newer one": lambda d: d.update(version=2),
    "nothing in it": lambda d: d.update(points=[]),
    "a name that leads elsewhere": lambda d: d["blocks"][0].__setitem__(0, "../../etc/passwd"),
    "a short name": lambda d: d["blocks"][0].__setitem__(0, "ab"),
    "a block without size": lambda d: d["blocks"][0].__setitem__(1, None),
    "a block of a negative size": lambda d: d["blocks"][0].__setitem__(1, -1),
    "a block that nothing needs": lambda d: d["blocks"].append(["ab" * 32, 5]),
    "more shared than there is": lambda d: POINT(d).update(shared=10_000),
    "a token beyond 32 bits": lambda d: d["points"][0]["tokens"].append(1 << 40),
    "a token that is true": lambda d: d["points"][0]["tokens"].append(True),
    "a file without end": lambda d: POINT(d).update(file_size=1 << 60),
    "a file larger than its parts": lambda d: POINT(d).update(file_size=POINT(d)["file_size"] + 1),
    "a part twice": lambda d: POINT(d)["uses"].append(POINT(d)["uses"][0]),
    "a block that is not there": lambda d: POINT(d)["uses"][0].__setitem__(0, 10_000),
    "rows beyond their block": lambda d: POINT(d)["uses"][0].__setitem__(4, 10_000),
    "a place that is half a number": lambda d: POINT(d)["uses"][0].__setitem__(2, 0.5),
    "a part of three numbers": lambda d: POINT(d)["uses"][0].pop(),
    "a region behind the end": lambda d: POINT(d)["row_map"][0][0][0][0].__setitem__(0, 1 << 40),
    "no time at all": lambda d: POINT(d).update(prefill_ms=float("nan")),
    "a message that is a number": lambda d: POINT(d).update(message_id=7),
    "no fingerprint": lambda d: d.pop("fingerprint"),
    "a fingerprint of something else": lambda d: d["fingerprint"].update(colour="red"),
    "a fingerprint of numbers": lambda d: d["fingerprint"].update(model=3),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    return json.dumps(to_json(manifest_of(tmp_path_factory.mktemp("told"), WINDOW)))


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_what_cannot_be_true_is_refused(told: str, harm: Harm) -> None:
    data = json.loads(told)
    harm(data)
    with pytest.raises(BadMemory):
        from_json(data)


@pytest.mark.parametrize("data", [None, [], 7, "x", {}, {"format": "kvchat-memory", "version": 1}])
def test_what_is_something_else_is_refused(data: object) -> None:
    with pytest.raises(BadMemory):
        from_json(data)
