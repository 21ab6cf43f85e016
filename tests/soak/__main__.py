"""The long runs: `python -m tests.soak [--kills N] [--turns N] [--stores N] [--chats N] [--steps N] [--gateway S]`.

Without any, all. N: how many; S: for how many seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chat import mutating as damaged_chats
from tests.e2e.home import engine_path
from tests.kvstore import mutating as damaged_stores
from tests.models import tiny_model
from tests.soak import kills, person, programs, turns

FULL = {"kills": 300, "turns": 2000, "stores": 1000, "chats": 1000, "steps": 500, "gateway": 600}


def main() -> None:
    parser = argparse.ArgumentParser(prog="packaging/soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10_000, help="of everything that is random")
    for name, count in FULL.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{count:,} at full length")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # and what it has started ends with it
    counts = {name: getattr(asked, name) for name in FULL}
    if all(count is None for count in counts.values()):
        counts = dict(FULL)
    _tell(f"seed {asked.seed}")
    with tempfile.TemporaryDirectory(prefix="kvchat-soak-") as folder:
        for name, count in counts.items():
            if count:
                started = time.monotonic()
                place = Path(folder) / name
                place.mkdir()
                _run(name, count, place, asked.seed)
                _tell(f"{name} {count:,}: nothing lost, nothing left, {time.monotonic() - started:.0f} s")


def _run(name: str, count: int, place: Path, seed: int) -> None:
    match name:
        case "kills":
            kills.run(place, kinds(), count, seed, _tell)
        case "turns":
            asyncio.run(turns.run(place, tiny_model("llama"), count, _tell))
        case "stores":
            _tell(f"damaged stores: {dict(damaged_stores.run(count, seed))}")
        case "steps":  # that a person makes, with each kind of memory
            for model, slots in itertools.product(("llama", "gemma3", "qwen35"), (1, 2)):
                where = place / f"{model}-{slots}"
                where.mkdir()
                _tell(f"{model}, {slots} side by side")
                program = engine_path("llama-server")
                asyncio.run(person.run(where, tiny_model(model, heeds=True), program, count, seed, _tell, slots))
        case "gateway":
            model = tiny_model("llama", heeds=True)
            asyncio.run(programs.run(place, model, engine_path("llama-server"), count, seed, _tell))
        case _:
            faults = damaged_chats.run(count, seed)
            if faults:
                raise AssertionError("\n".join(faults))


def kinds() -> list[kills.Kind]:
    embedded, server = "embedded", engine_path("llama-server") or ""
    return [
        kills.Kind("plain-embedded", embedded, tiny_model("llama")),
        kills.Kind("plain-server", server, tiny_model("llama")),
        kills.Kind("windows-server", server, tiny_model("gemma3")),
        kills.Kind("hybrid-server", server, tiny_model("qwen35")),
    ]


def _tell(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    main()
