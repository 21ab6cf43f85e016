"""All commands with their options. Does not import the modules that implement them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvchat.cli.options import (
    Options,
    absolute_path,
    async_command,
    flag,
    option,
    owner_command,
    parse_assignment,
    parse_path,
    parse_readable_path,
    parse_size,
    parse_token_count,
    positional,
    read_passphrase,
    read_question,
    setting_parser,
    sync_command,
    window_command,
)
from kvchat.engine.discovery.graphics import Backend
from kvchat.settings import SETTING_NAMES
from kvchat.text.language import N_
from kvchat.transfer.exporting import ExportForm


class JsonOptions(Options):
    as_json: bool = flag(N_("print a JSON object"), name="--json")


class EngineOptions(Options):
    model: Path | None = option("PATH", N_("GGUF file of the model (default: from the settings)"), type=parse_path)
    engine: Path | None = option("PATH", N_("llama-server to use (default: found automatically)"), type=parse_path)
    starter: bool = flag(N_("download the starter model if no model is chosen"))


@window_command("quick", help=N_("open the Quick question window; bind this command to a desktop shortcut"))
@window_command("", help=N_("Chat with a local llama-server and save the memory of every chat."))
class WindowOptions(Options):
    starter: bool = flag(N_("download the starter model (98 MB) without asking if no model is chosen"))
    hidden: bool = flag(N_("start in the tray, without opening the window"))


@window_command("open", help=N_("open chats, models, documents and kvchat:// links in the window"))
class OpenOptions(WindowOptions):
    targets: tuple[str, ...] = positional(
        "FILE", N_("files or links to open (default: open the window); `open` may be omitted before them"), nargs="*"
    )


@owner_command("ask", "answering:ask", N_("ask a question or chat in the terminal"))
class AskOptions(EngineOptions, JsonOptions):
    new: bool = flag(N_("start a new chat"), group="which")
    chat_id: str | None = option("ID", N_("continue this chat (default: the newest)"), group="which", name="--chat")
    system: str | None = option("TEXT", N_("system prompt for a new chat"), group="begins")
    prepared: str | None = option(
        "NAME", N_("start a new chat with the prepared documents of this name"), group="begins", name="--on"
    )
    tools: tuple[str, ...] = option(
        "NAME",
        N_("tools for a new chat: a server, SERVER/TOOL, or kvchat for the built-in tools; repeatable"),
        action="append",
    )
    allow_tools: bool = flag(N_("run all tool calls in this reply without asking"))
    attach: tuple[Path, ...] = option(
        "FILE", N_("text, PDF or image file to attach; repeatable"), type=absolute_path, action="append"
    )
    max_tokens: int | None = option("N", N_("stop the reply after N tokens"), type=setting_parser("max_tokens", int))
    temperature: float | None = option(
        "T", N_("sampling temperature; 0 always picks the most likely token"), type=setting_parser("temperature", float)
    )
    seed: int | None = option("N", N_("sampling seed"), type=setting_parser("seed", int))
    prompt: str | None = positional(
        "PROMPT", N_("question, or - for standard input (default: chat in the terminal)"), nargs="?"
    )

    def with_input(self) -> AskOptions:
        """Read the question from standard input if it is `-`, or absent without a terminal. Raises KvchatError."""
        if self.prompt is None and sys.stdin.isatty() and not self.as_json:
            return self
        return replace(self, prompt=read_question(self.prompt))


@owner_command(
    "serve",
    "answering:serve",
    N_("run the API server until Ctrl+C; prints “ready” and the address once it accepts requests"),
)
class ServeOptions(EngineOptions):
    host: str | None = option("ADDRESS", N_("address to listen on (default: 127.0.0.1); any other requires an API key"))
    port: int | None = option("N", "default: 8737", type=setting_parser("api_port", int))
    slots: int | None = option("N", N_("process up to N requests in parallel"), type=setting_parser("slots", int))
    key_file: Path | None = option(
        "FILE", N_("file readable only by you, with one KEY or APP:KEY per line"), type=absolute_path
    )
    share: bool = flag(N_("share the models with your other devices; pair them with `kvchat pair`"))
    share_port: int | None = option("N", "default: 8738", type=setting_parser("share_port", int))


@owner_command("prepare", "bench:prepare", N_("process documents in advance for new chats"))
class PrepareOptions(EngineOptions):
    paths: Sequence[Path] = positional(
        "PATH",
        N_("files or folders (if omitted, the existing documents under this name are reprocessed)"),
        type=parse_path,
        nargs="*",
    )
    name: str = option("NAME", N_("name in the library"), required=True)


@owner_command("prepared", "bench:list_prepared", N_("list prepared documents with their disk use and time saved"))
class PreparedOptions(EngineOptions, JsonOptions):
    pass


@owner_command("prepared remove", "bench:remove_prepared", N_("remove prepared documents"))
class PreparedNameOptions(EngineOptions):
    name: str = positional("NAME", N_("name of the prepared documents"))


@async_command("bench", "bench:bench", N_("measure the speedup from save points with your model"))
class BenchOptions(EngineOptions, JsonOptions):
    tokens: int | None = option("N", N_("length of the chat in tokens"), type=parse_token_count)


owner_command("store", "store:show_usage", N_("show, prune or verify save points"))(JsonOptions)


@owner_command("store prune", "store:prune_store", N_("delete the least valuable save points to reach a target size"))
class PruneOptions(JsonOptions):
    target_bytes: int = option(
        "BYTES", N_("target size: 500MB, 2GB or bytes"), type=parse_size, required=True, name="--to"
    )
    dry_run: bool = flag(N_("show what pruning would delete, without deleting it"))


owner_command("store verify", "store:verify_store", N_("check the hash of every block and set damaged ones aside"))(
    JsonOptions
)


@owner_command("store forget", "store:forget_program", N_("delete the save points of an app"))
class ProgramOptions(JsonOptions):
    program: str = positional("PROGRAM", N_("name as listed"))


sync_command("engines", "engines:print_engines", N_("list, test, download or remove engines"))(JsonOptions)


@async_command("engines test", "engines:test", N_("test an engine with a small model, including save and restore"))
class TestEngineOptions(JsonOptions):
    path: str | None = positional(
        "PATH", N_('path of a llama-server, or "embedded" (default: the engine in use)'), nargs="?"
    )


@owner_command(
    "engines get", "engines:get", N_("download an engine that uses the GPU; Ctrl+C pauses, the same command resumes")
)
class GetEngineOptions(JsonOptions):
    backend: str | None = positional(
        None,
        N_("backend (default: the best one for the GPU)"),
        nargs="?",
        choices=[backend.value.lower() for backend in Backend],
    )


@owner_command("engines remove", "engines:remove", N_("delete a downloaded engine"))
class NameOptions(JsonOptions):
    name: str = positional("NAME", N_("name as listed"))


@async_command("models", "models:list_models", N_("list models on this machine, search for and download others"))
class ModelsOptions(JsonOptions):
    folders: tuple[Path, ...] = option(
        "DIR", N_("also search this folder; repeatable"), type=Path, action="append", name="--folder"
    )


sync_command("models suggest", "models:suggest_models", N_("suggest models for this machine, without network access"))(
    JsonOptions
)


@async_command("models search", "models:search_models", N_("search Hugging Face"))
class SearchModelsOptions(JsonOptions):
    words: tuple[str, ...] = positional("WORDS", N_("words in the repository name"), nargs="+")


class RepositoryOptions(Options):
    repository: str = positional("OWNER/NAME[:QUANT]", N_("for example ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"))


@async_command("models files", "models:list_files", N_("list the models in a repository with their size and fit"))
class FilesOptions(RepositoryOptions, JsonOptions):
    pass


@owner_command("models get", "models:download_model", N_("download a model; Ctrl+C pauses, the same command resumes"))
class GetModelOptions(RepositoryOptions):
    use: bool = flag(N_("use the model for new chats"))


@owner_command("models use", "models:use_model", N_("use a model on this machine for new chats"))
class UseModelOptions(JsonOptions):
    words: tuple[str, ...] = positional("NAME", N_("name as listed or part of it, or path of a GGUF file"), nargs="+")


@sync_command("models token", "models:set_token", N_("save an access token for gated models, read from standard input"))
class TokenOptions(Options):
    forget: bool = flag(N_("delete the saved access token"))


sync_command("chats", "chats:list_chats", N_("list, show, rename or delete chats"))(JsonOptions)


@sync_command(
    "chats show", "chats:show_chat", N_("print a chat as Markdown; with --json, print the complete chat like `export`")
)
class ChatOptions(JsonOptions):
    chat: str = positional("ID", N_("chat id as listed, or its first characters"))


@owner_command("chats rename", "chats:rename", N_("rename a chat"))
class RenameOptions(ChatOptions):
    title: str = positional("TITLE", N_("new title"))


@owner_command(
    "chats delete", "chats:delete", N_("delete chats; “Recently deleted” in the window keeps them for a while")
)
class ChatsOptions(JsonOptions):
    chats: tuple[str, ...] = positional("ID", N_("chat id as listed, or its first characters"), nargs="+")


@sync_command("search", "chats:search_chats", N_("search all chats and attachments"))
class SearchOptions(JsonOptions):
    words: tuple[str, ...] = positional(
        "WORDS",
        N_('words or beginnings of words, all of which must match; use "quotes" for an exact phrase'),
        nargs="+",
    )


class PassphraseOptions(Options):
    passphrase: str | None = option(
        "FILE",
        N_("file with the passphrase on its first line; - for standard input"),
        type=read_passphrase,
        name="--passphrase-file",
    )


@sync_command("export", "chats:export_chats", N_("export chats to a file"))
class ExportOptions(PassphraseOptions):
    target: Path = positional(
        "FILE", N_("output file, whose extension sets the format; - for standard output"), type=Path
    )
    chat_id: str | None = option("ID", N_("export only this chat"), name="--chat")
    form: str | None = option(
        None,
        N_("json: complete, can be imported; md: Markdown, several chats as a zip; html: single page"),
        choices=[form.value for form in ExportForm],
    )
    with_memory: bool = flag(N_("include the memory of --chat, to continue on another computer without reprocessing"))


@owner_command("import", "chats:import_chats", N_("import chats from kvchat, ChatGPT, Claude, Open WebUI or LM Studio"))
class ImportOptions(PassphraseOptions):
    files: tuple[Path, ...] = positional(
        "FILE", N_("JSON or zip files, folders, or chats exported with memory"), type=parse_readable_path, nargs="+"
    )


@sync_command("backup", "chats:back_up", N_("back up chats and settings to a zip file"))
class BackupOptions(Options):
    target: Path = positional("FILE", N_("output file; - for standard output"), type=Path)


@owner_command("restore", "chats:restore_backup", N_("restore a backup; the replaced files are kept"))
class RestoreOptions(Options):
    source: Path = positional("FILE", "", type=absolute_path)
    with_engine: bool = flag(N_("also restore the engine and its arguments from the settings in the backup"))


owner_command("repair", "chats:repair_chats", N_("repair a damaged chat database, using the newest automatic backup"))(
    Options
)
sync_command("settings", "engines:show_settings", N_("list, print, change or reset settings"))(JsonOptions)


@owner_command("settings reset", "engines:reset_setting", N_("reset a setting to its default"))
@sync_command("settings get", "engines:show_setting", N_("print a setting"))
class SettingOptions(JsonOptions):
    name: str = positional("NAME", N_("name of the setting as listed"), choices=SETTING_NAMES)


@owner_command("settings set", "engines:change_setting", N_("change a setting"))
class ChangeSettingOptions(SettingOptions):
    values: tuple[str, ...] = positional(
        "VALUE", N_("new value; a size such as 20GB, several values for a list"), nargs="+"
    )


owner_command("tools", "tools:list_servers", N_("list, add, test or remove MCP servers, whose tools models can use"))(
    JsonOptions
)


@owner_command("tools add", "tools:add", N_("add an MCP server, or install an MCP bundle"))
class AddServerOptions(JsonOptions):
    name: str = positional("NAME", N_("name of the new server; a bundle has its own name"))
    launch: tuple[str, ...] = positional(
        "COMMAND",
        N_("command with its arguments (after -- if any of them begin with -), URL, or .mcpb file"),
        nargs="+",
    )
    values: tuple[str, ...] = option(
        "NAME=VALUE",
        N_(
            "environment variable, HTTP header or bundle option; repeatable; "
            "NAME alone takes the value of your environment variable NAME"
        ),
        type=parse_assignment,
        action="append",
        name="--set",
    )


@owner_command(
    "tools import",
    "tools:import_servers",
    N_("import the MCP servers of Claude Desktop, Cursor, LM Studio and VS Code"),
)
class ImportServersOptions(JsonOptions):
    file: Path | None = positional("FILE", N_("import from this JSON file only"), type=parse_path, nargs="?")


owner_command("tools approve", "tools:approve", N_("approve the command or URL of a server, and its changed tools"))(
    NameOptions
)


@owner_command("tools test", "tools:test", N_("start a server and list its tools"))
class TestServerOptions(NameOptions):
    sign_in: bool = flag(N_("sign in to a remote server in the browser first"))


owner_command("tools remove", "tools:remove", N_("remove a server and its secrets"))(NameOptions)


@owner_command(
    "pair",
    "devices:pair_computers",
    N_("show a code to pair a device with this computer, or use the models of another computer"),
)
class PairOptions(JsonOptions):
    address: str | None = positional("ADDRESS", N_("address of the other computer, which shows a code"), nargs="?")
    code: str | None = positional("CODE", N_("the code shown on the other computer"), nargs="?")
    find: bool = flag(N_("list the computers on the home network that share their models"))


owner_command("devices", "devices:list_devices", N_("list or remove the devices that are paired with this computer"))(
    JsonOptions
)


@owner_command(
    "devices remove", "devices:remove_device", N_("remove a device; it can no longer use the models of this computer")
)
class DeviceOptions(JsonOptions):
    name: str = positional("DEVICE", N_("name or ID as listed"))


@sync_command("doctor", "doctor:doctor", N_("show diagnostics for this machine"))
class DoctorOptions(JsonOptions):
    model: Path | None = option("PATH", N_("GGUF file to check (default: from the settings)"), type=parse_path)
    retest: bool = flag(N_("repeat the restore test at the next start"))


@sync_command("completion", "options:print_completion", N_("print a shell completion script"))
class ShellOptions(Options):
    shell: str = positional(None, 'for ~/.bashrc: eval "$(kvchat completion bash)"', choices=("bash", "zsh", "tcsh"))
