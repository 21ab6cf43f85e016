"""Questions about engines other than running one: which there are, whether one works, what it would accept."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kvchat.engine.finding.discovery import (
    EngineEntry,
    EngineLocation,
    installed_engines,
    program_name,
    take_inventory,
    usable_engine,
)
from kvchat.engine.finding.graphics import Backend, Graphics, find_graphics
from kvchat.engine.running.external import parse_address
from kvchat.engine_host.choice import user_arguments
from kvchat.engine_host.external import server_key
from kvchat.engine_host.fetching import EngineFetcher, FetchedEngine, Fetching, Stage
from kvchat.engine_host.trial import Trial, TrialStep, try_engine
from kvchat.errors import KvchatError
from kvchat.library.remote.starter import installed_starter, starter_path
from kvchat.settings import Settings
from kvchat.system.concurrency import Interruption
from kvchat.system.paths import Paths
from kvchat.system.secret_store import Keeper
from kvchat.words.language import _


def trial_model(paths: Paths, settings: Settings) -> Path | None:
    """Return the smallest model at hand to try an engine with: the starter model, or the one in the settings."""
    starter = starter_path(paths.models)
    if starter.exists():
        return starter
    return installed_starter() or (Path(settings.model_path) if settings.model_path else None)


class KeyNotKept(KvchatError):
    """The key can be kept nowhere."""

    def __init__(self, error: OSError) -> None:
        super().__init__(_("The key could not be kept"), f"{error.strerror}.", _("Check that the disk has room."))


class EngineSetup:
    """Asks engines what the settings window wants to know, and fetches others; what passes the trial is used."""

    def __init__(
        self,
        paths: Paths,
        settings: Callable[[], Settings],
        use: Callable[[str | None], Awaitable[None]],
        notify: Callable[[str, str], object] = lambda title, detail: None,
    ) -> None:
        """`use` takes the engine at that path into use; None: kvchat decides which. `notify` hears of a new one."""
        self._paths, self._settings, self._use, self._notify = paths, settings, use, notify
        self.key = server_key(paths)
        self.fetcher = EngineFetcher(paths.engines, lambda: trial_model(paths, settings()))
        self.fetching: Fetching | None = None  # what is being fetched
        self._fetch = Interruption()
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` at every change of `fetching`, on the loop's thread; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def unused_graphics(self) -> Graphics | None:
        """Return the cards that the engine inside kvchat, the only one here, leaves unused; a Mac's it uses. Blocks."""
        settings, graphics = self._settings(), find_graphics()
        chosen = settings.engine_path or settings.engine_url or any(engine.path for engine in installed_engines())
        return None if chosen or not graphics.makers or graphics.system == "darwin" else graphics

    async def get(self, wanted: Backend | None = None) -> Trial | None:
        """Fetch an engine for the graphics card of this computer, try it out and, if it works, use it.

        None when it was cancelled, or one is being fetched already. Raises KvchatError.
        """
        if self.fetching is not None:
            return None

        async def work() -> tuple[FetchedEngine, Trial]:
            graphics = await asyncio.to_thread(find_graphics)
            return await self.fetcher.fetch(await self.fetcher.build(graphics, wanted), self._tell)

        self._tell(Fetching(Stage.ASKING))
        try:
            got = await self._fetch.run(work())
        finally:
            self._tell(None)
        if got is None:
            return None
        engine, trial = got
        if trial.works:
            await self._use(str(engine.location.path))
            words = _("{name} works, and is chosen.", name=engine.name)
            self._notify(_("There is an engine for the graphics card"), words)
        return trial

    async def remove(self, name: str) -> None:
        """Delete an engine that was fetched; if it is in use, kvchat decides again which to use. Raises KvchatError."""
        if self._settings().engine_path == str(self._paths.engines / name / program_name()):
            await self._use(None)
        await self.fetcher.remove(name)

    async def close(self) -> None:
        self.cancel_fetch()
        await self.fetcher.close()

    def cancel_fetch(self) -> None:
        self._fetch.interrupt()

    def _tell(self, fetching: Fetching | None) -> None:
        if fetching is not None and fetching.build is not None and self.fetching is None:
            return  # a late word, of one that has ended
        self.fetching = fetching
        for listener in tuple(self._listeners):
            listener()

    async def engines(self) -> tuple[EngineEntry, ...]:
        def look() -> tuple[EngineEntry, ...]:
            fetched = [engine.location for engine in self.fetcher.fetched()]
            return take_inventory(self._settings().engine_path, fetched)

        return await asyncio.to_thread(look)

    async def try_out(self, location: EngineLocation, tell: Callable[[TrialStep], None]) -> Trial:
        model = await asyncio.to_thread(trial_model, self._paths, self._settings())
        return await try_engine(location, model, tell)

    async def keep_key(self, value: str) -> Keeper | None:
        """Keep the server's key, or forget it when it is empty; returns what keeps it. Raises KeyNotKept."""
        try:
            if value:
                return await asyncio.to_thread(self.key.save, value)
            await asyncio.to_thread(self.key.forget)
        except OSError as error:
            raise KeyNotKept(error) from error
        return None

    async def why_not(self, name: str, text: str) -> str:
        """Return a sentence why the setting `name` cannot have this text; empty where it can.

        For `engine_arguments`, `rpc_workers` and `engine_url`. The engine may have to be asked for its options.
        """
        change: dict[str, Any] = {name: text}
        wanted = dataclasses.replace(self._settings(), **change)
        try:
            if name == "engine_url":
                parse_address(text)
            else:
                location, asked = await asyncio.to_thread(usable_engine, wanted.engine_path)
                user_arguments(wanted, location, asked)
        except KvchatError as error:
            return error.detail or error.title
        return ""
