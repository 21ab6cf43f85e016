"""Soak tests: `python -m tests.soak [--kills N] [--turns N] [--stores N] [--chats N] [--steps N] [--gateway S]`.

By default all. N: count; S: seconds.
"""

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
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10_000, help="seed of all random choices")
    for name, count in FULL.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{count:,} at full length")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # its children end with it
    counts = {name: getattr(options, name) for name in FULL}
    if all(count is None for count in counts.values()):
        counts = dict(FULL)
    _report(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="kvchat-soak-") as folder:
        for name, count in counts.items():
            if count:
                started = time.monotonic()
                part_folder = Path(folder) / name
                part_folder.mkdir()
                _run(name, count, part_folder, options.seed)
                _report(f"{name} {count:,}: nothing lost, nothing left, {time.monotonic() - started:.0f} s")


def _run(name: str, count: int, part_folder: Path, seed: int) -> None:
    match name:
        case "kills":
            kills.run(part_folder, kinds(), count, seed, _report)
        case "turns":
            asyncio.run(turns.run(part_folder, tiny_model("llama"), count, _report))
        case "stores":
            _report(f"damaged stores: {dict(damaged_stores.run(count, seed))}")
        case "steps":  # of a person, with each kind of memory
            for model, slots in itertools.product(("llama", "gemma3", "qwen35"), (1, 2)):
                home = part_folder / f"{model}-{slots}"
                home.mkdir()
                _report(f"{model}, {slots} slots")
                engine = engine_path("llama-server")
                asyncio.run(person.run(home, tiny_model(model, heeds=True), engine, count, seed, _report, slots))
        case "gateway":
            model = tiny_model("llama", heeds=True)
            asyncio.run(programs.run(part_folder, model, engine_path("llama-server"), count, seed, _report))
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


def _report(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
