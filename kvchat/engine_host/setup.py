"""Setup of engines: listing, testing, and downloading llama.cpp releases for the graphics card.

Each downloaded engine has its own folder below `Paths.engines`, which is complete or absent. The engine in use is
replaced only after another one has passed the test.
"""

import asyncio
import contextlib
import dataclasses
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from kvchat.engine.discovery.engines import (
    EngineEntry,
    EngineLocation,
    installed_engines,
    list_engines,
    program_name,
    usable_engine,
)
from kvchat.engine.discovery.graphics import Backend, Graphics, detect_graphics
from kvchat.engine.process.external import parse_address
from kvchat.engine_host.choice import user_arguments
from kvchat.engine_host.engines import server_key
from kvchat.engine_host.paired_computer import PairedComputer, PairedComputerStore
from kvchat.engine_host.trial import EngineTrial, TrialStep, try_engine
from kvchat.errors import KvchatError
from kvchat.library.remote.downloader import DownloadOrder, disk_failure, fetch_on_own_loop, run_on_own_loop
from kvchat.library.remote.github import LLAMA_CPP_REPOSITORY, GitHub, backend_of, builds_for
from kvchat.library.remote.starter import installed_starter, starter_path
from kvchat.settings import Settings, SettingsNotSaved
from kvchat.system.archives import UnsafeArchive, unpack
from kvchat.system.concurrency import InterruptibleTask, in_thread
from kvchat.system.files import file_size, replace_file
from kvchat.system.paths import Paths
from kvchat.system.secret_store import SecretLocation
from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _, join_list

MAX_UNPACK_RATIO = 3  # unpacked to download size, at most
STALE_AFTER_S = 24 * 3600.0  # temporary folders older than this were left by a crash


class Stage(Enum):
    SEARCHING = N_("looking for a release")
    CHECKING = N_("checking existing files")
    FETCHING = N_("downloading")
    UNPACKING = N_("unpacking")
    TESTING = N_("testing")


@dataclass(frozen=True)
class EngineDownload:
    """The progress of downloading and testing an engine."""

    stage: Stage
    order: DownloadOrder | None = None  # None while kvchat looks for a release
    downloaded_bytes: int = 0
    rate: float = 0.0  # bytes per second; 0 if unknown
    steps: tuple[TrialStep, ...] = ()


@dataclass(frozen=True)
class DownloadedEngine:
    name: str
    folder: Path
    size: int  # bytes

    @property
    def location(self) -> EngineLocation:
        return EngineLocation(self.folder / program_name())


def downloaded_engines(engines: Path) -> tuple[DownloadedEngine, ...]:
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted(engines.iterdir()):
            if not folder.name.startswith(".") and (folder / program_name()).is_file():
                size = sum(file_size(path) for path in folder.rglob("*") if not path.is_symlink())
                found.append(DownloadedEngine(folder.name, folder, size))
    return tuple(found)


def trial_model(paths: Paths, settings: Settings) -> Path | None:
    """Return a model for testing an engine: the starter model, because it is small, or else the selected one."""
    starter, selected = starter_path(paths.models), Path(settings.model_path) if settings.model_path else None
    return starter if starter.exists() else installed_starter() or selected


class EngineSetup:
    """Lists the engines on this computer, and downloads, tests, selects and removes them."""

    def __init__(
        self,
        paths: Paths,
        settings: Callable[[], Settings],
        use_engine: Callable[[str | None], Awaitable[None]],
        notify: Callable[[str, str], object] = lambda title, detail: None,
    ) -> None:
        """`use_engine` selects the engine at a path, or the default if None. `notify` shows a title and a detail."""
        self._paths, self._settings, self._use_engine, self._notify = paths, settings, use_engine, notify
        self.key_store, self._computers = server_key(paths), PairedComputerStore(paths)
        self._engines, self._downloads = paths.engines, paths.engines / ".downloads"
        self._github = GitHub()
        self.download: EngineDownload | None = None
        self._fetch = InterruptibleTask()
        self._listeners: list[Callable[[], None]] = []

    @property
    def releases_url(self) -> str:
        return self._github.page(LLAMA_CPP_REPOSITORY)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when `download` changes; return a function that unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def unused_graphics(self) -> Graphics | None:
        """Return this computer's GPUs if no engine except the embedded one is set or installed, otherwise None. Blocks.

        On macOS, this is always None.
        """
        settings, graphics = self._settings(), detect_graphics()
        chosen = settings.engine_path or settings.engine_url or any(engine.path for engine in installed_engines())
        return None if chosen or not graphics.vendors or graphics.system == "darwin" else graphics

    async def install(self, backend: Backend | None = None) -> EngineTrial | None:
        """Download and test an engine for the GPU, and select it if it passes. Raises KvchatError.

        Return None if the download was cancelled or another one is in progress.
        """
        if self.download is not None:
            return None
        self._publish(EngineDownload(Stage.SEARCHING))
        try:
            result = await self._fetch.run(self._download_and_test(backend))
        finally:
            self._publish(None)
        if result is None:
            return None
        engine, trial = result
        if trial.works:
            await self._use_engine(str(engine.location.path))
            message = _("{name} passed its test and is now selected.", name=engine.name)
            self._notify(_("GPU engine ready"), message)
        return trial

    async def remove(self, name: str) -> None:
        """Delete a downloaded engine, after selecting the default if it is in use. Raises KvchatError."""

        def delete() -> None:
            folder = self._find_downloaded(name).folder
            gone = folder.with_name(f".{name}.gone")
            try:
                replace_file(folder, gone)  # fails on Windows while the engine runs
                shutil.rmtree(gone)
            except OSError as error:
                title, why = _("The engine could not be removed"), f"{folder}: {error.strerror}."
                raise KvchatError(title, why, _("Stop the engine, then try again.")) from error

        if self._settings().engine_path == str(self._engines / name / program_name()):
            await self._use_engine(None)
        await asyncio.to_thread(delete)

    async def close(self) -> None:
        self.cancel_download()
        if self._fetch.task is not None:
            await asyncio.wait([self._fetch.task])

    def cancel_download(self) -> None:
        self._fetch.interrupt()

    def _publish(self, fetching: EngineDownload | None) -> None:
        if fetching is not None and fetching.order is not None and self.download is None:
            return  # late progress of a download that has ended
        self.download = fetching
        for listener in tuple(self._listeners):
            listener()

    async def list_engines(self) -> tuple[EngineEntry, ...]:
        downloaded = await asyncio.to_thread(downloaded_engines, self._engines)
        locations = [engine.location for engine in downloaded]
        return await asyncio.to_thread(list_engines, self._settings().engine_path, locations)

    async def test_engine(self, location: EngineLocation, on_step: Callable[[TrialStep], None]) -> EngineTrial:
        model = await asyncio.to_thread(trial_model, self._paths, self._settings())
        return await try_engine(location, model, on_step)

    async def save_key(self, value: str) -> SecretLocation | None:
        """Save the server's API key and return its location, or delete it if `value` is empty. Raises KvchatError."""
        try:
            if value:
                return await asyncio.to_thread(self.key_store.save, value)
            await asyncio.to_thread(self.key_store.forget)
        except OSError as error:
            advice = _("Check that the disk is not full.")
            raise KvchatError(_("The API key could not be saved"), f"{error.strerror}.", advice) from error
        return None

    async def paired_computer(self) -> PairedComputer | None:
        return await asyncio.to_thread(self._computers.load)

    async def pair(self, address: str, code: str) -> PairedComputer:
        """Pair with another computer, which replaces the one before. Raises KvchatError."""
        return await self._computers.pair(address, code)

    async def unpair(self) -> None:
        try:
            await asyncio.to_thread(self._computers.forget)
        except OSError as error:
            raise SettingsNotSaved(self._paths.config, error) from error

    async def validation_error(self, name: str, text: str) -> str:
        """Return why the setting `name` cannot have this text, or "". May query the engine for its options."""
        change: dict[str, Any] = {name: text}
        changed = dataclasses.replace(self._settings(), **change)
        try:
            if name == "engine_url":
                parse_address(text)
            else:
                user_arguments(changed, await asyncio.to_thread(usable_engine, changed.engine_path))
        except KvchatError as error:
            return error.detail or error.title
        return ""

    async def _newest_build(self, backend: Backend | None) -> DownloadOrder:
        graphics = await asyncio.to_thread(detect_graphics)
        if not graphics.vendors:
            why = _("The embedded engine is as fast as any other on the CPU.")
            raise KvchatError(_("No GPU found"), why, _("If this computer has a GPU, install its driver first."))
        builds = builds_for(graphics, await run_on_own_loop(self._github.releases(LLAMA_CPP_REPOSITORY)))
        for order in builds:
            if backend in (None, backend_of(order.file.name)):
                return order
        title = _("No engine is available for this GPU")
        if backend:
            title = _("No {card} engine is available", card=backend.value)
        others = join_list(kind.value for order in builds if (kind := backend_of(order.file.name)))
        raise KvchatError(
            title,
            _("Matching builds in the latest llama.cpp releases: {others}.", others=others or _("no builds")),
            _("See {source}, or choose a llama-server on this computer.", source=self.releases_url),
        )

    async def _download_and_test(self, backend: Backend | None) -> tuple[DownloadedEngine, EngineTrial]:
        """Download an engine, unless it is there, and test it. An engine that fails the test is kept."""
        order = await self._newest_build(backend)
        name, size = order.file.name, order.file.size
        steps: list[TrialStep] = []

        def report_bytes(done: int, rate: float, is_verifying: bool) -> None:
            self._publish(EngineDownload(Stage.CHECKING if is_verifying else Stage.FETCHING, order, done, rate))

        def report_step(step: TrialStep) -> None:
            steps.append(step)
            self._publish(EngineDownload(Stage.TESTING, order, size, steps=tuple(steps)))

        if not (self._engines / name / program_name()).exists():
            await asyncio.to_thread(self._make_room, order)
            self._publish(EngineDownload(Stage.FETCHING, order))
            await fetch_on_own_loop(order, self._downloads, self._github, report_bytes)
            self._publish(EngineDownload(Stage.UNPACKING, order, size))
            await in_thread(lambda stop: self._unpack(order, stop))
        self._publish(EngineDownload(Stage.TESTING, order, size))
        engine = await asyncio.to_thread(self._find_downloaded, name)
        model = await asyncio.to_thread(trial_model, self._paths, self._settings())
        return engine, await try_engine(engine.location, model, report_step, needs=backend_of(name))

    def _make_room(self, order: DownloadOrder) -> None:
        """Delete other partial downloads and check the free space. Raises KvchatError."""
        try:
            self._downloads.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path in self._downloads.rglob("*"):
                if path.is_file() and not any(path.name.startswith(part.path) for part in order.file.parts):
                    path.unlink()
            for left in self._engines.glob(".*"):
                if left != self._downloads and time.time() - left.stat().st_mtime > STALE_AFTER_S:
                    shutil.rmtree(left, ignore_errors=True)
            free = shutil.disk_usage(self._engines).free
        except OSError as error:
            raise disk_failure(self._engines, error) from error
        needed = order.file.size * (1 + MAX_UNPACK_RATIO) - order.bytes_done(self._downloads)
        if free < needed:
            sizes = {"needed": format_size(needed), "folder": self._engines, "free": format_size(free)}
            raise KvchatError(
                _("Not enough disk space for this engine"),
                _("Installing it takes {needed} temporarily; {folder} has {free} free.", **sizes),
                _("Free up disk space, then try again."),
            )

    def _unpack(self, order: DownloadOrder, stop: threading.Event) -> None:
        target = self._engines / order.file.name
        try:
            with tempfile.TemporaryDirectory(prefix=".new-", dir=self._engines, ignore_cleanup_errors=True) as name:
                whole = Path(name) / target.name
                whole.mkdir(mode=0o700)
                for part in order.file.parts:
                    unpack(order.target_path(self._downloads, part), whole, stop)
                if stop.is_set():
                    return
                if not (whole / program_name()).is_file():
                    raise UnsafeArchive(_("it does not contain {program_name}", program_name=program_name()))
                if target.exists():  # without its program, or it would not have been downloaded
                    shutil.rmtree(target)
                replace_file(whole, target)
        except UnsafeArchive as error:
            shutil.rmtree(self._downloads, ignore_errors=True)
            raise KvchatError(
                _("The engine archive is invalid"),
                f"{order.file.parts[0].path}: {error}.",
                _("See {source}.", source=self.releases_url),
            ) from error
        except OSError as error:
            raise disk_failure(self._engines, error) from error
        shutil.rmtree(self._downloads, ignore_errors=True)

    def _find_downloaded(self, name: str) -> DownloadedEngine:
        engines = {engine.name: engine for engine in downloaded_engines(self._engines)}
        if name not in engines:
            raise KvchatError(
                _("No downloaded engine is named {name}", name=name),
                _("Available: {names}.", names=join_list(engines) or _("no engines")),
                _("Only downloaded engines can be removed."),
            )
        return engines[name]
