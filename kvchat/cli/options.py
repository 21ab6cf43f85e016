"""Definitions of commands and options, parsers for values, and the parser for the command line."""

import argparse
import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

from kvchat import __version__
from kvchat.errors import KvchatError
from kvchat.settings import MAX_BYTES, MAX_CONTEXT, validation_error
from kvchat.system.files import read_regular_file, run_with_timeout
from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _, format_number

STANDARD_STREAM = Path("-")
MAX_QUESTION_BYTES = 64_000_000  # same as for attachments
MAX_PASSPHRASE_BYTES = 64_000
_SURROGATES = re.compile("[\ud800-\udfff]")  # Python's surrogateescape
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}  # decimal, like all sizes in kvchat

_EXIT_CODES = N_(
    "Exit codes: 0 success; 1 failure, no results or a problem found (see standard error); 2 invalid "
    "command line; 130 and 143 ended by Ctrl+C or SIGTERM; 141 output closed by its reader."
)
_ACTIONS_HEADING = N_("actions (default: list)")
ACTION_HEADINGS = {
    "store": N_("actions (default: show the store)"),
    "engines": _ACTIONS_HEADING,
    "chats": _ACTIONS_HEADING,
    "settings": _ACTIONS_HEADING,
    "models": N_("actions (default: list the models on this machine)"),
    "prepared": _ACTIONS_HEADING,
    "tools": _ACTIONS_HEADING,
    "devices": _ACTIONS_HEADING,
}
# Messages of argparse, listed here for translation.
_ARGPARSE_MESSAGES = (
    *(N_("usage: "), N_("positional arguments"), N_("options"), N_("show this help message and exit")),
    *(N_("show program's version number and exit"), N_("%(prog)s: error: %(message)s\n")),
    *(N_("argument %(argument_name)s: %(message)s"), N_("the following arguments are required: %s")),
    *(N_("unrecognized arguments: %s"), N_("invalid choice: %(value)r (choose from %(choices)s)")),
    *(N_("invalid %(type)s value: %(value)r"), N_("expected one argument"), N_("not allowed with argument %s")),
)


class CommandKind(Enum):
    WINDOW = "window"  # opens the window
    SYNC = "sync"  # a function of the options; only reads data
    ASYNC = "async"  # a coroutine function of the options and the `CommandRunner`; does not use the data folder
    OWNER = "owner"  # like ASYNC, but runs in the process that owns the data folder


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Options:
    """Base class for the options of a command. If an option is None, the settings or the model decide."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def with_input(self) -> Any:
        """Return the options with the input that only this process can read, such as stdin. Raises KvchatError."""
        return self


@dataclass(frozen=True)
class Command:
    kind: CommandKind
    name: str  # as typed: "store prune"
    target: str  # "module:function" in kvchat.cli
    help: str
    options: type[Options]

    def load_function(self) -> Callable[..., Any]:
        module, _colon, name = self.target.partition(":")
        return getattr(importlib.import_module(f"kvchat.cli.{module}"), name)  # type: ignore[no-any-return]


COMMANDS: dict[str, Command] = {}  # by name; filled by `arguments`
_OptionsType = TypeVar("_OptionsType", bound=type[Options])


def _command(kind: CommandKind, name: str, target: str, help: str) -> Callable[[_OptionsType], _OptionsType]:
    def register(options: _OptionsType) -> _OptionsType:
        COMMANDS[name] = Command(kind, name, target, help, options)
        return options

    return register


sync_command, async_command, owner_command = (
    partial(_command, kind) for kind in (CommandKind.SYNC, CommandKind.ASYNC, CommandKind.OWNER)
)
window_command = partial(_command, CommandKind.WINDOW, target="")


# Fields of options classes. `metadata` goes to argparse, except `group`: options of one group exclude each other.


def option(metavar: str | None, help: str, *, name: str = "", **metadata: Any) -> Any:
    default = () if metadata.get("action") == "append" else None
    metadata = {"name": name, "metavar": metavar, "help": help, "type": decode_argument} | metadata
    return field(default=default, metadata=metadata)


def positional(metavar: str | None, help: str, **metadata: Any) -> Any:
    default = {None: "", "?": None}.get(metadata.get("nargs"), ())
    metadata = {"metavar": metavar, "help": help, "type": decode_argument, "default": None} | metadata
    return field(default=default, metadata=metadata)


def flag(help: str, *, name: str = "", **metadata: Any) -> Any:
    return field(default=False, metadata={"name": name, "help": help, "action": "store_true"} | metadata)


# Parsers for values. argparse turns their errors into usage messages.


def parse_token_count(digits: str) -> int:
    value = int(digits)
    if not 1 <= value <= MAX_CONTEXT:
        raise argparse.ArgumentTypeError(
            _("{digits} is not between 1 and {most_context}", digits=digits, most_context=format_number(MAX_CONTEXT))
        )
    return value


def setting_parser(name: str, convert: Callable[[str], float]) -> Callable[[str], float]:
    def number(digits: str) -> float:  # argparse uses this name in "invalid number value"
        value = convert(digits)
        if problem := validation_error(name, value):
            raise argparse.ArgumentTypeError(f"{digits}: {problem}")
        return value

    return number


def decode_argument(argument: str) -> str:
    """Decode an argument as UTF-8 whatever the locale, and replace invalid bytes by U+FFFD."""
    if not _SURROGATES.search(argument):
        return argument
    return os.fsencode(argument).decode("utf-8", "replace")


def parse_path(name: str) -> Path:
    """Parse a path that is stored as text. Reject names that are not UTF-8."""
    if decode_argument(name) != name:
        raise argparse.ArgumentTypeError(
            _("the name {text} is not valid UTF-8; rename the file or folder", text=repr(decode_argument(name)))
        )
    return absolute_path(name)


def absolute_path(name: str) -> Path:
    """Parse a path for the owner of the data folder, which has another working folder."""
    return Path(name).absolute()


def parse_readable_path(name: str) -> Path:
    """Parse the path of a file for the owner of the data folder. Raises KvchatError if reading it would hang there."""
    with contextlib.suppress(OSError):  # reported when the file is read
        try:
            run_with_timeout(Path(name).stat)
        except TimeoutError as error:
            raise KvchatError(_("The file cannot be read"), f"{name}: {error.strerror}.") from error
    return absolute_path(name)


def parse_assignment(text: str) -> str:
    """Parse NAME=VALUE, or NAME for an environment variable of this process, which the owner lacks."""
    text = decode_argument(text)
    return text if "=" in text else f"{text}={os.environ.get(text, '')}"


def parse_size(text: str) -> int:
    """Parse a size such as "2GB", "1.5 gb", "500M" or "1000000" and return it in bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(
            _("{words} is not a valid size; use a form such as 500MB or 2GB", words=repr(text))
        )
    size_bytes = float(match[1]) * _UNITS[match[2].upper()]
    if size_bytes > MAX_BYTES:
        raise argparse.ArgumentTypeError(_("{words} is too large", words=repr(text)))
    return round(size_bytes)


# Input from standard input and files.


def read_question(argument: str | None) -> str:
    """Return the question: the argument or, if that is absent or `-`, standard input. Raises KvchatError."""
    question = _read_standard_input() if argument is None or argument == "-" else argument
    if question.strip():
        return question
    raise KvchatError(
        _("No question was given"),
        _("The text is empty."),
        _("Type the question after the command, or use - to read it from standard input."),
    )


def _read_standard_input() -> str:
    data = sys.stdin.buffer.read(MAX_QUESTION_BYTES + 1) if sys.stdin else b""
    if len(data) > MAX_QUESTION_BYTES:
        raise KvchatError(
            _("The question is too long"),
            _("It is larger than {most_question}.", most_question=format_size(MAX_QUESTION_BYTES)),
            _("Shorten the question."),
        )
    return data.decode("utf-8-sig", "replace").replace("\0", "")


def read_passphrase(file: str) -> str:
    """Return the first line of the file, or of standard input if it is `-`. Raises KvchatError.

    A passphrase is never a command-line option, because other users could see it.
    """
    try:
        if file == str(STANDARD_STREAM):
            text = sys.stdin.readline()
        else:
            text = read_regular_file(Path(file), MAX_PASSPHRASE_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise KvchatError(
            _("The passphrase could not be read"), f"{file}: {error}.", _("Specify a text file.")
        ) from error
    passphrase = text.partition("\n")[0].rstrip("\r")
    if not passphrase:
        raise KvchatError(_("The passphrase is empty"), file, _("Put the passphrase on the first line."))
    return passphrase


def find_command(name: str) -> Command:
    importlib.import_module("kvchat.cli.arguments")  # defines the commands
    return COMMANDS[name]


def parse(arguments: Sequence[str]) -> tuple[Command, Any]:
    if list(arguments[1:2]) == ["list"] and arguments[0] in ACTION_HEADINGS:  # the default, which has no name
        arguments = [arguments[0], *arguments[2:]]
    parsed = vars(build_parser().parse_args(arguments))
    command = COMMANDS[parsed["command"]]
    known = [field.name for field in fields(command.options) if parsed.get(field.name) is not None]
    values = {name: tuple(parsed[name]) if isinstance(parsed[name], list) else parsed[name] for name in known}
    return command, command.options(**values)


def print_completion(options: Any) -> int:
    import shtab

    print(shtab.complete(build_parser(), options.shell))
    return 0


def build_parser() -> argparse.ArgumentParser:
    argparse._ = _  # type: ignore[attr-defined]  # argparse cannot use kvchat's catalogue otherwise: bpo-12711
    parser = argparse.ArgumentParser("kvchat", epilog=_(_EXIT_CODES), argument_default=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"kvchat {__version__}")
    _add_options(parser, find_command(""))
    subparsers = {"": parser.add_subparsers(metavar="COMMAND", title=_("commands (default: open the window)"))}
    for command in filter(lambda command: command.name, COMMANDS.values()):
        parent, _space, name = command.name.rpartition(" ")
        subparser = subparsers[parent].add_parser(name, help=_(command.help), argument_default=argparse.SUPPRESS)
        _add_options(subparser, command)
        if heading := ACTION_HEADINGS.get(command.name):
            subparsers[command.name] = subparser.add_subparsers(metavar="ACTION", title=_(heading))
    return parser


def _add_options(parser: argparse.ArgumentParser, command: Command) -> None:
    parser.description = _(command.help)
    parser.set_defaults(command=command.name)
    groups: dict[str, argparse._ActionsContainer] = {}
    for option in fields(command.options):
        if option.metadata:
            more = dict(option.metadata)
            name, group, help = more.pop("name", None), more.pop("group", None), more.pop("help")
            if group and group not in groups:
                groups[group] = parser.add_mutually_exclusive_group()
            if name is None:
                name = option.name
            else:
                name, more["dest"] = name or f"--{option.name.replace('_', '-')}", option.name
            groups.get(group, parser).add_argument(name, help=_(help), **more)
