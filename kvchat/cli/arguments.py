"""The command line as one table: each command is a dataclass of its options. Imports nothing that does them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kvchat import __version__
from kvchat.cli.options import (
    COMMANDS,
    STANDARD_STREAM,
    Command,
    NoQuestion,
    Options,
    apart,
    byte_count,
    flag,
    here,
    named_path,
    option,
    owner,
    positional,
    positive,
    read_passphrase,
    read_question,
    setting,
    wait_for,
    window,
)
from kvchat.engine.finding.graphics import Backend
from kvchat.settings import NAMES as SETTING_NAMES
from kvchat.transfer.exporting import ExportForm
from kvchat.words.language import N_, _

_CODES = N_(
    "Exit codes: 0 done; 1 not done, or nothing found, or a fault found: standard error says which; 2 the command line"
    " makes no sense; 130 and 143 ended by Ctrl+C or SIGTERM; 141 whoever read the output has left."
)
_LISTED = N_("actions (without one, they are listed)")
_ACTIONS = {  # titles of the lists of actions
    "store": N_("actions (without one, the store is shown)"),
    "engines": _LISTED,
    "chats": _LISTED,
    "settings": _LISTED,
    "models": N_("actions (without one, the models on this machine are listed)"),
    "prepared": _LISTED,
}
# argparse's own words: it asks a catalogue for them that nobody has here, so it is given kvchat's.
_ARGPARSE = (
    *(N_("usage: "), N_("positional arguments"), N_("options"), N_("show this help message and exit")),
    *(N_("show program's version number and exit"), N_("%(prog)s: error: %(message)s\n")),
    *(N_("argument %(argument_name)s: %(message)s"), N_("the following arguments are required: %s")),
    *(N_("unrecognized arguments: %s"), N_("invalid choice: %(value)r (choose from %(choices)s)")),
    *(N_("invalid %(type)s value: %(value)r"), N_("expected one argument"), N_("not allowed with argument %s")),
)


@dataclass(frozen=True)
class JsonOptions(Options):
    as_json: bool = flag("--json", N_("print one JSON object instead"))


@dataclass(frozen=True)
class EngineOptions(Options):
    model: Path | None = option(
        "--model", "PATH", N_("a GGUF file (default: the one in the settings)"), type=named_path
    )
    engine: Path | None = option(
        "--engine", "PATH", N_("a llama-server (default: the one kvchat finds)"), type=named_path
    )
    starter: bool = flag("--starter", N_("without a model, fetch the starter model"))


@window("quick", words=N_("the small window to ask something in; to be bound to a key of your desktop's"))
@window("", words=N_("Chat with your own llama-server, and have it remember."))
@dataclass(frozen=True)
class WindowOptions(Options):
    starter: bool = flag("--starter", N_("without a model, fetch the starter model (98 MB) unasked"))
    hidden: bool = flag("--hidden", N_("start in the tray, without opening the window"))


@window("open", words=N_("open chats, models, documents and kvchat:// links in the window"))
@dataclass(frozen=True)
class OpenOptions(WindowOptions):
    what: tuple[str, ...] = positional(
        "FILE", N_("without any, the window; before files and links `open` may be left out"), (), nargs="*"
    )


@owner("ask", "answering:ask", N_("ask a question, or have a conversation on the terminal"))
@dataclass(frozen=True)
class AskOptions(EngineOptions, JsonOptions):
    new: bool = flag("--new", N_("begin a new chat"), group="which")
    chat_id: str | None = option("--chat", "ID", N_("go on with this chat (default: the newest)"), group="which")
    system: str | None = option("--system", "TEXT", N_("system prompt of a new chat"), group="begins")
    on: str | None = option(
        "--on", "NAME", N_("begin a new chat on documents that were prepared under that name"), group="begins"
    )
    attach: tuple[Path, ...] = option(
        "--attach", "FILE", N_("a text, PDF or picture; repeatable"), (), type=Path, action="append"
    )
    max_tokens: int | None = option(
        "--max-tokens", "N", N_("stop the reply after N tokens"), type=setting("max_tokens", int)
    )
    temperature: float | None = option(
        "--temperature", "T", N_("0 always takes the likeliest token"), type=setting("temperature", float)
    )
    seed: int | None = option("--seed", "N", N_("seed of the sampling"), type=setting("seed", int))
    prompt: str | None = positional(
        "PROMPT",
        N_("the question; - reads standard input; without one, a conversation on the terminal"),
        None,
        nargs="?",
    )

    def ready(self) -> AskOptions:
        """Read the question. `-`, or no prompt without a terminal, is read from standard input. Raises NoQuestion."""
        if self.prompt is None and sys.stdin.isatty() and not self.as_json:
            return self
        prompt = read_question() if self.prompt is None or self.prompt == "-" else self.prompt
        if not prompt.strip():
            raise NoQuestion(
                _("There is no question"), _("It is empty."), _("Write it behind the command, or - to read it.")
            )
        return replace(self, prompt=prompt)


@owner(
    "serve",
    "answering:serve",
    N_("let other programs use the engine, with its memory; prints “ready” and the address, and ends with Ctrl+C"),
)
@dataclass(frozen=True)
class ServeOptions(EngineOptions):
    host: str | None = option("--host", "ADDRESS", N_("where to listen (default: 127.0.0.1); any other needs a key"))
    port: int | None = option("--port", "N", "default: 8737", type=setting("door_port", int))
    slots: int | None = option("--slots", "N", N_("answer up to N requests side by side"), type=setting("slots", int))
    key_file: Path | None = option(
        "--key-file",
        "FILE",
        N_("a file only you may read; a line is a key, or a program's name, a colon and its key"),
        type=Path,
    )


@owner("prepare", "prepared:prepare", N_("read documents once, for chats to begin on without reading them"))
@dataclass(frozen=True)
class PrepareOptions(EngineOptions):
    paths: Sequence[Path] = positional(
        "PATH", N_("files or folders; none: read again what is so called"), (), type=named_path, nargs="*"
    )
    name: str = option("--name", "NAME", N_("what it is called in the library"), "", required=True)


@owner("prepared", "prepared:show_all", N_("list prepared documents and what they take and save"))
@dataclass(frozen=True)
class PreparedOptions(EngineOptions, JsonOptions):
    pass


@owner("prepared remove", "prepared:remove", N_("forget one"))
@dataclass(frozen=True)
class PreparedName(EngineOptions):
    name: str = positional("NAME", N_("what it is called"))


@apart("bench", "bench:bench", N_("measure what save points bring with your own model"))
@dataclass(frozen=True)
class BenchOptions(EngineOptions, JsonOptions):
    tokens: int | None = option("--tokens", "N", N_("length of the chat"), type=positive)


owner("store", "store:show_all", N_("show, prune or verify the save points"))(JsonOptions)


@owner("store prune", "store:prune", N_("delete the least valuable save points until the rest fits a size"))
@dataclass(frozen=True)
class PruneOptions(JsonOptions):
    target_bytes: int = option(
        "--to", "BYTES", N_("what may remain: 500MB, 2GB or bytes"), 0, type=byte_count, required=True
    )
    dry_run: bool = flag("--dry-run", N_("only tell what would be deleted"))


owner("store verify", "store:verify", N_("hash every block again and set bad ones aside"))(JsonOptions)


@owner("store forget", "store:forget", N_("delete the save points of another program"))
@dataclass(frozen=True)
class ProgramOptions(JsonOptions):
    program: str = positional("PROGRAM", N_("its name, as the list has it"))


here("engines", "engines:show_all", N_("list engines, try one out, fetch one for the graphics card"))(JsonOptions)


@apart("engines test", "engines:test", N_("start one with a small model; save and restore"))
@dataclass(frozen=True)
class EngineToTest(JsonOptions):
    path: str | None = positional(
        "PATH", N_('a llama-server, or "embedded" (default: the one in use)'), None, type=str, nargs="?"
    )


@owner("engines get", "engines:get", N_("fetch one that uses the graphics card; Ctrl+C pauses, the same goes on"))
@dataclass(frozen=True)
class EngineToGet(JsonOptions):
    backend: str | None = positional(
        None,
        N_("what it computes with (default: what suits the card)"),
        None,
        nargs="?",
        choices=[backend.value.lower() for backend in Backend],
    )


@owner("engines remove", "engines:remove", N_("delete one that was fetched"))
@dataclass(frozen=True)
class EngineName(JsonOptions):
    name: str = positional("NAME", N_("its name, as the list has it"))


@apart("models", "models:show_all", N_("find models on this machine, search and fetch others"))
@dataclass(frozen=True)
class ModelsOptions(JsonOptions):
    folders: tuple[Path, ...] = option(
        "--folder", "DIR", N_("look here as well; may be repeated"), (), type=Path, action="append"
    )


here("models suggest", "models:suggest", N_("name a few models for this machine; nothing is asked of the network"))(
    JsonOptions
)


@apart("models search", "models:search", N_("search Hugging Face"))
@dataclass(frozen=True)
class SearchWords(JsonOptions):
    words: tuple[str, ...] = positional("WORDS", N_("what the name must contain"), (), nargs="+")


@dataclass(frozen=True)
class RepositoryOptions(Options):
    repository: str = positional("OWNER/NAME[:QUANT]", N_("such as ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"))


@apart("models files", "models:files", N_("list the models in a repository, with sizes and whether they fit"))
@dataclass(frozen=True)
class FilesOptions(RepositoryOptions, JsonOptions):
    pass


@owner("models get", "models:get", N_("fetch a model; Ctrl+C pauses, the same command goes on"))
@dataclass(frozen=True)
class ModelToGet(RepositoryOptions):
    use: bool = flag("--use", N_("make it the model to chat with"))


@owner("models use", "models:use", N_("make a model that is here the one to chat with"))
@dataclass(frozen=True)
class ModelToUse(JsonOptions):
    words: tuple[str, ...] = positional(
        "NAME", N_("its name in the list or a part of it, or the path of a GGUF file"), (), nargs="+"
    )


@here("models token", "models:token", N_("keep an access token for gated models, read from standard input"))
@dataclass(frozen=True)
class TokenOptions(Options):
    forget: bool = flag("--forget", N_("forget it"))


here("chats", "chats:show_all", N_("list, show, rename or delete chats"))(JsonOptions)


@here("chats show", "chats:show_one", N_("print one as Markdown; with --json all of it, as `export` writes it"))
@dataclass(frozen=True)
class OneChat(JsonOptions):
    chat: str = positional("ID", N_("as the list has it; its first letters do"))


@owner("chats rename", "chats:rename", N_("give one another title"))
@dataclass(frozen=True)
class RenameOptions(OneChat):
    title: str = positional("TITLE", N_("the new one"))


@owner("chats delete", "chats:delete", N_("delete some; for a while the window can have them back"))
@dataclass(frozen=True)
class SomeChats(JsonOptions):
    chats: tuple[str, ...] = positional("ID", N_("as the list has it; its first letters do"), (), nargs="+")


@here("search", "chats:search", N_("find words in all chats and what is attached to them"))
@dataclass(frozen=True)
class SearchOptions(JsonOptions):
    words: tuple[str, ...] = positional(
        "WORDS", N_('all of them, or beginnings; "in quotes" as they are'), (), nargs="+"
    )


@dataclass(frozen=True)
class PassphraseOptions(Options):
    passphrase_file: Path | None = option(
        "--passphrase-file", "FILE", N_("its first line seals or opens the file; - is standard input"), type=Path
    )


@here("export", "chats:export", N_("write chats to a file"))
@dataclass(frozen=True)
class ExportOptions(PassphraseOptions):
    target: Path = positional(
        "FILE", N_("where to; its ending says in which form; - is standard output"), STANDARD_STREAM, type=Path
    )
    chat_id: str | None = option("--chat", "ID", N_("only this chat"))
    form: str | None = option(
        "--form",
        None,
        N_("json: complete, can be imported again; md: Markdown, several as a zip; html: one page"),
        choices=[form.value for form in ExportForm],
    )
    with_memory: bool = flag(
        "--with-memory", N_("with what the model has of --chat in memory, to go on elsewhere without reading it")
    )


@owner("import", "chats:take_in", N_("take chats in: kvchat, ChatGPT, Claude, Open WebUI, LM Studio"))
@dataclass(frozen=True)
class ImportOptions(PassphraseOptions):
    files: tuple[Path, ...] = positional(
        "FILE", N_("JSON files, zips, folders, or chats with their memory"), (), type=Path, nargs="+"
    )
    passphrase: str = ""

    def ready(self) -> ImportOptions:
        """Read the passphrase, and wait for files that hang in the data's owner's place. Raises KvchatError."""
        wait_for(self.files)
        return replace(self, passphrase=read_passphrase(self.passphrase_file))


@here("backup", "chats:backup", N_("write chats and settings into one zip"))
@dataclass(frozen=True)
class BackupOptions(Options):
    target: Path = positional("FILE", N_("- is standard output"), STANDARD_STREAM, type=Path)


@owner("restore", "chats:restore", N_("put a backup back; what it replaces is kept beside it"))
@dataclass(frozen=True)
class RestoreOptions(Options):
    source: Path = positional("FILE", "", STANDARD_STREAM, type=Path)
    with_engine: bool = flag("--with-engine", N_("also take the engine and its arguments from the backup's settings"))


owner(
    "repair",
    "chats:repair_chats",
    N_("where the chats' file is damaged: keep all that can be read, and what the newest automatic backup has"),
)(Options)
here("settings", "settings:show_all", N_("list the settings, look one up, change one"))(JsonOptions)


@owner("settings reset", "settings:reset", N_("take what is usual again"))
@here("settings get", "settings:show_one", N_("print one"))
@dataclass(frozen=True)
class SettingName(JsonOptions):
    name: str = positional("NAME", N_("as the list has it"), choices=SETTING_NAMES)


@owner("settings set", "settings:change", N_("change one"))
@dataclass(frozen=True)
class SettingValue(SettingName):
    values: tuple[str, ...] = positional("VALUE", N_("a size as 20GB, a list as several values"), (), nargs="+")


@here("doctor", "doctor:doctor", N_("show what kvchat found on this machine"))
@dataclass(frozen=True)
class DoctorOptions(JsonOptions):
    model: Path | None = option(
        "--model", "PATH", N_("a GGUF file to judge (default: the one in the settings)"), type=named_path
    )
    retest: bool = flag("--retest", N_("have the next start try out again whether restoring works here"))


@here("completion", "arguments:print_completion", N_("print what makes a shell complete kvchat's commands"))
@dataclass(frozen=True)
class ShellOptions(Options):
    shell: str = positional(None, 'for ~/.bashrc: eval "$(kvchat completion bash)"', choices=("bash", "zsh", "tcsh"))


def parse(arguments: Sequence[str]) -> tuple[Command, Any]:
    given = vars(build_parser().parse_args(arguments))
    command = COMMANDS[given["command"]]
    known = [field.name for field in fields(command.options) if given.get(field.name) is not None]
    values = {name: tuple(given[name]) if isinstance(given[name], list) else given[name] for name in known}
    return command, command.options(**values)


def command_named(name: str) -> Command:
    return COMMANDS[name]


def build_parser() -> argparse.ArgumentParser:
    argparse._ = _  # type: ignore[attr-defined]  # it asks gettext's own domain: https://bugs.python.org/issue12711
    title = _("commands (without one, the window)")
    parser = argparse.ArgumentParser("kvchat", epilog=_(_CODES), argument_default=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"kvchat {__version__}")
    _describe(parser, COMMANDS[""])
    lists = {"": parser.add_subparsers(metavar="COMMAND", title=title)}
    for command in COMMANDS.values():
        if not command.name:
            continue
        before, _space, name = command.name.rpartition(" ")
        made = lists[before].add_parser(name, help=_(command.words), argument_default=argparse.SUPPRESS)
        _describe(made, command)
        if command.name in _ACTIONS:
            title = _(_ACTIONS[command.name])
            lists[command.name] = made.add_subparsers(metavar="ACTION", title=title)
    return parser


def _describe(parser: argparse.ArgumentParser, command: Command) -> None:
    parser.description = _(command.words)
    parser.set_defaults(command=command.name)
    groups: dict[str, argparse._ActionsContainer] = {}
    for field in fields(command.options):
        if not field.metadata:
            continue
        more = dict(field.metadata)
        name, group, words = more.pop("name", None), more.pop("group", None), more.pop("help")
        if group and group not in groups:
            groups[group] = parser.add_mutually_exclusive_group()
        place = groups.get(group, parser)
        if name:
            place.add_argument(name, dest=field.name, help=_(words), **more)
        else:
            place.add_argument(field.name, help=_(words), **more)


def print_completion(options: ShellOptions) -> int:
    import shtab

    print(shtab.complete(build_parser(), options.shell))
    return 0
