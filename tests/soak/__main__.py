"""`python -m tests.soak [kills N] [turns N] [stores N]`: the long runs, without a word all of them at full length."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from tests.models import tiny_model
from tests.soak import kills, turns

FULL = {"kills": 300, "turns": 2000}


def main() -> None:
    """Run what was asked for; the first fault ends it with a traceback."""
    parser = argparse.ArgumentParser(prog="packaging/soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10_000, help="of everything that is random")
    for name, count in FULL.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{count} at full length")
    asked = parser.parse_args()
    counts = {name: getattr(asked, name) for name in FULL}
    if all(count is None for count in counts.values()):
        counts = dict(FULL)
    print(f"seed {asked.seed}", flush=True)
    model = tiny_model("llama")
    with tempfile.TemporaryDirectory(prefix="kvchat-soak-") as folder:
        for name, count in counts.items():
            if count is None:
                continue
            place = Path(folder) / name
            place.mkdir()
            started = time.monotonic()
            if name == "kills":
                kills.run(place, model, count, asked.seed, _tell)
            else:
                asyncio.run(turns.run(place, model, count, _tell))
            _tell(f"{name} {count}: nothing lost, nothing left, {time.monotonic() - started:.0f} s")


def _tell(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    main()
