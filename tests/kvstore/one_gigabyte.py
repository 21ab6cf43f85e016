"""Absorbs and rebuilds a slot file of 1 GB: `python -m tests.kvstore.one_gigabyte FOLDER` prints what that took.

In a process of its own, since only that has a peak of its own. Rows repeat, which the store must not notice.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

from kvchat.kvstore.savepoint import RestorePlan, StagedFile, Tier
from tests.kvstore.store_bench import F16, FINGERPRINT, Bench, Model

TOKENS, MODEL = 8_192, Model(layers=32, row_size=2_048)
_PART = 1 << 20


def main(folder: Path) -> None:
    bench = Bench(folder / "store", MODEL, quota=10**11)
    tokens = tuple(range(1, TOKENS + 1))
    saved = bench.slots / "saved.slot"
    write(saved, tokens)
    size = saved.stat().st_size
    (folder / "original.slot").hardlink_to(saved)
    before = peak_mb()
    point = bench.saver.add(saved, "thesis", FINGERPRINT, tokens, size)
    assert not bench.store.absorb_pending().refused
    absorbed = peak_mb()
    staged = bench.restorer.stage(RestorePlan(point, TOKENS, Tier.DISK, size), bench.slots)
    assert isinstance(staged, StagedFile), staged
    rebuilt = peak_mb()
    exact = same(staged.path, folder / "original.slot")
    bench.restorer.unstage(staged)
    cut = bench.restorer.stage(RestorePlan(point, TOKENS - 100, Tier.DISK, size), bench.slots)
    assert isinstance(cut, StagedFile), cut
    assert cut.n_tokens == TOKENS - 100
    figures = {"absorb_mb": absorbed - before, "rebuild_mb": rebuilt - before, "compose_mb": peak_mb() - before}
    bench.restorer.unstage(cut)
    print(json.dumps(figures | {"size_mb": size / 1e6, "exact": exact}))


def write(path: Path, tokens: tuple[int, ...]) -> None:
    small = Model(layers=MODEL.layers, row_size=0).slot_file(tokens)
    with path.open("wb") as file:
        file.write(small[: -12 * 2 * MODEL.layers])
        for region in range(2 * MODEL.layers):
            file.write(struct.pack("<iQ", F16, MODEL.row_size))
            for start in range(0, TOKENS, 256):
                file.write(struct.pack("<II", region, start) * (256 * MODEL.row_size // 8))


def same(one: Path, other: Path) -> bool:
    with one.open("rb") as a, other.open("rb") as b:
        while part := a.read(_PART):
            if part != b.read(_PART):
                return False
        return not b.read(1)


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


if __name__ == "__main__":
    main(Path(sys.argv[1]))
