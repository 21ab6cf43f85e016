"""`python -m tests.bench NAME`: benchmarks for developers, in a kvchat of their own beside the one of KVCHAT_HOME.

`after-restart`: tokens reused after a restart, for the next turn, regenerate, edit and branch. `gateway`: time to
first token at the API server, beside the engine itself and hearth-llm where that is installed. `growth`: what many
short turns take on disk. `person`: what a person waits for who looks and types before Send; with `--part`, a part of
it. `shared-prompt`: chats on one system prompt.
`size`: a chat of gigabytes, and the store alone with a made file beside `cp`; by default with a model made for it.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import TOKENS
from kvchat.cli.options import byte_count
from kvchat.cli.terminal import show
from tests.bench import after_restart, gateway, growth, person, shared_prompt, size
from tests.bench.kv_model import write_kv_model


def main() -> None:
    """Measure and print. Raises KvchatError."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("bench", choices=("after-restart", "gateway", "growth", "person", "shared-prompt", "size"))
    parser.add_argument("--tokens", type=int, help="about how long the chat or prompt is")
    parser.add_argument("--chats", type=int, default=20, help="of shared-prompt")
    parser.add_argument("--turns", type=int, default=40, help="of growth")
    parser.add_argument("--part", choices=person.PARTS, help="of person; default: all")
    parser.add_argument("--size", type=byte_count, help="of size: how large the made file is")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--engine", type=Path)
    parser.add_argument("--starter", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tokens = given.tokens or (size.TOKENS if given.bench == "size" else TOKENS)
    options = BenchOptions(model=given.model, engine=given.engine, starter=given.starter, tokens=tokens)
    match given.bench:
        case "after-restart":
            restarted = asyncio.run(after_restart.measure(options))
            show(given.json, restarted, after_restart.lines(restarted))
        case "gateway":
            compared = asyncio.run(gateway.measure(options))
            show(given.json, compared, gateway.lines(compared))
        case "growth":
            grown = asyncio.run(growth.measure(options, given.turns))
            show(given.json, grown, growth.lines(grown))
        case "person":
            waited = asyncio.run(person.measure(options, (given.part,) if given.part else person.PARTS))
            show(given.json, waited, person.lines(waited))
        case "shared-prompt":
            shared = asyncio.run(shared_prompt.measure(options, given.chats))
            show(given.json, shared, shared_prompt.lines(shared))
        case "size":
            with tempfile.TemporaryDirectory() as folder:
                model = given.model or write_kv_model(Path(folder) / "kv.gguf")
                sized = BenchOptions(model=model, engine=given.engine, tokens=tokens)
                result = asyncio.run(size.measure(sized, given.size))
            show(given.json, result, size.lines(result))


if __name__ == "__main__":
    main()
