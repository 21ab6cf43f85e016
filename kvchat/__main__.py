"""Entry point: parses the command line and starts the app or a command."""

import gc
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Run kvchat with these arguments, by default those of the process, and return the exit code."""
    if argv is not None:
        return _run_arguments(argv)
    flag, rest = sys.argv[1:2], sys.argv[2:]
    # These are started with kvchat's own program if it is frozen: import nothing else for them.
    if flag == ["--parent-guard"]:
        from kvchat.system import parent_guard

        return parent_guard.main(rest)
    if flag == ["--embedded-engine"]:
        from kvchat.engine import embedded

        return embedded.main(rest)
    if flag == ["--extract-text"]:
        from kvchat.chat import extraction

        return extraction.main(rest)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the parent ignores it on purpose
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to clean up during imports
    from kvchat.cli.terminal import install_signal_handlers, run_process

    return run_process(lambda: _run_arguments(sys.argv[1:], install_signal_handlers))


def _run_arguments(arguments: Sequence[str], on_start: Callable[[], None] = lambda: None) -> int:
    """Run kvchat with the given command line. `on_start` is called before the first disk access, which may hang."""
    from kvchat.errors import KvchatError

    try:
        if arguments:
            return _run_command_line(arguments, on_start)
        window = _prepare_window()  # without importing argparse, which is slow
        on_start()
        return window()
    except KvchatError as error:
        print("\n  ".join(filter(None, (f"kvchat: {error.title}", error.detail, error.advice))), file=sys.stderr)
        return 1


def _run_command_line(arguments: Sequence[str], on_start: Callable[[], None]) -> int:
    from kvchat.cli.options import CommandKind, parse
    from kvchat.settings import load_settings
    from kvchat.system.paths import resolve_paths
    from kvchat.text.language import set_language

    on_start()
    reports = arguments[0] in ("bench", "doctor")  # in English, for bug reports
    set_language("en" if reports else load_settings(resolve_paths().settings_file).language)
    first = Path(arguments[0])
    is_openable = arguments[0].startswith(("kvchat:", "file:")) or bool(first.suffix and first.is_file())
    command, options = parse(["open", *arguments] if is_openable else arguments)
    if command.kind is CommandKind.WINDOW:
        targets, quick = getattr(options, "targets", ()), command.name == "quick"
        return _prepare_window(targets, quick=quick, starter=options.starter, hidden=options.hidden)()
    from kvchat.cli.owned import run_command

    return run_command(command, options)


def _prepare_window(
    targets: tuple[str, ...] = (), *, quick: bool = False, starter: bool = False, hidden: bool = False
) -> Callable[[], int]:
    """Return a function that opens the window and returns the exit code.

    The function shows the running window instead if there is one, and explains the problem if Qt would abort for lack
    of a display.
    """
    from kvchat.system.display import find_display_problem

    if (problem := find_display_problem()) is not None:
        from kvchat.cli.owned import explain_missing_window

        return lambda: explain_missing_window(problem.detail, problem.advice, starter=starter)
    from kvchat.system.owner import make_start_request, owner_of
    from kvchat.system.paths import resolve_paths

    paths, request = resolve_paths(), make_start_request(targets, quick=quick)
    if owner_of(paths.data) is not None:
        from kvchat.cli.owned import show_running_window
        from kvchat.errors import KvchatError

        with suppress(KvchatError):  # app.run reports it in a dialog
            if show_running_window(paths, request):
                return lambda: 0
    gc.disable()  # until startup is done, because every collection would scan all imported objects
    import PySide6  # noqa: F401  # loads its support modules

    # PySide would search the source of each imported module for its own name, which takes a sixth of the imports' time:
    # https://code.qt.io/cgit/pyside/pyside-setup.git/tree/sources/shiboken6/shibokenmodule/files.dir/shibokensupport
    if feature := sys.modules.get("PySide6.support.feature"):
        feature._mod_uses_pyside = lambda _module: True  # type: ignore[attr-defined]
    from kvchat import app

    return lambda: app.run(starter=starter, hidden=hidden, request=request)


if __name__ == "__main__":
    sys.exit(main())
