"""The door for other programs, as the settings have it. Its packages are loaded when it is opened first."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kvchat.engine_host.model import AnsweringModel
from kvchat.engine_host.switching import SwitchingHost
from kvchat.errors import KvchatError
from kvchat.library.model_library import ModelLibrary
from kvchat.session.slots.pool import Slots
from kvchat.settings import Settings, differ
from kvchat.system.ownership import Ownership
from kvchat.system.paths import Paths

if TYPE_CHECKING:
    from kvchat.gateway.gateway import Gateway
    from kvchat.gateway.models import Model

DOOR_SETTINGS = ("door", "door_host", "door_port", "door_origins")
OURS = "kvchat"  # kvchat's own commands, as a program
ANY_PORT = 0


@dataclass
class DoorService:
    """Opens it, shuts it, and lets kvchat's own commands in by a key of their own, whatever the settings are."""

    paths: Paths
    settings: Callable[[], Settings]
    slots: Slots
    host: SwitchingHost
    model: AnsweringModel
    models: ModelLibrary
    ownership: Ownership
    notify: Callable[[str, str], None]
    url: str | None = None  # where other programs find it; None while it is shut to them
    _gateway: Gateway | None = None
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @cached_property
    def gateway(self) -> Gateway:
        """What is behind the door: requests, live and past, counters and models."""
        from kvchat.gateway.gateway import Gateway
        from kvchat.gateway.models import Catalogue

        catalogue = Catalogue(self._in_use, self._look, lambda: self.settings().door_any_model)
        self._gateway = Gateway(self.slots, self.host, catalogue)
        return self._gateway

    @property
    def idle_s(self) -> float:
        """For how long no other program has asked anything, in seconds."""
        return self._gateway.idle_s if self._gateway else float("inf")

    async def follow(self) -> None:
        """Open or shut it as the settings say; what goes wrong is told. kvchat's own commands can always come in."""
        async with self._changing:
            settings = self.settings()
            self.url = None
            if settings.door:
                try:
                    self.url = await self._open(settings.door_host, settings.door_port, await self._keys())
                    return
                except KvchatError as error:
                    self.notify(error.title, f"{error.detail} {error.advice}".strip())
            try:
                await self._open("127.0.0.1", ANY_PORT, None)
            except KvchatError:  # then a command says that the engine is here
                return

    async def changed(self, before: Settings, after: Settings) -> None:
        """Other settings are in force."""
        if self._gateway is not None and differ(before, after, DOOR_SETTINGS):
            await self.follow()

    async def open(self, host: str, port: int, keys: Mapping[str, str] | None = None) -> str:
        """Open it there, with the user's own keys unless some are given; its address. Raises KvchatError."""
        async with self._changing:
            self.url = await self._open(host, port, keys if keys is not None else await self._keys())
            return self.url

    async def idle(self) -> None:
        """Wait until nothing is answered or saved."""
        if self._gateway is not None:
            await self._gateway.answering.background.idle()

    async def break_off(self) -> None:
        """End what is being answered; what is being saved is finished."""
        if self._gateway is not None:
            await self._gateway.answering.end()

    async def close(self) -> None:
        """Shut it, to kvchat's own commands too."""
        async with self._changing:
            self.url = None
            if self._gateway is not None:
                await self._gateway.shut()

    async def _open(self, host: str, port: int, keys: Mapping[str, str] | None) -> str:
        """`keys`: None lets in kvchat's own commands alone; empty ones let in everybody."""
        from kvchat.gateway.door.checks import origins_in
        from kvchat.gateway.door.keys import Keys
        from kvchat.gateway.gateway import Door

        ours = secrets.token_urlsafe(32)
        let_in = Keys({} if keys is not None and not keys else {**(keys or {}), OURS: ours})
        url = await self.gateway.open(Door(host, port, let_in, origins_in(self.settings().door_origins)))
        await asyncio.to_thread(self.ownership.tell_door, url, ours)
        return url

    async def _keys(self) -> dict[str, str]:
        from kvchat.gateway.door.keys import DoorKeys

        return await asyncio.to_thread(DoorKeys(self.paths).load)

    def _in_use(self) -> Model | None:
        from kvchat.gateway.models import Model

        name, settings = self.model.name, self.settings()
        return None if name is None else Model(name, None if settings.engine_url else settings.model_path)

    async def _look(self) -> list[Model]:
        from kvchat.gateway.models import Model

        return [Model(self.model.name_of(str(one.path)), str(Path(one.path))) for one in await self.models.usable()]
