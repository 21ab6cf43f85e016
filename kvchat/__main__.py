"""The command line: reads the arguments and hands over to the app or to a command."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def main(argv: Sequence[str] | None = None) -> int:
    """Run kvchat with these arguments and return the exit code; without any be the process, with its own, and end it.

    A KvchatError ends as words on standard error and exit code 1.
    """
    if argv is not None:
        return _main(argv)
    child = _child(sys.argv[1:])
    if child is not None:
        return child
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started it wants it deaf
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while all is imported there is nothing to clean up
    from kvchat.cli import process

    return process.run(lambda: _main(sys.argv[1:], process.listen))


def _main(arguments: Sequence[str], ready: Callable[[], None] = lambda: None) -> int:
    """`ready` is called before anything is read from a disk, which may hang."""
    from kvchat.errors import KvchatError

    try:
        if arguments:
            return _asked(arguments, ready)()
        command = _app((), quick=False, starter=False, hidden=False)
        ready()
        return command()
    except KvchatError as error:
        print("\n  ".join(filter(None, (f"kvchat: {error.title}", error.detail, error.advice))), file=sys.stderr)
        return 1


def _asked(arguments: Sequence[str], ready: Callable[[], None]) -> Callable[[], int]:
    """What the arguments ask for. The window alone has none and needs no parser, which takes long to import."""
    from kvchat.cli.arguments import build_parser
    from kvchat.settings import load_settings
    from kvchat.system.paths import resolve_paths
    from kvchat.words.language import speak

    ready()
    reports = arguments[0] in ("bench", "doctor")  # read by who helps as well
    speak("en" if reports else load_settings(resolve_paths().settings_file).language)
    return _command(build_parser().parse_args(["open", *arguments] if _is_to_open(arguments[:1]) else arguments))


def _is_to_open(first: Sequence[str]) -> bool:
    """Whether kvchat was given a link or a file instead of a command, as desktops do."""
    return any(one.startswith(("kvchat:", "file:")) or (Path(one).suffix and Path(one).is_file()) for one in first)


def _child(arguments: list[str]) -> int | None:
    """Be the engine or its guard, if that is what a frozen kvchat was started for. Nothing else is imported then."""
    flag, rest = arguments[:1], arguments[1:]
    if flag == ["--parent-guard"]:
        from kvchat.engine import parent_guard

        return parent_guard.main(rest)
    if flag == ["--embedded-engine"]:
        from kvchat.engine import embedded

        return embedded.main(rest)
    return None


def _command(options: argparse.Namespace) -> Callable[[], int]:
    """Import the command that was asked for, and only that one."""
    from kvchat.cli import arguments
    from kvchat.cli import options as kinds

    match options.command:
        case "ask":
            asked = arguments.ask_options(options)
            if not asked.prompt:
                from kvchat.cli.talk import conversation

                return lambda: conversation.run(asked)
            from kvchat.cli.talk import ask

            return lambda: ask.run(asked)
        case "serve":
            from kvchat.cli.serve import command as serve

            return lambda: serve.run(arguments.filled(kinds.ServeOptions, options))
        case "prepare" | "prepared":
            from kvchat.cli import prepared

            run = prepared.run_prepare if options.command == "prepare" else prepared.run_prepared
            return lambda: run(arguments.filled(kinds.PrepareOptions, options))
        case "bench":
            from kvchat.cli.bench import command

            return lambda: command.run(arguments.bench_options(options))
        case "store":
            from kvchat.cli import store

            return lambda: store.run(arguments.filled(kinds.StoreOptions, options))
        case "engines":
            from kvchat.cli import engines

            return lambda: engines.run(arguments.filled(kinds.EnginesOptions, options))
        case "models":
            from kvchat.cli import models

            return lambda: models.run(arguments.models_options(options))
        case "search":
            from kvchat.cli.chats import search

            return lambda: search.run(" ".join(options.words), as_json=options.as_json)
        case "chats":
            from kvchat.cli.chats import command as chats

            return lambda: chats.run(arguments.filled(kinds.ChatsOptions, options))
        case "settings":
            from kvchat.cli import settings

            return lambda: settings.run(arguments.filled(kinds.SettingsOptions, options))
        case "completion":
            return lambda: _print_completion(options.shell)
        case "export" | "import" | "backup" | "restore" | "repair":
            from kvchat.cli import transfer

            return {
                "export": lambda: transfer.run_export(arguments.export_options(options)),
                "import": lambda: transfer.run_import(options.files, options.passphrase_file),
                "backup": lambda: transfer.run_backup(options.target),
                "restore": lambda: transfer.run_restore(options.source, with_engine=options.with_engine),
                "repair": transfer.run_repair,
            }[options.command]
        case "doctor":
            from kvchat.cli.doctor import command as doctor

            return lambda: doctor.run(as_json=options.as_json, retest=options.retest, model=options.model)
        case _:
            what, quick = tuple(getattr(options, "what", ())), options.command == "quick"
            return _app(what, quick=quick, starter=options.starter, hidden=options.hidden)


def _print_completion(shell: str) -> int:
    """What a shell has to read to complete kvchat's commands and options."""
    import shtab

    from kvchat.cli.arguments import build_parser

    print(shtab.complete(build_parser(), shell))
    return 0


def _app(what: tuple[str, ...], *, quick: bool, starter: bool, hidden: bool) -> Callable[[], int]:
    """The window; where Qt could only abort, words about what is missing, and a chat in the terminal instead.

    A window that is there already is told, before all that one needs is imported.
    """
    from kvchat.cli import no_display

    if (problem := no_display.find_problem()) is not None:
        return lambda: no_display.run(problem, starter=starter)
    from kvchat.cli.owned import show_running_window
    from kvchat.errors import KvchatError
    from kvchat.system.owner import start_request
    from kvchat.system.paths import resolve_paths

    request = start_request(what, quick=quick)
    with suppress(KvchatError):  # said in a box, once there can be one
        if show_running_window(resolve_paths(), request):
            return lambda: 0
    gc.disable()  # until all is imported and made: each pass would go through what stays
    from kvchat import app

    return lambda: app.run(starter=starter, hidden=hidden, request=request)


if __name__ == "__main__":
    sys.exit(main())
