"""`kvchat doctor`: what kvchat found on this machine, for the user and for bug reports."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
from enum import Enum
from pathlib import Path
from typing import Any

from kvchat import __version__
from kvchat.cli import no_display
from kvchat.cli.doctor.desktop import Finding, Presence, find_keyring, find_tray
from kvchat.cli.doctor.report import SERVER, DoctorReport, EngineReport, FolderReport, ModelReport, RestoreReport, lines
from kvchat.engine.finding.arguments import parse_workers
from kvchat.engine.finding.discovery import build_identity, find_engine, list_devices, usable_engine
from kvchat.engine_host.choice import memory_for
from kvchat.errors import KvchatError
from kvchat.kvstore.memory_files import MEMORY_FOLDER, Staged, place_in, staged_where
from kvchat.library.gguf.facts import model_identity, read_facts
from kvchat.library.gguf.kv_cache import kv_bytes_per_token
from kvchat.library.memory.context_size import ContextChoice, ContextChooser
from kvchat.library.memory.corrections import Circumstances, CorrectionBook
from kvchat.library.memory.machine import MemoryFacts, available_memory, staging_room
from kvchat.library.memory.placement import Demand
from kvchat.library.memory.proposals import FULL_WINDOW
from kvchat.session.restore_support import forget_model, newest_finding
from kvchat.settings import Settings, load_settings
from kvchat.store_service import limit_in_words, store_problem
from kvchat.system.files import is_folder
from kvchat.system.paths import Paths, resolve_paths

FOLDERS = ("config", "data", "models", "save points", "state")
_ATTACHED = "run by yourself; kvchat talks to it and was told so in the settings"


def run(*, as_json: bool = False, retest: bool = False, model: Path | None = None) -> int:
    """Print the report, and first with `retest` forget what was found out about restoring; 0, or 1 for a fault.

    `model`: in place of the one in the settings.
    """
    paths = resolve_paths()
    settings = load_settings(paths.settings_file)
    if model is not None:
        settings = dataclasses.replace(settings, model_path=str(model.absolute()))
    if retest and settings.model_path:
        forget_model(paths.restore_findings, model_identity(Path(settings.model_path)))
    report = collect(paths, settings)
    print(json.dumps(_plain(report), indent=2) if as_json else "\n".join(lines(report)))
    return 0 if report.healthy else 1


def collect(paths: Paths, settings: Settings) -> DoctorReport:
    """Look at everything. Blocks for a second or so: the engine is asked for its version and devices."""
    engine, memory = _look_at_engine(settings)
    model, context = _look_at_model(settings, memory, CorrectionBook(paths.memory_corrections), engine.build)
    return DoctorReport(
        version=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        engine=engine,
        model=model,
        context=context,
        restoring=_look_at_restoring(paths, model),
        memory=memory,
        display=_look_at_display(),
        tray=find_tray(),
        keyring=find_keyring(),
        free_disk_bytes=shutil.disk_usage(_nearest_existing(paths.save_points)).free,
        free_floor_bytes=settings.free_floor_bytes,
        quota=limit_in_words(paths, settings),
        staging=staged_where(MEMORY_FOLDER, staging_room(0)),
        directories=_folders(paths, settings),
    )


def _look_at_engine(settings: Settings) -> tuple[EngineReport, MemoryFacts]:
    """The engine, and the memory it can use: the computer's alone where the engine cannot be asked."""
    if settings.engine_url:
        return EngineReport(True, SERVER, settings.engine_url, _ATTACHED), available_memory()
    try:
        location = find_engine(settings.engine_path)
    except KvchatError as error:
        return EngineReport(found=False, problem=str(error)), available_memory()
    kind, path = location.kind.value, str(location.path) if location.path else None
    try:
        location, asked = usable_engine(settings.engine_path)
        kind, path = location.kind.value, str(location.path) if location.path else None
        build, workers = build_identity(location, asked), parse_workers(settings.rpc_workers)
        staged = Staged(place=place_in(MEMORY_FOLDER))
        devices = list_devices(location, workers)
        return EngineReport(True, kind, path, asked.version, build, devices), memory_for(location, workers, staged)
    except KvchatError as error:
        return EngineReport(True, kind, path, problem=str(error)), available_memory()


def _look_at_model(
    settings: Settings, memory: MemoryFacts, book: CorrectionBook, build: str
) -> tuple[ModelReport, ContextChoice | None]:
    if settings.model_path is None:
        return ModelReport(None), None
    try:
        facts = read_facts(Path(settings.model_path))
        learned = book.find(Circumstances(model_identity(facts.path), facts.size, build, memory.device_kind))
    except KvchatError as error:
        return ModelReport(settings.model_path, problem=str(error)), None
    wanted, whole = settings.context_size, FULL_WINDOW in settings.engine_arguments.split()
    context = ContextChooser(Demand(facts, settings.kv_type, whole, learned), memory).choose(wanted)
    what = facts.name, facts.architecture, facts.quantisation, facts.size, facts.trained_context
    row = kv_bytes_per_token(facts.kv, settings.kv_type, settings.kv_type)
    return ModelReport(str(facts.path), True, *what, row), context


def _look_at_restoring(paths: Paths, model: ModelReport) -> RestoreReport | None:
    """The newest finding, of whichever engine build it is: one that does not run does not always tell its own."""
    if not model.usable or model.path is None:
        return None
    if (newest := newest_finding(paths.restore_findings, model_identity(Path(model.path)))) is None:
        return None
    finding, build = newest
    return RestoreReport(finding.strategy.value, finding.words, build)


def _look_at_display() -> Finding:
    problem = no_display.find_problem()
    return Finding(Presence.MISSING, problem.detail) if problem else Finding(Presence.AVAILABLE, "a window can open")


def _nearest_existing(path: Path) -> Path:
    """The folder itself or, before the first start, the parent it will be made in."""
    return next((folder for folder in (path, *path.parents) if is_folder(folder)), Path(path.anchor))


def _folders(paths: Paths, settings: Settings) -> tuple[FolderReport, ...]:
    problems = {"save points": store_problem(paths, settings)}
    folders = [(name, getattr(paths, name.replace(" ", "_"))) for name in FOLDERS]
    return tuple(FolderReport(name, str(path), is_folder(path), problems.get(name, "")) for name, path in folders)


def _plain(report: DoctorReport) -> dict[str, Any]:
    """The report as JSON takes it."""

    def plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: item.value if isinstance(item, Enum) else item for name, item in pairs}

    return dataclasses.asdict(report, dict_factory=plain)
