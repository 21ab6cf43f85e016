"""`python -m tests.bench NAME`: benchmarks for developers, in a kvchat of their own beside the one of KVCHAT_HOME.

`after-restart`: tokens reused after a restart, for the next turn, regenerate, edit and branch. `gateway`: time to
first token at the API server, beside the engine itself and hearth-llm where that is installed. `person`: what a person
waits for who looks and types before Send; with `--part`, a part of it. `shared-prompt`: chats on one system prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from pathlib import Path

from kvchat.cli.options import BenchOptions
from tests.bench import after_restart, gateway, person, shared_prompt


def main() -> None:
    """Measure and print. Raises KvchatError."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("bench", choices=("after-restart", "gateway", "person", "shared-prompt"))
    parser.add_argument("--tokens", type=int, default=BenchOptions.tokens, help="about how long the chat or prompt is")
    parser.add_argument("--chats", type=int, default=20, help="of shared-prompt")
    parser.add_argument("--part", choices=person.PARTS, help="of person; default: all")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--engine", type=Path)
    parser.add_argument("--starter", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    options = BenchOptions(given.model, given.engine, given.starter, given.tokens)
    match given.bench:
        case "after-restart":
            restarted = asyncio.run(after_restart.measure(options))
            report(restarted, after_restart.lines(restarted), given.json)
        case "gateway":
            compared = asyncio.run(gateway.measure(options))
            report(compared, gateway.lines(compared), given.json)
        case "person":
            waited = asyncio.run(person.measure(options, (given.part,) if given.part else person.PARTS))
            report(waited, person.lines(waited), given.json)
        case "shared-prompt":
            shared = asyncio.run(shared_prompt.measure(options, given.chats))
            report(shared, shared_prompt.lines(shared), given.json)


def report(
    figures: after_restart.AfterRestart | gateway.GatewayFigures | person.Person | shared_prompt.SharedPrompt,
    lines: list[str],
    as_json: bool,
) -> None:
    """Print the figures as one JSON object or as lines."""
    print(json.dumps(dataclasses.asdict(figures)) if as_json else "\n".join(lines))


if __name__ == "__main__":
    main()
