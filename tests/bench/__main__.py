"""`python -m tests.bench NAME`: benchmarks for developers, in a kvchat of their own, printed as JSON.

`after-restart`: tokens reused after a restart, for the next turn, regenerate, edit and branch. `size`: a chat of
gigabytes, and the store alone with a generated file beside `cp`; by default with a generated model.
"""

import argparse
import asyncio
from pathlib import Path

from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import TOKENS
from kvchat.cli.options import parse_size
from kvchat.cli.terminal import to_json
from tests.bench import after_restart, size

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("bench", choices=("after-restart", "size"))
    parser.add_argument("--tokens", type=int, help="approximate length of the chat")
    parser.add_argument("--size", type=parse_size, default=size.SIZE_BYTES, help="of size: bytes of the generated file")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--engine", type=Path)
    given = parser.parse_args()
    options = BenchOptions(model=given.model, engine=given.engine, tokens=given.tokens)
    if given.bench == "size":
        measuring = size.measure(options, given.size)
    else:
        measuring = after_restart.measure(options, given.tokens or TOKENS)
    print(to_json(asyncio.run(measuring)))
