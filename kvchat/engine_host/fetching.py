"""Engines for the graphics card: fetched from llama.cpp's releases, tried out, kept beside the others, removed.

Each lies in a folder of its own below `Paths.engines`, and is whole there or not at all. The engine in use stays that
until another one has passed the trial.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvchat.engine.finding.discovery import EngineKind, EngineLocation, program_name
from kvchat.engine.finding.graphics import Backend, Graphics
from kvchat.engine_host.trial import Trial, TrialStep, try_engine
from kvchat.errors import KvchatError
from kvchat.library.remote.downloader import Downloader, Order
from kvchat.library.remote.github import REPOSITORY, EngineBuild, GitHub, backend_of, builds_for
from kvchat.system.archives import UnsafeArchive, unpack
from kvchat.system.concurrency import in_thread
from kvchat.system.files import size_of
from kvchat.words.language import N_, _, listed
from kvchat.words.wording import size as size_in_words

UNPACKED = 3  # times its download an engine takes, at most
STALE_AFTER_S = 24 * 3600.0  # what is so old nobody unpacks or deletes any more


class NoSuchEngine(KvchatError):
    """There is no engine to fetch, or to remove, of that name."""


class EngineNotStored(KvchatError):
    """An engine could not be unpacked or removed."""


class Stage(Enum):
    """What is being done; the value is the word on the screen."""

    ASKING = N_("asking what there is")
    CHECKING = N_("checking what is there")
    FETCHING = N_("downloading")
    UNPACKING = N_("unpacking")
    TRYING = N_("trying it out")


@dataclass(frozen=True)
class Fetching:
    """How far it is. Bytes; rate in bytes per second, 0 while it is not known."""

    stage: Stage
    build: EngineBuild | None = None  # None while it is asked for
    done: int = 0
    rate: float = 0.0
    steps: tuple[TrialStep, ...] = ()


@dataclass(frozen=True)
class FetchedEngine:
    """An engine that kvchat has fetched."""

    name: str
    folder: Path
    size: int  # bytes

    @property
    def location(self) -> EngineLocation:
        return EngineLocation(EngineKind.LLAMA_SERVER, self.folder / program_name())


class EngineFetcher:
    """Belongs to one event loop; the bytes flow on a thread of their own. Asks nothing until a method is called."""

    def __init__(self, engines: Path, trial_model: Callable[[], Path | None]) -> None:
        """`engines`: the folder they are kept in. `trial_model` is called in another thread."""
        self._engines, self._trial_model = engines, trial_model
        self._downloads = engines / ".downloads"
        self._github = GitHub()
        self._downloader = Downloader("engines")

    @property
    def source(self) -> str:
        return self._github.page(REPOSITORY)

    def fetched(self) -> tuple[FetchedEngine, ...]:
        """Return the engines that are here, by their names. Looks at the disk."""
        found = []
        with contextlib.suppress(OSError):
            for folder in sorted(self._engines.iterdir()):
                if not folder.name.startswith(".") and (folder / program_name()).is_file():
                    size = sum(size_of(path) for path in folder.rglob("*") if not path.is_symlink())
                    found.append(FetchedEngine(folder.name, folder, size))
        return tuple(found)

    async def build(self, graphics: Graphics, wanted: Backend | None = None) -> EngineBuild:
        """Find the newest build for these cards, of the best or the wanted kind. Raises NoSuchEngine, HubError."""
        if not graphics.makers:
            why = _("The engine inside kvchat does as well as any on the processor.")
            raise NoSuchEngine(_("No graphics card was found"), why, _("If there is one, install its driver first."))
        releases = await self._downloader.run(self._github.releases(REPOSITORY))
        builds = builds_for(graphics, releases)
        for build in builds:
            if wanted in (None, build.backend):
                return build
        others = listed(build.backend.value for build in builds)
        raise NoSuchEngine(
            _("There is no engine for {card}", card=wanted.value)
            if wanted
            else _("There is no engine for this computer’s card"),
            _("llama.cpp’s newest releases have {others} that suits it.", others=others or _("none")),
            _("Look at {source} yourself, or choose a llama-server that you have.", source=self.source),
        )

    async def fetch(self, build: EngineBuild, tell: Callable[[Fetching], None]) -> tuple[FetchedEngine, Trial]:
        """Download an engine and try it out; one that is here already is only tried.

        Cancelling keeps what has arrived. Raises HubError, DownloadFailed, EngineNotStored. An engine that fails the
        trial stays, to be tried again.
        """
        steps: list[TrialStep] = []

        def report(done: int, rate: float, checking: bool) -> None:
            tell(Fetching(Stage.CHECKING if checking else Stage.FETCHING, build, done, rate))

        def step(tried: TrialStep) -> None:
            steps.append(tried)
            tell(Fetching(Stage.TRYING, build, build.size, steps=tuple(steps)))

        if not (self._engines / build.name / program_name()).exists():
            await asyncio.to_thread(self._make_room, build)
            tell(Fetching(Stage.FETCHING, build))
            await self._downloader.fetch(build.order, self._downloads, self._github, report)
            tell(Fetching(Stage.UNPACKING, build, build.size))
            await in_thread(lambda stop: self._unpack(build.order, stop))
        tell(Fetching(Stage.TRYING, build, build.size))
        engine = await asyncio.to_thread(self._named, build.name)
        model = await asyncio.to_thread(self._trial_model)
        return engine, await try_engine(engine.location, model, step, needs=backend_of(build.name))

    async def remove(self, name: str) -> None:
        """Delete an engine that was fetched. Raises NoSuchEngine, EngineNotStored: then it is still there, whole."""

        def delete() -> None:
            folder = self._named(name).folder
            try:  # Windows lets nobody move what runs
                shutil.rmtree(folder.rename(folder.with_name(f".{name}.gone")))
            except OSError as error:
                title, why = _("The engine could not be removed"), f"{folder}: {error.strerror}."
                raise EngineNotStored(title, why, _("Stop it, then try again.")) from error

        await asyncio.to_thread(delete)

    async def close(self) -> None:
        await self._downloader.close()

    def _make_room(self, build: EngineBuild) -> None:
        """Delete what was begun of others, and check the room for this one. Raises EngineNotStored."""
        try:
            self._downloads.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path in self._downloads.rglob("*"):
                if path.is_file() and not any(path.name.startswith(part.path) for part in build.order.file.parts):
                    path.unlink()
            for left in self._engines.glob(".*"):  # a crash leaves it
                if left != self._downloads and time.time() - left.stat().st_mtime > STALE_AFTER_S:
                    shutil.rmtree(left, ignore_errors=True)
            free = shutil.disk_usage(self._engines).free
        except OSError as error:
            raise _not_stored(self._engines, error) from error
        needed = build.size * (1 + UNPACKED) - build.order.done(self._downloads)
        if free < needed:
            sizes = {"needed": size_in_words(needed), "engines": self._engines, "free": size_in_words(free)}
            raise EngineNotStored(
                _("There is not enough disk space for this engine"),
                _("It needs {needed} for a moment; {engines} has {free} free.", **sizes),
                _("Free some space, then try again."),
            )

    def _unpack(self, order: Order, stop: threading.Event) -> None:
        target = self._engines / order.file.name
        try:
            with tempfile.TemporaryDirectory(prefix=".new-", dir=self._engines, ignore_cleanup_errors=True) as name:
                whole = Path(name) / target.name
                whole.mkdir(mode=0o700)
                for part in order.file.parts:
                    unpack(order.target(self._downloads, part), whole, stop)
                if stop.is_set():
                    return
                if not (whole / program_name()).is_file():
                    raise UnsafeArchive(_("there is no {program_name} in it", program_name=program_name()))
                if target.exists():  # without its program
                    shutil.rmtree(target)
                whole.rename(target)
        except UnsafeArchive as error:
            self._forget(order)
            raise EngineNotStored(
                _("The engine is not as expected"),
                f"{order.file.parts[0].path}: {error}.",
                _("Look at {source}.", source=self.source),
            ) from error
        except OSError as error:
            raise _not_stored(self._engines, error) from error
        self._forget(order)

    def _forget(self, order: Order) -> None:
        for part in order.file.parts:
            with contextlib.suppress(OSError):
                order.target(self._downloads, part).unlink(missing_ok=True)

    def _named(self, name: str) -> FetchedEngine:
        engines = {engine.name: engine for engine in self.fetched()}
        if name not in engines:
            raise NoSuchEngine(
                _("kvchat has fetched no engine called {name}", name=name),
                _("There is: {there}.", there=listed(engines) or _("none")),
                _("Only those can be removed."),
            )
        return engines[name]


def _not_stored(folder: Path, error: OSError) -> EngineNotStored:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EngineNotStored(
            _("The disk is full"),
            _("{folder} has no room left for the engine.", folder=folder),
            _("Free some space, then try again: what has arrived is kept."),
        )
    return EngineNotStored(
        _("The engine cannot be stored"), f"{folder}: {error.strerror}.", _("Check that you may write there.")
    )
