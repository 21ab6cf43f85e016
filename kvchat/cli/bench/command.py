"""`kvchat bench`: the measurement that was asked for, or `speed`; its figures as JSON or for a reader."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from kvchat.cli.bench import size, speed
from kvchat.cli.command_runtime import run_until_interrupted
from kvchat.cli.options import BenchOptions


def run(options: BenchOptions) -> int:
    """Measure and print; progress goes to standard error. Returns the exit code. Raises KvchatError."""
    return run_until_interrupted(_run(options))


async def _run(options: BenchOptions) -> int:
    bench: Any = size if options.size else speed
    figures = await bench.measure(options)
    print(json.dumps(dataclasses.asdict(figures)) if options.as_json else "\n".join(bench.lines(figures)))
    return 0
