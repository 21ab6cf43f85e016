"""`kvchat models`: models on this computer and on Hugging Face."""

import asyncio
import getpass
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvchat.cli import arguments
from kvchat.cli.owned import CommandRunner
from kvchat.cli.terminal import (
    format_columns,
    pick_fields,
    print_out,
    print_result,
    show_progress,
    working_folder,
)
from kvchat.engine_host.choice import ModelJudge, query_capacity
from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import read_facts
from kvchat.library.memory.demand import LoadLimits, available_memory
from kvchat.library.memory.verdict import judge_size
from kvchat.library.model_library import FoundModel, ModelLibrary, UnreadableFolder
from kvchat.library.remote.downloader import DownloadOrder, fetch_on_own_loop
from kvchat.library.remote.hub import HubFile, HubRepository, parse_repository
from kvchat.library.remote.starter import suggestions_for, tier_for
from kvchat.settings import load_settings
from kvchat.system.files import is_folder
from kvchat.system.paths import resolve_paths
from kvchat.text.formatting import format_size, format_tokens
from kvchat.text.language import N_, _, format_number, join_list, plural

MAX_TOKEN_LENGTH = 1000  # characters


def _model_library(runner: CommandRunner, folders: Sequence[Path] = ()) -> ModelLibrary:
    added = [str(folder.absolute()) for folder in folders]
    return ModelLibrary(runner.paths, lambda: (*runner.settings.model_folders, *added))


async def list_models(options: arguments.ModelsOptions, runner: CommandRunner) -> int:
    for folder in options.folders:
        if not is_folder(folder):
            raise KvchatError(_("The folder does not exist"), str(folder), _("Specify an existing folder."))
    models: list[FoundModel] = []
    settings = runner.settings
    judge = ModelJudge(settings, query_capacity(settings), LoadLimits(runner.paths.load_limits))
    unreadable = await _model_library(runner, options.folders).find(judge, models.append)
    models.sort(key=lambda model: (model.judgement is None, model.name.lower()))
    return print_result(options.as_json, {"models": list(map(_json_fields, models))}, format_models(models, unreadable))


def format_models(models: Sequence[FoundModel], unreadable: Sequence[UnreadableFolder]) -> list[str]:
    rows = [
        (
            model.name,
            model.facts.quantisation,
            format_size(model.size),
            _("{tokens} context", tokens=format_tokens(model.facts.trained_context)),
            _(model.judgement.verdict.value),
            _(model.source.value),
        )
        for model in models
        if model.judgement and model.facts
    ]
    lines = [plural(len(models), "{count} model", "{count} models"), *format_columns(rows)]
    for model in models:
        if problem := model.problem:
            lines += [f"  {model.name}: {problem.title}.", f"    {problem.detail}"]
    text = N_("{path} cannot be read: {reason}.")
    lines += ["  " + _(text, path=folder.path, reason=folder.reason) for folder in unreadable]
    if not models:
        lines += [_("Run `kvchat models suggest` for suggestions, and `kvchat models get` to download one.")]
    return lines


def _json_fields(model: FoundModel) -> dict[str, Any]:
    fields = pick_fields(model, "name path source size projector")
    fields["problem"] = str(model.problem) if model.problem else None
    if model.facts and model.judgement:
        fields |= pick_fields(model.facts, "architecture quantisation trained_context parts")
        fields |= {"verdict": model.judgement.verdict, "reason": model.judgement.reason}
    return fields


def suggest_models(options: arguments.JsonOptions) -> int:
    memory = query_capacity(load_settings(resolve_paths().settings_file)).memory
    tier, suggestions = tier_for(memory), suggestions_for(memory)
    rows = [
        (
            f"{model.repository}:{model.quantisation}",
            _("about {size}", size=format_size(model.size)),
            _(judge_size(model.size, memory).verdict.value),
            _(model.reason),
        )
        for model in suggestions
    ]
    names = "memory_gb repository quantisation size"
    fields = [pick_fields(model, names) | {"why": model.reason} for model in suggestions]
    title = _("For a GPU with {tier} GB:", tier=tier) if tier else _("For a computer without a large GPU:")
    lines = [title, *format_columns(rows), _("Download one with `kvchat models get NAME`.")]
    return print_result(options.as_json, {"memory_gb": tier, "suggestions": fields}, lines)


async def search_models(options: arguments.SearchModelsOptions, runner: CommandRunner) -> int:
    query = " ".join(options.words)
    hits = await _model_library(runner).hub.search(query)
    gated = _("sign-in required")
    rows = [
        (hit.repository, _("{downloads} downloads", downloads=format_number(hit.downloads)), gated if hit.gated else "")
        for hit in hits
    ]
    lines = format_columns(rows) or [_("No repositories with GGUF files match “{what}” on Hugging Face.", what=query)]
    fields = [pick_fields(hit, "repository downloads likes updated gated") for hit in hits]
    return print_result(options.as_json, {"models": fields}, lines)


async def list_files(options: arguments.FilesOptions, runner: CommandRunner) -> int:
    name, _quantisation = _parse_repository(options.repository)
    repository = await _model_library(runner).hub.repository(name)
    memory = query_capacity(runner.settings).memory
    verdicts = [(file, judge_size(file.size, memory).verdict) for file in repository.files]
    judged = [
        pick_fields(file, "name quantisation size")
        | {"parts": [pick_fields(part, "path size sha256") for part in file.parts], "verdict": verdict}
        for file, verdict in verdicts
    ]
    rows = [(file.name, format_size(file.size), _(verdict.value)) for file, verdict in verdicts]
    lines = format_columns(rows) or [_("{repository} has no compatible models.", repository=repository.repository)]
    if rows and repository.gated:
        lines.append(_("This model is gated: add an access token with `kvchat models token`."))
    fields = {"repository": repository.repository, "revision": repository.revision, "files": judged}
    return print_result(options.as_json, fields, lines)


async def download_model(options: arguments.GetModelOptions, runner: CommandRunner) -> int:
    name, quantisation = _parse_repository(options.repository)
    hub = _model_library(runner).hub
    repository = await hub.repository(name)
    file = select_file(repository, quantisation)

    def report_progress(done: int, rate: float, is_verifying: bool) -> None:
        show_progress(_("Checking:") if is_verifying else _("Downloading:"), done, file.size)

    order = DownloadOrder(repository.repository, repository.revision, file)
    path = await fetch_on_own_loop(order, runner.paths.models, hub, report_progress)
    print_out(str(path))
    if options.use:
        await _set_default_model(runner, path)
    return 0


async def use_model(options: arguments.UseModelOptions, runner: CommandRunner) -> int:
    name = " ".join(options.words)
    path = working_folder() / name
    if not await asyncio.to_thread(path.is_file):
        path = await _find_model(_model_library(runner), name)
    await _set_default_model(runner, path)
    return print_result(options.as_json, {"model_path": path}, [_("New chats use {path}.", path=path)])


async def _set_default_model(runner: CommandRunner, path: Path) -> None:
    if runner.open_runtime:
        await runner.open_runtime.use_model(path)
    else:
        await asyncio.to_thread(read_facts, path)
        await runner.change_settings(model_path=str(path))


async def _find_model(library: ModelLibrary, name: str) -> Path:
    models: list[FoundModel] = []
    await library.find(lambda facts: judge_size(facts.size, available_memory()), models.append)
    names = {model.path: model.name for model in models if model.facts}
    paths = [path for path, other in names.items() if other.lower() == name.lower()]
    paths = paths or [path for path, other in names.items() if name.lower() in other.lower()]
    if len(paths) == 1:
        return paths[0]
    title = _("No model on this machine matches “{name}”", name=name)
    if paths:
        title = _("Several models match “{name}”", name=name)
    available = join_list(sorted({names[path] for path in paths or names})) or _("none")
    advice = _("Specify one of them, or the path of a GGUF file.")
    raise KvchatError(title, _("Available: {names}.", names=available), advice)


def select_file(repository: HubRepository, quantisation: str) -> HubFile:
    """Return the model file with this quantisation or file name. Raises KvchatError.

    If `quantisation` is empty, return the only file, or the Q4_K_M file if there are several.
    """
    files, name = list(repository.files), quantisation.lower()
    if name:
        matches = [file for file in files if name in (file.quantisation.lower(), file.name.lower())]
        title = _("{repository} has no such file", repository=repository.repository)
    else:
        matches = files if len(files) == 1 else [file for file in files if file.quantisation == "Q4_K_M"]
        title = _("No file was specified")
    if len(matches) == 1:
        return matches[0]
    available = join_list(file.quantisation or file.name for file in files) or _("no compatible models")
    advice = _("Specify one, for example `kvchat models get {repository}:Q8_0`.", repository=repository.repository)
    raise KvchatError(title, _("Available: {names}.", names=available), advice)


def _parse_repository(text: str) -> tuple[str, str]:
    name, quantisation = text, ""
    if "://" not in text:
        name, _colon, quantisation = text.partition(":")
    if (repository := parse_repository(name)) is None:
        advice = _("Use the form OWNER/NAME; run `kvchat models search` to find repositories.")
        raise KvchatError(_("This is not a repository"), _("“{name}”", name=name), advice)
    return repository, quantisation


def set_token(options: arguments.TokenOptions) -> int:
    paths = resolve_paths()
    store = ModelLibrary(paths, lambda: ()).token
    if options.forget:
        store.forget()
        print_out(_("The access token was deleted."))
        return 0
    # The token is not an argument, because other users can see the command line.
    value = getpass.getpass(_("Access token: ")) if sys.stdin.isatty() else sys.stdin.readline(MAX_TOKEN_LENGTH)
    print_out(_("Saved in {place}.", place=_(store.save(value))))
    return 0
