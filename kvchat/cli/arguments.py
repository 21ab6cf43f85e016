"""The command line: its commands and options, the values they take, and what was asked for. Does none of it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvchat import __version__
from kvchat.cli import options
from kvchat.cli.options import NoQuestion, byte_count, named_path, positive, setting, standard_input, text
from kvchat.cli.terminal import explain_commands, speak_argparse
from kvchat.engine.finding.graphics import Backend
from kvchat.settings import NAMES as SETTING_NAMES
from kvchat.transfer.exporting import ExportForm
from kvchat.words.language import N_, _

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
SIZE_TOKENS = 16_384  # of the chat of `bench --size`: 2 GB
_CODES = N_(
    "Exit codes: 0 done; 1 not done, or nothing found, or a fault found: standard error says which; 2 the command line"
    " makes no sense; 130 and 143 ended by Ctrl+C or SIGTERM; 141 whoever read the output has left."
)


def build_parser() -> argparse.ArgumentParser:
    """The parser for the whole command line. `command` is None when the app itself is wanted."""
    speak_argparse()
    parser = argparse.ArgumentParser(
        "kvchat", description=_("Chat with your own llama-server, and have it remember."), epilog=_CODES
    )
    parser.add_argument("--version", action="version", version=f"kvchat {__version__}")
    _flag(parser, "--starter", _("without a model, fetch the starter model (98 MB) unasked"))
    _flag(parser, "--hidden", _("start in the tray, without opening the window"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title=_("commands (without one, the window)"))
    commands.add_parser("quick", help=_("the small window to ask something in; to be bound to a key of your desktop's"))
    opened = commands.add_parser("open", help=_("open chats, models, documents and kvchat:// links in the window"))
    _value(
        opened, "what", "FILE", _("without any, the window; before files and links `open` may be left out"), nargs="*"
    )
    _add_ask(commands.add_parser("ask", help=_("ask a question, or have a conversation on the terminal")))
    serve = _(
        "let other programs use the engine, with its memory; prints “ready” and the address, and ends with Ctrl+C"
    )
    _add_serve(commands.add_parser("serve", help=serve))
    _add_prepare(commands)
    _add_bench(commands.add_parser("bench", help=_("measure what save points bring with your own model")))
    _add_store(commands.add_parser("store", help=_("show, prune or verify the save points")))
    _add_engines(commands.add_parser("engines", help=_("list engines, try one out, fetch one for the graphics card")))
    _add_models(commands.add_parser("models", help=_("find models on this machine, search and fetch others")))
    _add_chats(commands.add_parser("chats", help=_("list, show, rename or delete chats")))
    search = commands.add_parser("search", help=_("find words in all chats and what is attached to them"))
    _value(search, "words", "WORDS", _('all of them, or beginnings; "in quotes" as they are'), nargs="+")
    _add_json(search)
    _add_transfer(commands)
    _add_settings(commands.add_parser("settings", help=_("list the settings, look one up, change one")))
    doctor = commands.add_parser("doctor", help=_("show what kvchat found on this machine"))
    _add_json(doctor)
    _value(doctor, "--model", "PATH", _("a GGUF file to judge (default: the one in the settings)"), type=named_path)
    _flag(doctor, "--retest", _("have the next start try out again whether restoring works here"))
    shells = commands.add_parser("completion", help=_("print what makes a shell complete kvchat's commands"))
    shells.add_argument(
        "shell", choices=("bash", "zsh", "tcsh"), help='for ~/.bashrc: eval "$(kvchat completion bash)"'
    )
    explain_commands(parser)
    return parser


def filled(kind: type[T], namespace: argparse.Namespace, **instead: object) -> T:
    """Options with what is on the command line under their fields' names, and `instead` of some of it."""
    told = {field.name: getattr(namespace, field.name, None) for field in fields(kind)} | instead
    given = {name: value for name, value in told.items() if value is not None}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def ask_options(namespace: argparse.Namespace) -> options.AskOptions:
    """The options of `ask`; `-`, or no prompt without a terminal, is read from standard input. Raises NoQuestion."""
    talks = namespace.prompt is None and sys.stdin.isatty() and not namespace.as_json
    prompt = "" if talks else standard_input() if namespace.prompt in (None, "-") else namespace.prompt
    if not talks and not prompt.strip():
        raise NoQuestion(
            _("There is no question"), _("It is empty."), _("Write it behind the command, or - to read it.")
        )
    return filled(options.AskOptions, namespace, prompt=prompt)


def bench_options(namespace: argparse.Namespace) -> options.BenchOptions:
    """The options of `bench`."""
    tokens = namespace.tokens or (options.BenchOptions.tokens if namespace.made_bytes is None else SIZE_TOKENS)
    size, made = namespace.made_bytes is not None, namespace.made_bytes or None
    return filled(options.BenchOptions, namespace, tokens=tokens, size=size, made_bytes=made)


def models_options(namespace: argparse.Namespace) -> options.ModelsOptions:
    """The options of `models`."""
    name = getattr(namespace, "repository", "")
    repository, _, quantisation = (name, "", "") if "://" in name else name.partition(":")
    what = repository or " ".join(getattr(namespace, "words", ()))
    return filled(options.ModelsOptions, namespace, what=what, quantisation=quantisation)


def export_options(namespace: argparse.Namespace) -> options.ExportOptions:
    """The options of `export`."""
    return filled(options.ExportOptions, namespace, form=ExportForm(namespace.form) if namespace.form else None)


def _flag(parser: argparse._ActionsContainer, name: str, words: str, **more: Any) -> None:
    parser.add_argument(name, action="store_true", help=words, **more)


def _value(parser: argparse._ActionsContainer, name: str, metavar: str, words: str, **more: Any) -> None:
    parser.add_argument(name, metavar=metavar, help=words, **{"type": text} | more)


def _add_ask(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    _flag(which, "--new", _("begin a new chat"))
    _value(which, "--chat", "ID", _("go on with this chat (default: the newest)"), dest="chat_id")
    _add_engine(parser)
    begins = parser.add_mutually_exclusive_group()
    _value(begins, "--system", "TEXT", _("system prompt of a new chat"))
    _value(begins, "--on", "NAME", _("begin a new chat on documents that were prepared under that name"))
    _value(parser, "--attach", "FILE", _("a text, PDF or picture; repeatable"), type=Path, action="append", default=[])
    _value(parser, "--max-tokens", "N", _("stop the reply after N tokens"), type=setting("max_tokens", int))
    likeliest = _("0 always takes the likeliest token")
    _value(parser, "--temperature", "T", likeliest, type=setting("temperature", float))
    _value(parser, "--seed", "N", _("seed of the sampling"), type=setting("seed", int))
    _add_json(parser)
    words = _("the question; - reads standard input; without one, a conversation on the terminal")
    _value(parser, "prompt", "PROMPT", words, nargs="?")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _value(parser, "--host", "ADDRESS", _("where to listen (default: 127.0.0.1); any other needs a key"))
    _value(parser, "--port", "N", "default: 8737", type=setting("door_port", int))
    _add_engine(parser)
    _value(parser, "--slots", "N", _("answer up to N requests side by side"), type=setting("slots", int))
    keys = _("a file only you may read; a line is a key, or a program's name, a colon and its key")
    _value(parser, "--key-file", "FILE", keys, type=Path)


def _add_prepare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    prepare = commands.add_parser("prepare", help=_("read documents once, for chats to begin on without reading them"))
    _value(
        prepare, "paths", "PATH", _("files or folders; none: read again what is so called"), type=named_path, nargs="*"
    )
    _value(prepare, "--name", "NAME", _("what it is called in the library"), required=True)
    prepared = commands.add_parser("prepared", help=_("list prepared documents and what they take and save"))
    removal = prepared.add_subparsers(dest="action", metavar="ACTION").add_parser("remove", help=_("forget one"))
    _value(removal, "name", "NAME", _("what it is called"))
    for parser in (prepare, prepared):
        _add_engine(parser)
    _add_json(prepared)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    _add_engine(parser)
    _value(parser, "--tokens", "N", _("length of the chat"), type=positive)
    large = _("measure a chat of gigabytes instead, and the store alone with a made file of that size (2.15GB)")
    _value(parser, "--size", "BYTES", large, dest="made_bytes", type=byte_count, nargs="?", const=0)
    _add_json(parser)


def _add_store(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", title=_("actions (without one, the store is shown)")
    )
    prune = actions.add_parser("prune", help=_("delete the least valuable save points until the rest fits a size"))
    left = _("what may remain: 500MB, 2GB or bytes")
    _value(prune, "--to", "BYTES", left, dest="target_bytes", type=byte_count, required=True)
    _flag(prune, "--dry-run", _("only tell what would be deleted"))
    verify = actions.add_parser("verify", help=_("hash every block again and set bad ones aside"))
    forget = actions.add_parser("forget", help=_("delete the save points of another program"))
    forget.add_argument("program", metavar="PROGRAM", help=_("its name, as the list has it"))
    _add_json(prune, verify, forget, default=argparse.SUPPRESS)  # see --starter


def _add_engines(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title=_("actions (without one, they are listed)"))
    test = actions.add_parser("test", help=_("start one with a small model; save and restore"))
    _value(test, "path", "PATH", _('a llama-server, or "embedded" (default: the one in use)'), type=str, nargs="?")
    get = actions.add_parser("get", help=_("fetch one that uses the graphics card; Ctrl+C pauses, the same goes on"))
    kinds = [backend.value.lower() for backend in Backend]
    get.add_argument(
        "backend", nargs="?", choices=kinds, help=_("what it computes with (default: what suits the card)")
    )
    remove = actions.add_parser("remove", help=_("delete one that was fetched"))
    _value(remove, "name", "NAME", _("its name, as the list has it"))
    _add_json(test, get, remove, default=argparse.SUPPRESS)


def _add_chats(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title=_("actions (without one, they are listed)"))
    show = actions.add_parser("show", help=_("print one as Markdown; with --json all of it, as `export` writes it"))
    rename = actions.add_parser("rename", help=_("give one another title"))
    delete = actions.add_parser("delete", help=_("delete some; for a while the window can have them back"))
    for action, many in ((show, 1), (rename, 1), (delete, "+")):
        _value(action, "chats", "ID", _("as the list has it; its first letters do"), nargs=many)
    _value(rename, "title", "TITLE", _("the new one"))
    _add_json(show, rename, delete, default=argparse.SUPPRESS)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title=_("actions (without one, they are listed)"))
    get, change = actions.add_parser("get", help=_("print one")), actions.add_parser("set", help=_("change one"))
    reset = actions.add_parser("reset", help=_("take what is usual again"))
    for action in (get, change, reset):
        action.add_argument("name", metavar="NAME", choices=SETTING_NAMES, help=_("as the list has it"))
    _value(change, "values", "VALUE", _("a size as 20GB, a list as several values"), nargs="+")
    _add_json(get, change, reset, default=argparse.SUPPRESS)


def _add_models(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    folders = _("look here as well; may be repeated")
    _value(parser, "--folder", "DIR", folders, dest="folders", type=Path, action="append")
    title = _("actions (without one, the models on this machine are listed)")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title=title)
    suggest = actions.add_parser(
        "suggest", help=_("name a few models for this machine; nothing is asked of the network")
    )
    search = actions.add_parser("search", help=_("search Hugging Face"))
    _value(search, "words", "WORDS", _("what the name must contain"), nargs="+")
    files = actions.add_parser("files", help=_("list the models in a repository, with sizes and whether they fit"))
    get = actions.add_parser("get", help=_("fetch a model; Ctrl+C pauses, the same command goes on"))
    _flag(get, "--use", _("make it the model to chat with"))
    use = actions.add_parser("use", help=_("make a model that is here the one to chat with"))
    _value(use, "words", "NAME", _("its name in the list or a part of it, or the path of a GGUF file"), nargs="+")
    for action in (files, get):
        _value(action, "repository", "OWNER/NAME[:QUANT]", _("such as ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"))
    token = actions.add_parser("token", help=_("keep an access token for gated models, read from standard input"))
    _flag(token, "--forget", _("forget it"))
    _add_json(suggest, search, files, use, default=argparse.SUPPRESS)


def _add_json(*parsers: argparse.ArgumentParser, default: object = False) -> None:
    for parser in parsers:
        _flag(parser, "--json", _("print one JSON object instead"), dest="as_json", default=default)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    _value(parser, "--model", "PATH", _("a GGUF file (default: the one in the settings)"), type=named_path)
    _value(parser, "--engine", "PATH", _("a llama-server (default: the one kvchat finds)"), type=named_path)
    # SUPPRESS: without it the subcommand's default would overrule a --starter given before the command.
    _flag(parser, "--starter", _("without a model, fetch the starter model"), default=argparse.SUPPRESS)


def _add_transfer(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    export = commands.add_parser("export", help=_("write chats to a file"))
    _value(export, "target", "FILE", _("where to; its ending says in which form; - is standard output"), type=Path)
    _value(export, "--chat", "ID", _("only this chat"), dest="chat_id")
    forms = _("json: complete, can be imported again; md: Markdown, several as a zip; html: one page")
    export.add_argument("--form", choices=[form.value for form in ExportForm], help=forms)
    _flag(
        export, "--with-memory", _("with what the model has of --chat in memory, to go on elsewhere without reading it")
    )
    take = commands.add_parser("import", help=_("take chats in: kvchat, ChatGPT, Claude, Open WebUI, LM Studio"))
    _value(take, "files", "FILE", _("JSON files, zips, folders, or chats with their memory"), type=Path, nargs="+")
    for one in (export, take):
        _value(
            one,
            "--passphrase-file",
            "FILE",
            _("its first line seals or opens the file; - is standard input"),
            type=Path,
        )
    backup = commands.add_parser("backup", help=_("write chats and settings into one zip"))
    _value(backup, "target", "FILE", _("- is standard output"), type=Path)
    restore = commands.add_parser("restore", help=_("put a backup back; what it replaces is kept beside it"))
    restore.add_argument("source", type=Path, metavar="FILE")
    _flag(restore, "--with-engine", _("also take the engine and its arguments from the backup's settings"))
    words = _("where the chats' file is damaged: keep all that can be read, and what the newest automatic backup has")
    commands.add_parser("repair", help=words)
