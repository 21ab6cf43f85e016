"""The command line: reads the arguments and hands over to the app or to a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from kvchat.errors import KvchatError

INTERRUPTED = 130  # 128 + SIGINT, as a shell has it


def main(argv: Sequence[str] | None = None) -> int:
    """Run kvchat with these arguments (default: the process's own) and return the exit code.

    A KvchatError ends as words on standard error and exit code 1, Ctrl+C as 130.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    child = _child(arguments)
    if child is not None:
        return child
    from kvchat.cli.arguments import build_parser
    from kvchat.errors import KvchatError

    options = build_parser().parse_args(arguments)
    try:
        return _dispatch(options)
    except KvchatError as error:
        _print_error(error)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _child(arguments: list[str]) -> int | None:
    """Be the engine or its leash, if that is what a frozen kvchat was started for. Nothing else is imported then."""
    flag, rest = arguments[:1], arguments[1:]
    if flag == ["--leash"]:
        from kvchat.engine import leash

        return leash.main(rest)
    if flag == ["--embedded-engine"]:
        from kvchat.engine import embedded

        return embedded.main(rest)
    return None


def _dispatch(options: argparse.Namespace) -> int:
    """Import the command that was asked for, and only that one, and run it."""
    if options.command == "ask":
        from kvchat.cli import ask
        from kvchat.cli.arguments import ask_options

        return ask.run(ask_options(options))
    if options.command == "bench":
        from kvchat.cli.arguments import bench_options
        from kvchat.cli.bench import command

        return command.run(bench_options(options))
    if options.command == "store":
        from kvchat.cli import store
        from kvchat.cli.arguments import store_options

        return store.run(store_options(options))
    if options.command == "engines":
        from kvchat.cli import engines
        from kvchat.cli.arguments import engines_options

        return engines.run(engines_options(options))
    if options.command == "models":
        from kvchat.cli import models
        from kvchat.cli.arguments import models_options

        return models.run(models_options(options))
    if options.command == "search":
        from kvchat.cli import search

        return search.run(" ".join(options.words), as_json=options.json)
    if options.command in ("export", "import", "backup", "restore"):
        return _keep(options)
    if options.command == "doctor":
        from kvchat.cli import doctor

        return doctor.run(as_json=options.json, retest=options.retest)
    return _run_app(starter=options.starter, hidden=options.hidden)


def _keep(options: argparse.Namespace) -> int:
    from kvchat.cli import keep
    from kvchat.cli.arguments import export_options

    if options.command == "export":
        return keep.run_export(export_options(options))
    if options.command == "import":
        return keep.run_import(options.files)
    return keep.run_backup(options.target) if options.command == "backup" else keep.run_restore(options.source)


def _run_app(*, starter: bool, hidden: bool) -> int:
    """Open the window; where Qt could only abort, say what is missing and chat in the terminal instead."""
    from kvchat.cli import no_display

    problem = no_display.find_problem()
    if problem is not None:
        return no_display.run(problem, starter=starter)
    from kvchat import app

    return app.run(starter=starter, hidden=hidden)


def _print_error(error: KvchatError) -> None:
    """Title, detail and advice, each on its own line."""
    print(f"kvchat: {error.title}", file=sys.stderr)
    for line in filter(None, (error.detail, error.advice)):
        print(f"  {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
