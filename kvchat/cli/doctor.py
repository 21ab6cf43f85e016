"""`kvchat doctor`: what kvchat found on this machine, for the user and for bug reports."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from kvchat import __version__
from kvchat.chat.findings import forget_model, newest_finding
from kvchat.cli import no_display
from kvchat.cli.desktop import Finding, Presence, find_keyring, find_tray
from kvchat.engine.discovery import Device, find_engine, list_devices
from kvchat.engine.extra_arguments import parse_workers
from kvchat.engine.probe import build_identity, usable_engine
from kvchat.errors import KvchatError
from kvchat.library.context_size import ContextChoice, choose_context_size
from kvchat.library.corrections import Circumstances, CorrectionBook
from kvchat.library.gguf_facts import GgufFacts, read_facts
from kvchat.library.kv_cache import kv_bytes_per_token
from kvchat.library.memory import MemoryFacts, available_memory
from kvchat.library.model_identity import model_identity
from kvchat.library.proposals import FULL_WINDOW
from kvchat.paths import Paths, resolve_paths
from kvchat.plain_file import is_folder
from kvchat.rooms.capacity import memory_for
from kvchat.settings import Settings, load_settings
from kvchat.store_desk import store_problem
from kvchat.wording import size as size_in_words

_LABEL_WIDTH = 14
_SERVER = "server"  # an engine that kvchat neither starts nor can ask for its devices
_ATTACHED = "run by yourself; kvchat talks to it and was told so in the settings"


@dataclass(frozen=True)
class EngineReport:
    """The engine that would be started, or why there is none."""

    found: bool
    kind: str = ""
    path: str | None = None  # None for the embedded engine
    version: str = ""
    build: str = ""  # what tells it from others, see probe.build_identity
    devices: tuple[Device, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class ModelReport:
    """The model in the settings, or what is wrong with it. Size in bytes, context in tokens."""

    path: str | None
    usable: bool = False
    name: str = ""
    architecture: str = ""
    quantisation: str = ""
    size: int = 0
    trained_context: int = 0
    kv_bytes_per_token: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class RestoreReport:
    """What was found out about restoring with the model in the settings, and with which engine build."""

    strategy: str
    words: str
    build: str


@dataclass(frozen=True)
class FolderReport:
    """One of kvchat's folders."""

    name: str
    path: str
    exists: bool
    problem: str = ""  # why it cannot be used, and what is not done therefore


@dataclass(frozen=True)
class DoctorReport:
    """Everything `kvchat doctor` tells. Sizes in bytes."""

    version: str
    python: str
    system: str
    engine: EngineReport
    model: ModelReport
    context: ContextChoice | None
    restoring: RestoreReport | None  # None before an engine ran with this model
    memory: MemoryFacts
    display: Finding
    tray: Finding
    keyring: Finding
    free_disk_bytes: int
    free_floor_bytes: int
    directories: tuple[FolderReport, ...]

    @property
    def healthy(self) -> bool:
        """Nothing found is broken. A model that was never chosen is no fault."""
        broken = self.engine.problem or self.model.problem or any(folder.problem for folder in self.directories)
        return self.engine.found and not broken


def run(*, as_json: bool = False, retest: bool = False) -> int:
    """Print the report, and first with `retest` forget what was found out about restoring; 0, or 1 for a fault."""
    paths = resolve_paths()
    settings = load_settings(paths.settings_file)
    if retest and settings.model_path and paths.database.exists():
        forget_model(paths.database, model_identity(Path(settings.model_path)))
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
        directories=_folders(paths, settings),
    )


def _look_at_engine(settings: Settings) -> tuple[EngineReport, MemoryFacts]:
    """The engine, and the memory it can use: the computer's alone where the engine cannot be asked."""
    if settings.engine_url:
        return EngineReport(True, _SERVER, settings.engine_url, _ATTACHED), available_memory()
    try:
        location = find_engine(settings.engine_path)
    except KvchatError as error:
        return EngineReport(found=False, problem=str(error)), available_memory()
    kind, path = location.kind.value, str(location.path) if location.path else None
    try:
        location, asked = usable_engine(settings.engine_path)
        kind, path = location.kind.value, str(location.path) if location.path else None
        build, workers = build_identity(location, asked), parse_workers(settings.rpc_workers)
        devices = list_devices(location, workers)
        return EngineReport(True, kind, path, asked.version, build, devices), memory_for(location, workers)
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
    context = choose_context_size(facts, memory, settings.kv_type, wanted, corrections=learned, swa_full=whole)
    return _describe(facts, settings.kv_type), context


def _describe(facts: GgufFacts, kv_type: str) -> ModelReport:
    return ModelReport(
        path=str(facts.path),
        usable=True,
        name=facts.name,
        architecture=facts.architecture,
        quantisation=facts.quantisation,
        size=facts.size,
        trained_context=facts.trained_context,
        kv_bytes_per_token=kv_bytes_per_token(facts, kv_type, kv_type),
    )


def _look_at_restoring(paths: Paths, model: ModelReport) -> RestoreReport | None:
    """The newest finding, of whichever engine build it is: one that does not run does not always tell its own."""
    if not model.usable or model.path is None:
        return None
    if (newest := newest_finding(paths.database, model_identity(Path(model.path)))) is None:
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
    named = {
        "config": paths.config,
        "data": paths.data,
        "models": paths.models,
        "save points": paths.save_points,
        "state": paths.state,
    }
    problems = {paths.save_points: store_problem(paths, settings)}
    return tuple(FolderReport(name, str(path), is_folder(path), problems.get(path, "")) for name, path in named.items())


def lines(report: DoctorReport) -> list[str]:
    """The report as a person reads it: labels to the left, one fact a line."""
    rows = [
        ("kvchat", f"{report.version}, Python {report.python}, {report.system}"),
        *_engine_rows(report.engine),
        *_model_rows(report.model),
        *_context_rows(report.context),
        *_restore_rows(report),
        ("memory", f"{size_in_words(report.memory.available)} {'allowed here' if report.memory.limited else 'free'}"),
        ("display", _finding(report.display)),
        ("tray", _finding(report.tray)),
        ("keyring", _finding(report.keyring)),
        (
            "free disk",
            f"{size_in_words(report.free_disk_bytes)}; below {size_in_words(report.free_floor_bytes)} nothing is saved",
        ),
        *(row for folder in report.directories for row in _folder_rows(folder)),
    ]
    return [f"{label:<{_LABEL_WIDTH}}{text}" for label, text in rows]


def _engine_rows(engine: EngineReport) -> Iterator[tuple[str, str]]:
    if not engine.found:
        yield "engine", f"not found. {engine.problem}"
        return
    yield "engine", engine.path or "embedded"
    if engine.problem:
        yield "", engine.problem
        return
    yield "", engine.version
    for device in engine.devices:
        # The engine calls all of the computer's memory free; what is free is told under "memory".
        tells_free = device.free_bytes and device.name != "CPU"
        free = f", {size_in_words(device.free_bytes or 0)} free" if tells_free else ""
        yield "device", f"{device.name}: {device.description}{free}"
    if not engine.devices and engine.kind != _SERVER:
        yield "device", "the processor alone"


def _model_rows(model: ModelReport) -> Iterator[tuple[str, str]]:
    if model.path is None:
        yield "model", "none chosen yet"
        return
    if not model.usable:
        yield "model", model.problem
        return
    yield "model", f"{model.name}: {model.architecture}, {model.quantisation}, {size_in_words(model.size)}"
    yield "", model.path


def _context_rows(context: ContextChoice | None) -> Iterator[tuple[str, str]]:
    if context is not None:
        yield "context", context.reason
        if context.warning:
            yield "", context.warning
        for bar in context.bars:
            yield "takes", f"{bar.place}: {bar.in_words}"


def _restore_rows(report: DoctorReport) -> Iterator[tuple[str, str]]:
    if report.restoring is not None:
        yield "restoring", report.restoring.words
        yield "", f"engine: {report.restoring.build}"
    elif report.model.usable:
        yield "restoring", "not tried yet: kvchat does that when it first starts an engine with this model"


def _folder_rows(folder: FolderReport) -> Iterator[tuple[str, str]]:
    yield folder.name, folder.path + ("" if folder.exists or folder.problem else " (not made yet)")
    if folder.problem:
        yield "", folder.problem


def _finding(finding: Finding) -> str:
    return f"{finding.presence.value}: {finding.detail}"


def _plain(report: DoctorReport) -> dict[str, Any]:
    """The report as JSON takes it."""

    def value(item: object) -> object:
        return item.value if isinstance(item, Enum) else item

    return dataclasses.asdict(report, dict_factory=lambda pairs: {name: value(item) for name, item in pairs})
