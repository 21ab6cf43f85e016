"""Two rooms for one chat: kvchat's own engine, and the server that the user runs. The settings say which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kvchat.engine.speaking.interface import EngineError
from kvchat.engine.speaking.status import EngineState, EngineStatus
from kvchat.engine.speaking.vitals import Vitals
from kvchat.engine_host.choice import EngineChoice, ModelMissing
from kvchat.engine_host.external import ExternalHost
from kvchat.engine_host.managed import ManagedHost
from kvchat.library.memory.bar import MemoryBar
from kvchat.session.host import ReadyEngine
from kvchat.session.strategy import Finding
from kvchat.settings import Settings

_AT_REST = (EngineState.STOPPED, EngineState.RESTING, EngineState.FAILED)


class SelectedHost:
    """An `EngineHost` for the chat. It changes rooms only while nothing runs in the one it leaves."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        choose_model: Callable[[str], None],
        own: ManagedHost,
        attached: ExternalHost,
    ) -> None:
        """`choose_model` puts another model into the settings."""
        self._settings, self._choose_model = settings, choose_model
        self.own, self.attached = own, attached
        self._now: ManagedHost | ExternalHost = attached if settings().engine_url else own

    def is_current(self, room: ManagedHost | ExternalHost) -> bool:
        """Whether this room is the one in use."""
        return room is self._now

    @property
    def is_attached(self) -> bool:
        """Whether the engine is one that the user runs."""
        return self._now is self.attached

    @property
    def status(self) -> EngineStatus:
        """What the engine is doing."""
        return self._now.status

    @property
    def choice(self) -> EngineChoice | None:
        """What was decided for the engine that runs, or ran last; None for a server of the user's."""
        return None if self.is_attached else self.own.choice

    @property
    def memory_bars(self) -> tuple[MemoryBar, ...]:
        """What the model takes of each memory; empty for a server of the user's."""
        return () if self.is_attached else self.own.memory.bars

    @property
    def started_with(self) -> Settings | None:
        """The settings the engine was chosen by."""
        return self._now.started_with

    @property
    def finding(self) -> Finding | None:
        """What restoring can do with the engine that runs, None before that is known."""
        return self._now.finding

    @property
    def context_size(self) -> int | None:
        """The context size the running engine reported, in tokens; None until it was asked."""
        return self._now.context_size

    @property
    def engine_pid(self) -> int | None:
        """The running engine process, None without one that is known."""
        return self._now.engine_pid

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown to anybody."""
        return self._now.secrets

    @property
    def location(self) -> str:
        """Where the engine that runs, or ran last, is; empty before there was one."""
        if self.is_attached:
            return self._settings().engine_url or ""
        return str(self.own.choice.location) if self.own.choice else ""

    async def vitals(self) -> Vitals | None:
        """How the running engine is doing; None without a ready one."""
        return await self._now.vitals()

    def is_ready(self, model: str | None = None, *, sees: bool = False) -> bool:
        """Whether `ready` would answer at once."""
        fits = (model is None or not self._runs_another(model)) and (self._now.sees or not sees)
        return self._now.is_ready() and fits

    async def check_vision(self, model: str | None = None) -> None:
        """Whether that model, or the one in use, can be shown pictures. Raises CannotSee."""
        await self._change_rooms()
        await self._now.check_vision(model)

    def recovers(self) -> bool:
        """After a loss: whether an engine is there or coming up by itself."""
        return self._now.recovers()

    def may_rest(self) -> bool:
        """Whether stopping the engine would free memory that kvchat takes."""
        return self._now is self.own and self.own.is_ready()

    async def start(self) -> None:
        """Start, or attach. What goes wrong ends up in the status."""
        await self._change_rooms()
        await self._now.start()

    async def stop(self) -> None:
        """Stop the engine, or let go of the server."""
        await self._now.stop()

    async def rest(self) -> None:
        """Stop kvchat's own engine until somebody asks for one."""
        await self._change_rooms()
        if self._now is self.own:
            await self.own.rest()

    async def close(self) -> None:
        """Stop for good."""
        await self.attached.stop()
        await self.own.close()

    async def ready(self, model: str | None = None, *, sees: bool = False, tokens: int = 0) -> ReadyEngine:
        """Wait until an engine is ready, with this model if one is named, starting or changing it if need be.

        `sees`: one that can be shown pictures. `tokens`: one with room for so many. A server of the user's has the
        model and the room it has. Raises KvchatError when there will be none.
        """
        await self._change_rooms()
        if model is not None and not self.is_attached:
            await self._change_models(model, restarts=sees and not self._now.sees)
        return await self._now.ready(sees=sees, tokens=tokens)

    async def forget_finding(self) -> None:
        """Try restoring out again when the engine that runs, or ran last, starts next."""
        await self._now.forget_finding()

    async def note_restore(self, *, hollow: bool) -> None:
        """A restore in a real turn held, or proved hollow."""
        await self._now.note_restore(hollow=hollow)

    async def explain_loss(self, error: EngineError) -> EngineError:
        """After EngineGone: the reason in the room's words, once it knows it."""
        return await self._now.explain_loss(error)

    async def _change_models(self, model: str, *, restarts: bool) -> None:
        """Make `model` the one in use; where it runs, the settings may wish for another next. Raises ModelMissing.

        `restarts`: it will be started anew even if it runs.
        """
        if self._running_model == model and not restarts:
            return
        if model != self._settings().model_path:
            if not await asyncio.to_thread(Path(model).exists):
                raise ModelMissing(model)
            self._choose_model(model)
        if self._runs_another(model):
            await self.own.stop()

    def _runs_another(self, model: str) -> bool:
        """Whether kvchat's own engine runs, or was asked to run, with another model than this."""
        return self._running_model not in (None, model)

    @property
    def _running_model(self) -> str | None:
        """The model that kvchat's own engine runs with, or was asked to run with; None where none runs."""
        started = self.own.started_with
        if self.is_attached or started is None or self.own.status.state in _AT_REST:
            return None
        return started.model_path

    async def _change_rooms(self) -> None:
        wanted = self.attached if self._settings().engine_url else self.own
        if wanted is not self._now and self._now.status.state in _AT_REST:
            await self._now.stop()
            self._now = wanted
