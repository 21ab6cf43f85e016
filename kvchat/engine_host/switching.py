"""Two hosts for one chat: kvchat's own engine, and the server that the user runs. The settings say which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kvchat.engine.speaking.connection import DOWN, EngineStatus
from kvchat.engine.speaking.errors import EngineError
from kvchat.engine_host.base import BaseHost
from kvchat.engine_host.choice import EngineChoice, ModelMissing
from kvchat.engine_host.external import ExternalHost
from kvchat.engine_host.managed import ManagedHost
from kvchat.library.memory.bar import MemoryBar
from kvchat.session.host import ReadyEngine
from kvchat.settings import Settings


class SwitchingHost:
    """An `EngineHost` for sessions. It changes hosts only while nothing runs in the one it leaves."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        choose_model: Callable[[str], None],
        managed: ManagedHost,
        external: ExternalHost,
        publish: Callable[[EngineStatus], None],
    ) -> None:
        """`choose_model` puts another model into the settings; `publish` hears of the host in use alone."""
        self._settings, self._choose_model = settings, choose_model
        self.managed, self.external = managed, external
        self.current: BaseHost = external if settings().engine_url else managed
        managed.publish = lambda status: publish(status) if self.current is managed else None
        external.publish = lambda status: publish(status) if self.current is external else None

    @property
    def is_external(self) -> bool:
        """Whether the engine is one that the user runs."""
        return self.current is self.external

    @property
    def status(self) -> EngineStatus:
        """What the engine is doing."""
        return self.current.status

    @property
    def choice(self) -> EngineChoice | None:
        """What was decided for the engine that runs, or ran last; None for a server of the user's."""
        return None if self.is_external else self.managed.choice

    @property
    def memory_bars(self) -> tuple[MemoryBar, ...]:
        """What the model takes of each memory; empty for a server of the user's."""
        return () if self.is_external else self.managed.memory.bars

    @property
    def location(self) -> str:
        """Where the engine that runs, or ran last, is; empty before there was one."""
        if self.is_external:
            return self._settings().engine_url or ""
        return str(self.managed.choice.location) if self.managed.choice else ""

    def is_ready(self, model: str | None = None, *, sees: bool = False) -> bool:
        """Whether `ready` would answer at once."""
        fits = (model is None or not self._runs_another(model)) and (self.current.sees or not sees)
        return self.current.is_ready() and fits

    async def check_vision(self, model: str | None = None) -> None:
        """Whether that model, or the one in use, can be shown pictures. Raises CannotSee."""
        await self._change_hosts()
        await self.current.check_vision(model)

    def recovers(self) -> bool:
        """After a loss: whether an engine is there or coming up by itself."""
        return self.current.recovers()

    def may_rest(self) -> bool:
        """Whether stopping the engine would free memory that kvchat takes."""
        return self.current is self.managed and self.managed.is_ready()

    async def start(self) -> None:
        """Start, or attach. What goes wrong ends up in the status."""
        await self._change_hosts()
        await self.current.start()

    async def stop(self) -> None:
        """Stop the engine, or let go of the server."""
        await self.current.stop()

    async def rest(self) -> None:
        """Stop kvchat's own engine until somebody asks for one."""
        await self._change_hosts()
        if self.current is self.managed:
            await self.managed.rest()

    async def close(self) -> None:
        """Stop for good."""
        await self.external.stop()
        await self.managed.close()

    async def ready(self, model: str | None = None, *, sees: bool = False, tokens: int = 0) -> ReadyEngine:
        """Wait until an engine is ready, with this model if one is named, starting or changing it if need be.

        `sees`: one that can be shown pictures. `tokens`: one with room for so many. A server of the user's has the
        model and the room it has. Raises KvchatError when there will be none.
        """
        await self._change_hosts()
        if model is not None and not self.is_external:
            await self._change_models(model, restarts=sees and not self.current.sees)
        return await self.current.ready(sees=sees, tokens=tokens)

    async def note_restore(self, *, hollow: bool) -> None:
        """A restore in a real turn held, or proved hollow."""
        await self.current.note_restore(hollow=hollow)

    async def explain_loss(self, error: EngineError) -> EngineError:
        """After EngineGone: the reason in the host's words, once it knows it."""
        return await self.current.explain_loss(error)

    async def _change_models(self, model: str, *, restarts: bool) -> None:
        """Make `model` the one in use; where it runs, the settings may name another. Raises ModelMissing.

        `restarts`: it will be started anew even if it runs.
        """
        if self._running_model == model and not restarts:
            return
        if model != self._settings().model_path:
            if not await asyncio.to_thread(Path(model).exists):
                raise ModelMissing(model)
            self._choose_model(model)
        if self._runs_another(model):
            await self.managed.stop()

    def _runs_another(self, model: str) -> bool:
        """Whether kvchat's own engine runs, or was asked to run, with another model than this."""
        return self._running_model not in (None, model)

    @property
    def _running_model(self) -> str | None:
        """The model that kvchat's own engine runs with, or was asked to run with; None where none runs."""
        started = self.managed.started_with
        if self.is_external or started is None or self.managed.status.state in DOWN:
            return None
        return started.model_path

    async def _change_hosts(self) -> None:
        wanted = self.external if self._settings().engine_url else self.managed
        if wanted is not self.current and self.current.status.state in DOWN:
            await self.current.stop()
            self.current = wanted
