"""`kvchat models`: the models on this machine, and those on Hugging Face."""

from __future__ import annotations

import asyncio
import dataclasses
import getpass
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvchat.cli import owned
from kvchat.cli.command_runtime import run_until_interrupted
from kvchat.cli.options import ModelsOptions
from kvchat.cli.terminal import columns, current_terminal, say, show_progress
from kvchat.engine_host.choice import ModelJudge, look_at_capacity
from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import read_facts
from kvchat.library.memory.corrections import CorrectionBook
from kvchat.library.memory.machine import MemoryFacts, available_memory
from kvchat.library.memory.verdict import Judgement, judge_size
from kvchat.library.model_library import FoundModel, JudgedModel, ModelLibrary, UnreadableFolder
from kvchat.library.remote.hub import HubFile, HubModel, HubRepository, repository_in
from kvchat.library.remote.hub_download import Order, fetch_model
from kvchat.library.remote.starter import Suggestion, suggestions_for, tier_for
from kvchat.settings import Settings, load_settings
from kvchat.system.files import is_folder
from kvchat.system.paths import Paths, resolve_paths
from kvchat.words.language import _, listed, number, several
from kvchat.words.wording import size, tokens_short

LONGEST_TOKEN = 1000  # characters


class NoSuchFile(KvchatError):
    """The repository has no such model, or several; says which there are."""


def run(options: ModelsOptions) -> int:
    """Do it and print what came of it. Returns the exit code. Raises KvchatError."""
    if options.action in ("get", "use"):
        return owned.run("models", options)
    paths = resolve_paths()
    settings = load_settings(paths.settings_file)
    for folder in options.folders:
        if not is_folder(folder):
            raise NoSuchFile(_("There is no such folder"), str(folder), _("Name one that is there."))
    chosen = (*settings.model_folders, *(str(folder.absolute()) for folder in options.folders))
    library = ModelLibrary(paths, lambda: chosen)
    match options.action:
        case "list":
            return run_until_interrupted(_list(library, paths, settings, options.as_json))
        case "suggest":
            return _suggest(look_at_capacity(settings).memory, options.as_json)
        case "search":
            return run_until_interrupted(_search(library, options))
        case "files":
            return run_until_interrupted(_files(library, settings, options))
        case _:
            return _token(library, options)


async def _list(library: ModelLibrary, paths: Paths, settings: Settings, as_json: bool) -> int:
    models: list[JudgedModel] = []
    judge = ModelJudge(settings, look_at_capacity(settings), CorrectionBook(paths.memory_corrections))
    unreadable = await library.find(judge, models.append)
    models.sort(key=lambda one: (one.judgement is None, one.model.name.lower()))
    if as_json:
        print(json.dumps({"models": [_fields(one) for one in models]}))
    else:
        print("\n".join(list_lines(models, unreadable)))
    return 0


def list_lines(models: Sequence[JudgedModel], unreadable: Sequence[UnreadableFolder]) -> list[str]:
    """The models for a reader, those that cannot be used at the end with the reason."""
    lines = [several(len(models), "{count} model", "{count} models")]
    lines += columns([_row(one.model, one.judgement) for one in models if one.judgement])
    for problem, name in [(one.model.problem, one.model.name) for one in models]:
        if problem:
            lines += [f"  {name}: {problem.title}.", f"    {problem.detail}"]
    lines += [
        "  " + _("{path} cannot be read: {reason}.", path=folder.path, reason=folder.reason) for folder in unreadable
    ]
    if not models:
        lines += [_("`kvchat models suggest` names some, `kvchat models get` fetches one.")]
    return lines


def _row(model: FoundModel, judgement: Judgement) -> tuple[str, ...]:
    assert model.facts is not None
    return (
        model.name,
        model.facts.quantisation,
        size(model.size),
        _("{tokens} context", tokens=tokens_short(model.facts.trained_context)),
        _(judgement.verdict.value),
        _(model.source.value),
    )


def _fields(one: JudgedModel) -> dict[str, Any]:
    """A model as JSON: size in bytes, context in tokens."""
    model = one.model
    fields: dict[str, Any] = {
        "name": model.name,
        "path": str(model.path),
        "source": model.source.value,
        "size": model.size,
        "projector": str(model.projector) if model.projector else None,
        "problem": str(model.problem) if model.problem else None,
    }
    if model.facts and one.judgement:
        fields |= {
            "architecture": model.facts.architecture,
            "quantisation": model.facts.quantisation,
            "trained_context": model.facts.trained_context,
            "parts": [str(part) for part in model.facts.parts],
            "verdict": one.judgement.verdict.value,
            "reason": one.judgement.reason,
        }
    return fields


def _suggest(memory: MemoryFacts, as_json: bool) -> int:
    tier = tier_for(memory)
    fitting = suggestions_for(memory)
    if as_json:
        print(json.dumps({"memory_gb": tier, "suggestions": [dataclasses.asdict(one) for one in fitting]}))
        return 0
    print(_("For a GPU of {tier} GB:", tier=tier) if tier else _("For a computer without a large GPU:"))
    print("\n".join(columns([_suggestion_row(one, memory) for one in fitting])))
    print(_("Fetch one with `kvchat models get NAME`."))
    return 0


def _suggestion_row(one: Suggestion, memory: MemoryFacts) -> tuple[str, ...]:
    verdict = judge_size(one.size, memory).verdict.value
    return (f"{one.repository}:{one.quantisation}", _("about {size}", size=size(one.size)), verdict, one.why)


async def _search(library: ModelLibrary, options: ModelsOptions) -> int:
    found = await library.hub.search(options.what)
    if options.as_json:
        print(json.dumps({"models": [_hub_fields(one) for one in found]}))
    elif not found:
        print(_("Nothing on Hugging Face is named like “{what}” and has GGUF files.", what=options.what))
    else:
        rows = [
            (
                one.repository,
                _("{downloads} downloads", downloads=number(one.downloads)),
                _("asks for your account") if one.gated else "",
            )
            for one in found
        ]
        print("\n".join(columns(rows)))
    return 0


def _hub_fields(one: HubModel) -> dict[str, Any]:
    return dataclasses.asdict(one) | {"updated": one.updated.isoformat() if one.updated else None}


async def _files(library: ModelLibrary, settings: Settings, options: ModelsOptions) -> int:
    repository, memory = await library.hub.repository(_named(options.what)), look_at_capacity(settings).memory
    if options.as_json:
        files = [
            dataclasses.asdict(file) | {"size": file.size, "verdict": judge_size(file.size, memory).verdict.value}
            for file in repository.files
        ]
        print(json.dumps({"repository": repository.repository, "revision": repository.revision, "files": files}))
        return 0
    if not repository.files:
        print(_("{repository} has no model that kvchat could use.", repository=repository.repository))
        return 0
    rows = [(one.name, size(one.size), judge_size(one.size, memory).verdict.value) for one in repository.files]
    print("\n".join(columns(rows)))
    if repository.gated:
        print(_("Its makers want to know who fetches it: `kvchat models token` takes an access token."))
    return 0


async def change(options: ModelsOptions, commands: owned.Commands) -> int:
    """Fetch a model, or choose one for new chats. Returns the exit code. Raises KvchatError."""
    library = ModelLibrary(commands.paths, lambda: commands.settings.model_folders)
    if options.action == "get":
        path = await _get(library, commands, options)
        say(str(path))
        if options.use:
            await _use(commands, path)
        return 0
    named = await asyncio.to_thread(_named_file, options.what)
    path = named or await _found(library, options.what)
    await _use(commands, path)
    say(json.dumps({"model_path": str(path)}) if options.as_json else _("New chats are answered by {path}.", path=path))
    return 0


async def _get(library: ModelLibrary, commands: owned.Commands, options: ModelsOptions) -> Path:
    repository = await library.hub.repository(_named(options.what))
    file = chosen_file(repository, options.quantisation)
    order = Order(repository.repository, repository.revision, file)

    def tell(done: int, checking: bool) -> None:
        show_progress(_("Checking:") if checking else _("Fetching:"), done, file.size)

    return await fetch_model(order, commands.paths.models, library.hub, tell)


async def _use(commands: owned.Commands, path: Path) -> None:
    """Choose the model for new chats."""
    if commands.is_open:
        await (await commands.runtime()).use_model(path)
    else:
        await asyncio.to_thread(read_facts, path)
        await commands.change_settings(model_path=str(path))


def _named_file(name: str) -> Path | None:
    terminal = current_terminal.get()
    path = (terminal.folder if terminal else Path.cwd()) / name
    return path if path.is_file() else None


async def _found(library: ModelLibrary, name: str) -> Path:
    """The one model on this machine that is so called, or has that in its name. Raises NoSuchFile."""
    judged: list[JudgedModel] = []
    await library.find(lambda facts: judge_size(facts.size, available_memory()), judged.append)
    models = {one.model.path: one.model.name for one in judged if one.model.facts}
    exact = [path for path, known in models.items() if known.lower() == name.lower()]
    found = exact or [path for path, known in models.items() if name.lower() in known.lower()]
    if len(found) == 1:
        return found[0]
    there = listed(sorted({models[path] for path in found} or set(models.values()))) or _("none")
    title = (
        _("Several models are called like “{name}”", name=name)
        if found
        else _("There is no model “{name}” on this machine", name=name)
    )
    raise NoSuchFile(title, _("There is: {there}.", there=there), _("Name one of them, or the path of a GGUF file."))


def chosen_file(repository: HubRepository, quantisation: str) -> HubFile:
    """The model of that quantisation or name; without one, Q4_K_M or the only one. Raises NoSuchFile."""
    wanted = quantisation.lower()
    fitting = [one for one in repository.files if wanted in (one.quantisation.lower(), one.name.lower()) and wanted]
    if not wanted:
        usual = [one for one in repository.files if one.quantisation == "Q4_K_M"]
        fitting = list(repository.files) if len(repository.files) == 1 else usual
    if len(fitting) == 1:
        return fitting[0]
    there = listed(one.quantisation or one.name for one in repository.files) or _("no model that kvchat could use")
    raise NoSuchFile(
        _("{repository} has no such file", repository=repository.repository)
        if wanted
        else _("Which file is it to be?"),
        _("There is: {there}.", there=there),
        _("Name one: `kvchat models get {repository}:Q8_0`.", repository=repository.repository),
    )


def _named(text: str) -> str:
    """The repository a text names. Raises NoSuchFile."""
    repository = repository_in(text)
    if repository is None:
        raise NoSuchFile(
            _("This is no repository"),
            _("“{name}”", name=text),
            _("Write it as OWNER/NAME; `kvchat models search` finds it."),
        )
    return repository


def _token(library: ModelLibrary, options: ModelsOptions) -> int:
    if options.forget:
        library.token.forget()
        print(_("The access token is forgotten."))
        return 0
    # Not as an argument: those can be seen by every user of the machine.
    value = getpass.getpass(_("Access token: ")) if sys.stdin.isatty() else sys.stdin.readline(LONGEST_TOKEN)
    print(_("Kept in {save}.", save=_(library.token.save(value))))
    return 0
