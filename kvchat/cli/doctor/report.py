"""What `kvchat doctor` tells: values, and the lines a person reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvchat.cli.doctor.desktop import Finding
from kvchat.engine.finding.discovery import Device
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.machine import MemoryFacts
from kvchat.words.wording import size as size_in_words

SERVER = "server"  # an engine that kvchat neither starts nor can ask for its devices
_LABEL_WIDTH = 14


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
    quota: str  # of the memory of chats, in words
    staging: str  # where slot files go on their way to and from the engine, and why there
    directories: tuple[FolderReport, ...]

    @property
    def healthy(self) -> bool:
        """Nothing found is broken. A model that was never chosen is no fault."""
        broken = self.engine.problem or self.model.problem or any(folder.problem for folder in self.directories)
        return self.engine.found and not broken


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
        ("limit", report.quota),
        ("staging", report.staging),
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
    if not engine.devices and engine.kind != SERVER:
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
        yield "context", context.in_full
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
