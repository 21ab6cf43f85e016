"""`python -m tests.bench NAME`: benchmarks for developers, in a kvchat of their own, printed as JSON.

`after-restart`: tokens reused after a restart, for the next turn, regenerate, edit and branch. `day`: bytes written
to disk by short replies over chats in turn, compared with their rows. `gateway`: time to first token at the API
server, beside the engine itself and hearth-llm where that is installed. `growth`: disk use of many short turns.
`lookup`: questions whose place in a long text is known, and whether it is found. `person`: waits of a person who
looks and types before Send; with `--part`, a part of it. `remote`: chats with the model of another computer over a
slow network, of two namespaces (as root). `shared-prompt`: chats on one system prompt. `size`: a chat of gigabytes,
and the store alone with a generated file beside `cp`; by default with a generated model. `tools`: tokens reused in
rounds of tool calls, and by chats with the same tools.
"""

import argparse
import asyncio

from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import DEFAULT_TOKENS
from kvchat.cli.options import parse_path, parse_size
from kvchat.cli.terminal import to_json
from tests.bench import after_restart, gateway, lookup, person, remote, shared_prompt, size, tools


def main() -> None:
    """Measure and print. Raises KvchatError."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "bench",
        choices=(
            "after-restart",
            "day",
            "gateway",
            "growth",
            "lookup",
            "person",
            "remote",
            "shared-prompt",
            "size",
            "tools",
        ),
    )
    parser.add_argument("--tokens", type=int, help="approximate length of the chat or prompt")
    parser.add_argument("--chats", type=int, default=20, help="of shared-prompt and day")
    parser.add_argument("--turns", type=int, default=40, help="of growth")
    parser.add_argument("--replies", type=int, default=200, help="of day")
    parser.add_argument("--part", choices=person.PARTS, help="of person; default: all")
    parser.add_argument("--size", type=parse_size, default=size.SIZE_BYTES, help="of size: bytes of the generated file")
    parser.add_argument("--model", type=parse_path)
    parser.add_argument("--engine", type=parse_path)
    parser.add_argument("--starter", action="store_true")
    parser.add_argument("--json", action="store_true", help="always on, as with `kvchat bench`")
    given = parser.parse_args()
    tokens = given.tokens or (size.TOKENS if given.bench == "size" else DEFAULT_TOKENS)
    options = BenchOptions(model=given.model, engine=given.engine, starter=given.starter, tokens=tokens)
    match given.bench:
        case "after-restart":
            measuring = after_restart.measure(options)
        case "day":
            measuring = shared_prompt.day(options, given.chats, given.replies)
        case "gateway":
            measuring = gateway.measure(options)
        case "growth":
            measuring = shared_prompt.growth(options, given.turns)
        case "lookup":
            measuring = lookup.measure()
        case "person":
            measuring = person.measure(options, (given.part,) if given.part else person.PARTS)
        case "remote":
            measuring = remote.measure(given.tokens or remote.TOKENS)
        case "shared-prompt":
            measuring = shared_prompt.measure(options, given.chats)
        case "tools":
            measuring = tools.measure(options)
        case _:
            measuring = size.measure(options, given.size)
    print(to_json(asyncio.run(measuring)))


if __name__ == "__main__":
    main()
