"""The command line's grammar, and its translation into options."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kvchat import __version__
from kvchat.cli.grammar.options import (
    AskOptions,
    BenchOptions,
    EnginesOptions,
    ExportOptions,
    ModelsAction,
    ModelsOptions,
    StoreAction,
    StoreOptions,
)
from kvchat.cli.grammar.values import NoQuestion, byte_count, named_path, positive, setting, standard_input, text
from kvchat.transfer.exporting import ExportForm

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
SIZE_TOKENS = 16_384  # of the chat of `bench --size`: 2 GB
_CODES = (
    "Exit codes: 0 done; 1 not done, or nothing found, or a fault found: standard error says which; 2 the command line"
    " makes no sense; 130 and 143 ended by Ctrl+C or SIGTERM; 141 whoever read the output has left."
)


def build_parser() -> argparse.ArgumentParser:
    """The parser for the whole command line. `command` is None when the app itself is wanted."""
    parser = argparse.ArgumentParser(
        prog="kvchat",
        description="Chat with your own llama-server; every chat's KV cache is kept and restored.",
        epilog=_CODES,
    )
    parser.add_argument("--version", action="version", version=f"kvchat {__version__}")
    parser.add_argument(
        "--starter", action="store_true", help="without a model, fetch the starter model (98 MB) unasked"
    )
    parser.add_argument("--hidden", action="store_true", help="start in the tray, without opening the window")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="without a window")
    _add_ask(commands.add_parser("ask", help="ask one question and print the reply"))
    _add_bench(commands.add_parser("bench", help="measure what save points bring with your own model"))
    _add_store(commands.add_parser("store", help="show, prune or verify the save points"))
    _add_engines(commands.add_parser("engines", help="list the engines of this computer, or try one out"))
    _add_models(commands.add_parser("models", help="find models on this machine, search and fetch others"))
    search = commands.add_parser("search", help="find words in all chats and what is attached to them")
    search.add_argument(
        "words", metavar="WORDS", nargs="+", type=text, help='all of them, or beginnings; "in quotes" as they are'
    )
    _add_json(search)
    _add_transfer(commands)
    doctor = commands.add_parser("doctor", help="show what kvchat found on this machine")
    _add_json(doctor)
    doctor.add_argument(
        "--retest", action="store_true", help="have the next start try out again whether restoring works here"
    )
    return parser


def ask_options(namespace: argparse.Namespace) -> AskOptions:
    """The options of `ask`; the prompt `-` is read from standard input here. Raises NoQuestion."""
    prompt = standard_input() if namespace.prompt == "-" else namespace.prompt
    if not prompt.strip():
        raise NoQuestion("There is no question", "It is empty.", "Write it behind the command, or - to read it.")
    return _filled(AskOptions, namespace, prompt=prompt, attach=tuple(namespace.attach))


def bench_options(namespace: argparse.Namespace) -> BenchOptions:
    """The options of `bench`."""
    tokens = namespace.tokens or (BenchOptions.tokens if namespace.made_bytes is None else SIZE_TOKENS)
    size, made = namespace.made_bytes is not None, namespace.made_bytes or None
    return _filled(BenchOptions, namespace, tokens=tokens, size=size, made_bytes=made)


def store_options(namespace: argparse.Namespace) -> StoreOptions:
    """The options of `store`."""
    return _filled(StoreOptions, namespace, action=StoreAction(namespace.action or "show"))


def engines_options(namespace: argparse.Namespace) -> EnginesOptions:
    """The options of `engines`."""
    return _filled(EnginesOptions, namespace, test=namespace.action == "test")


def models_options(namespace: argparse.Namespace) -> ModelsOptions:
    """The options of `models`."""
    name = getattr(namespace, "repository", "")
    repository, _, quantisation = (name, "", "") if "://" in name else name.partition(":")
    return _filled(
        ModelsOptions,
        namespace,
        action=ModelsAction(namespace.action or "list"),
        what=repository or " ".join(getattr(namespace, "words", ())),
        quantisation=quantisation,
        folders=tuple(namespace.folders or ()),
    )


def export_options(namespace: argparse.Namespace) -> ExportOptions:
    """The options of `export`."""
    return _filled(ExportOptions, namespace, form=ExportForm(namespace.form) if namespace.form else None)


def _filled(kind: type[T], namespace: argparse.Namespace, **instead: object) -> T:
    """Options with what is on the command line under their fields' names, and `instead` of some of it."""
    told = {field.name: getattr(namespace, field.name) for field in fields(kind) if hasattr(namespace, field.name)}
    return kind(**told | instead)


def _add_ask(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--new", action="store_true", help="begin a new chat")
    which.add_argument(
        "--chat", dest="chat_id", metavar="ID", type=text, help="go on with this chat (default: the newest)"
    )
    _add_engine(parser)
    parser.add_argument("--system", metavar="TEXT", type=text, help="system prompt of a new chat")
    parser.add_argument(
        "--attach",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="attach text, code, a PDF or a picture; repeatable",
    )
    parser.add_argument(
        "--max-tokens", metavar="N", type=setting("max_tokens", int), help="stop the reply after N tokens"
    )
    parser.add_argument(
        "--temperature", metavar="T", type=setting("temperature", float), help="0 always takes the likeliest token"
    )
    parser.add_argument("--seed", metavar="N", type=setting("seed", int), help="seed of the sampling")
    # SUPPRESS: without it the subcommand's default would overrule a --starter given before `ask`.
    parser.add_argument(
        "--starter", action="store_true", default=argparse.SUPPRESS, help="without a model, fetch the starter model"
    )
    _add_json(parser)
    parser.add_argument("prompt", metavar="PROMPT", type=text, help="the question; - reads standard input")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    _add_engine(parser)
    parser.add_argument("--tokens", metavar="N", type=positive, help="length of the chat")
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--chats", metavar="N", type=positive, help="measure N chats on one system prompt of that length instead"
    )
    other.add_argument(
        "--after-restart",
        action="store_true",
        help="measure what comes back after a restart instead: for the next turn, regenerate, edit and branch",
    )
    other.add_argument(
        "--size",
        dest="made_bytes",
        metavar="BYTES",
        type=byte_count,
        nargs="?",
        const=0,
        help="measure a chat of gigabytes instead, and the store alone with a made file of that size (2.15GB)",
    )
    _add_json(parser)


def _add_store(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions (without one, the store is shown)")
    prune = actions.add_parser("prune", help="delete the least valuable save points until the rest fits a size")
    prune.add_argument(
        "--to",
        dest="target_bytes",
        metavar="BYTES",
        type=byte_count,
        required=True,
        help="what may remain: 500MB, 2GB or bytes",
    )
    prune.add_argument("--dry-run", action="store_true", help="only tell what would be deleted")
    verify = actions.add_parser("verify", help="hash every block again and set bad ones aside")
    _add_json(prune, verify, default=argparse.SUPPRESS)  # see --starter


def _add_engines(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions (without one, they are listed)")
    test = actions.add_parser("test", help="start one with a small model; save and restore")
    test.add_argument("path", metavar="PATH", nargs="?", help='a llama-server, or "embedded" (default: the one in use)')
    _add_json(test, default=argparse.SUPPRESS)


def _add_models(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    parser.add_argument(
        "--folder", dest="folders", metavar="DIR", type=Path, action="append", help="look here as well; may be repeated"
    )
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", title="actions (without one, the models on this machine are listed)"
    )
    suggest = actions.add_parser("suggest", help="name a few models for this machine; nothing is asked of the network")
    search = actions.add_parser("search", help="search Hugging Face")
    search.add_argument("words", metavar="WORDS", nargs="+", type=text, help="what the name must contain")
    files = actions.add_parser("files", help="list the models in a repository, with sizes and whether they fit")
    get = actions.add_parser("get", help="fetch a model; Ctrl+C pauses, the same command goes on")
    get.add_argument("--use", action="store_true", help="make it the model to chat with")
    for action in (files, get):
        action.add_argument(
            "repository", metavar="OWNER/NAME[:QUANT]", type=text, help="such as ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"
        )
    token = actions.add_parser("token", help="keep an access token for gated models, read from standard input")
    token.add_argument("--forget", action="store_true", help="forget it")
    _add_json(suggest, search, files, default=argparse.SUPPRESS)


def _add_json(*parsers: argparse.ArgumentParser, default: object = False) -> None:
    for parser in parsers:
        parser.add_argument(
            "--json", dest="as_json", action="store_true", default=default, help="print one JSON object instead"
        )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="PATH", type=named_path, help="a GGUF file (default: the one in the settings)"
    )
    parser.add_argument(
        "--engine", metavar="PATH", type=named_path, help="a llama-server (default: the one kvchat finds)"
    )


def _add_transfer(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    export = commands.add_parser("export", help="write chats to a file")
    export.add_argument(
        "target", type=Path, metavar="FILE", help="where to; its ending says in which form; - is standard output"
    )
    export.add_argument("--chat", dest="chat_id", metavar="ID", type=text, help="only this chat")
    export.add_argument(
        "--form",
        choices=[form.value for form in ExportForm],
        help="json: complete, can be imported again; md: Markdown, several as a zip; html: one page",
    )
    take = commands.add_parser("import", help="take chats in: kvchat, ChatGPT, Claude, Open WebUI, LM Studio")
    take.add_argument("files", type=Path, nargs="+", metavar="FILE", help="JSON files, zips or folders")
    backup = commands.add_parser("backup", help="write chats and settings into one zip")
    backup.add_argument("target", type=Path, metavar="FILE", help="- is standard output")
    restore = commands.add_parser("restore", help="put a backup back; what it replaces is kept beside it")
    restore.add_argument("source", type=Path, metavar="FILE")
    words = "where the chats' file is damaged: keep all that can be read, and what the newest automatic backup has"
    commands.add_parser("repair", help=words)
