"""`kvchat bench`: the measurement that was asked for, or `speed`."""

from __future__ import annotations

from kvchat.cli.bench import after_restart, shared_prompt, size, speed
from kvchat.cli.command_runtime import run_until_interrupted
from kvchat.cli.grammar.options import BenchOptions


def run(options: BenchOptions) -> int:
    """Measure and print; progress goes to standard error. Returns the exit code. Raises KvchatError."""
    if options.chats:
        return run_until_interrupted(shared_prompt.run(options))
    if options.size:
        return run_until_interrupted(size.run(options))
    if options.after_restart:
        return run_until_interrupted(after_restart.run(options))
    return run_until_interrupted(speed.run(options))
