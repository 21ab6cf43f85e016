"""Invalid manifests are refused; `tests/transfer` has the valid ones."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvchat.kvstore.exchange import BadMemory, manifest_from_json, manifest_to_json, stored_manifest
from tests.kvstore.store_bench import WINDOW, Bench, token_range

Change = Callable[[dict[str, Any]], object]
POINT: Callable[[dict[str, Any]], dict[str, Any]] = lambda d: d["points"][-1]  # noqa: E731
CHANGES: dict[str, Change] = {
    "not a memory": lambda d: d.update(format="kvchat-conversations"),
    "a newer one": lambda d: d.update(version=2),
    "nothing but the format": lambda d: [d.pop(name) for name in ("blocks", "points", "fingerprint")],
    "nothing in it": lambda d: d.update(points=[]),
    "a name that leads elsewhere": lambda d: d["blocks"][0].__setitem__(0, "../../etc/passwd"),
    "a block without size": lambda d: d["blocks"][0].__setitem__(1, None),
    "a block that nothing needs": lambda d: d["blocks"].append(["ab" * 32, 5]),
    "more shared than there is": lambda d: POINT(d).update(shared=10_000),
    "a token beyond 32 bits": lambda d: d["points"][0]["tokens"].append(1 << 40),
    "a file larger than its parts": lambda d: POINT(d).update(file_size=POINT(d)["file_size"] + 1),
    "a part twice": lambda d: POINT(d)["uses"].append(POINT(d)["uses"][0]),
    "a block that is not there": lambda d: POINT(d)["uses"][0].__setitem__(0, 10_000),
    "rows beyond their block": lambda d: POINT(d)["uses"][0].__setitem__(4, 10_000),
    "a place that is half a number": lambda d: POINT(d)["uses"][0].__setitem__(2, 0.5),
    "a region behind the end": lambda d: POINT(d)["row_map"][0][0][0][0].__setitem__(0, 1 << 40),
    "no time at all": lambda d: POINT(d).update(prefill_ms=float("nan")),
    "a message that is a number": lambda d: POINT(d).update(message_id=7),
    "a fingerprint of something else": lambda d: d["fingerprint"].update(colour="red"),
    "a fingerprint of numbers": lambda d: d["fingerprint"].update(model=3),
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> str:
    bench = Bench(tmp_path_factory.mktemp("manifest") / "store", WINDOW)
    for length in (300, 700, 701):
        bench.save("thesis", token_range(length))
    manifest = stored_manifest(bench.folder, "thesis")
    assert manifest is not None
    bench.store.close()
    return json.dumps(manifest_to_json(manifest))


def test_shared_tokens_are_written_once(valid: str) -> None:
    assert sum(len(point["tokens"]) for point in json.loads(valid)["points"]) == 701


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_invalid_manifests_are_refused(valid: str, change: Change) -> None:
    data = json.loads(valid)
    change(data)
    for invalid in (data, [data], None):
        with pytest.raises(BadMemory):
            manifest_from_json(invalid)
