"""The API server, controlled by the settings. The gateway packages are imported at the server's first start."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from kvchat.engine_host.host import SwitchingEngineHost
from kvchat.engine_host.model import CurrentModel
from kvchat.errors import KvchatError
from kvchat.gateway.keys import ANY_PROGRAM, Keys, KeyStore
from kvchat.kvstore.savepoint import is_device
from kvchat.library.model_library import ModelLibrary
from kvchat.session.slots import Slots
from kvchat.settings import Settings, SettingsNotSaved, any_changed
from kvchat.sharing_service import SharingService
from kvchat.system.concurrency import BackgroundTasks
from kvchat.system.owner import owner_of
from kvchat.system.paths import Paths

if TYPE_CHECKING:
    from kvchat.gateway.gateway import Gateway
    from kvchat.gateway.records import DailyTotals, RequestRecord

# Changing one reopens the server.
_SETTINGS = ("api_server", "api_host", "api_port", "api_origins", "share_devices", "share_port")
SAVE_DELAY_S = 5.0  # batches requests into one write


@dataclass(frozen=True)
class LoadedSlot:
    number: int
    owner: str
    tokens: int


@dataclass
class ApiService:
    paths: Paths
    settings: Callable[[], Settings]
    slots: Slots
    host: SwitchingEngineHost
    model: CurrentModel
    models: ModelLibrary
    notify: Callable[[str, str], None]
    absorb: Callable[[], Awaitable[None]]  # absorbs waiting save files
    url: str | None = None  # API server address; None if it is off
    _gateway: Gateway | None = None
    _follows_settings: bool = False  # set by follow_settings()
    _is_closed_for_good: bool = False  # for good
    _change_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changing_keys: asyncio.Lock = field(default_factory=asyncio.Lock)
    _background: BackgroundTasks = field(default_factory=BackgroundTasks)
    _saving: asyncio.TimerHandle | None = None  # pending save of the totals

    @cached_property
    def gateway(self) -> Gateway:
        """The gateway behind the API server, loaded on first use."""
        from kvchat.gateway.gateway import Gateway
        from kvchat.gateway.runner import Catalogue, Model

        def in_use() -> Model | None:
            name = self.model.name
            return None if name is None else Model(name, None if self.settings().engine_url else self.model.path)

        async def find_models() -> list[Model]:
            paths = [str(model.path) for model in await self.models.usable_models()]
            return [Model(self.model.name_of(path), path) for path in paths]

        catalogue = Catalogue(in_use, find_models, lambda: self.settings().api_any_model)
        self._gateway = Gateway(
            self.slots, self.host, catalogue, self.absorb, self.rules, lambda: self.settings().api_share
        )
        self._gateway.log.subscribe(self._count)
        return self._gateway

    @cached_property
    def sharing(self) -> SharingService:
        return SharingService(self.paths, self.settings, self.notify)

    @property
    def idle_s(self) -> float:
        return self._gateway.runner.background.idle_s if self._gateway else float("inf")

    @cached_property
    def totals(self) -> DailyTotals:
        from kvchat.gateway.records import DailyTotals

        return DailyTotals(self.paths.state / "programs.json")

    @property
    def active_requests(self) -> Sequence[RequestRecord]:
        return self._gateway.log.active if self._gateway else ()

    @property
    def recent_requests(self) -> Sequence[RequestRecord]:
        return tuple(self._gateway.log.recent) if self._gateway else ()

    @property
    def loaded_slots(self) -> tuple[LoadedSlot, ...]:
        return tuple(
            LoadedSlot(slot.number, slot.contents.owner, len(slot.contents.tokens))
            for slot in self.slots.all_slots
            if slot.contents is not None
        )

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        return self.gateway.log.subscribe(lambda record: listener())

    def rules(self, program: str) -> frozenset[str]:
        chosen = (rule.rpartition(" ") for rule in self.settings().api_rules)
        return frozenset(rule for name, _, rule in chosen if name == program)

    async def keys(self) -> dict[str, str]:
        return await asyncio.to_thread(KeyStore(self.paths).load)

    async def make_key(self, program: str = ANY_PROGRAM) -> None:
        await self._change_keys(KeyStore.make, program)

    async def revoke_key(self, program: str) -> None:
        await self._change_keys(KeyStore.revoke, program)

    async def forget(self, program: str) -> None:
        """Delete a program's usage totals and save points. Raises StoreRefused.

        Unless it is a device, this also deletes the save points that all programs share.
        """
        from kvchat.gateway.records import ALL_PROGRAMS

        self.totals.forget(program)
        if self._gateway is not None:
            self._gateway.forget(program)
        await self._save()
        if is_device(program):
            await self.slots.discard_program(program)
            return
        for name in (program, ALL_PROGRAMS):
            await asyncio.to_thread(self.slots.store.inventory.delete_program, name)

    async def remove_device(self, id: str) -> None:
        """Refuse a device from now on, abort its replies and delete its memory. Raises StoreRefused."""
        if (device := self.sharing.remove(id)) is not None:
            await self.forget(device.program)

    async def follow_settings(self) -> None:
        """Open or close the API server as the settings say, now and after each change of the settings."""
        self._follows_settings = True
        await asyncio.to_thread(lambda: self.totals)  # load off the window's thread
        async with self._change_lock:
            if self._is_closed_for_good:
                return
            settings = self.settings()
            await self._close()
            try:
                await self.sharing.load()  # for the names of the devices, also while nothing is shared
            except KvchatError as error:
                self.notify(error.title, error.explanation)
            try:
                if settings.api_server:
                    self.url = await self._open(settings.api_host, settings.api_port, await self.keys())
            except KvchatError as error:
                self.notify(error.title, error.explanation)
            try:
                if settings.share_devices:
                    await self._share()
            except KvchatError as error:
                self.notify(error.title, error.explanation)

    async def settings_changed(self, before: Settings, after: Settings) -> None:
        if self._follows_settings and any_changed(before, after, _SETTINGS):
            await self.follow_settings()

    async def open(self, host: str, port: int, keys: Mapping[str, str] | None = None) -> str:
        """Open the server and return its address. By default, `keys` are the user's API keys. Raises KvchatError."""
        async with self._change_lock:
            await self._close()
            self.url = await self._open(host, port, keys if keys is not None else await self.keys())
            if self.settings().share_devices:
                await self._share()
            return self.url

    async def wait_until_idle(self) -> None:
        if self._gateway is not None:
            await self._gateway.runner.background.wait_until_idle()

    def stopped(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that aborts all responses on entry and refuses requests until its exit. Saves continue."""
        return contextlib.nullcontext() if self._gateway is None else self._gateway.runner.stopped()

    async def close(self) -> None:
        self._is_closed_for_good = True
        async with self._change_lock:
            await self._close()
        await self.sharing.wait_until_saved()
        if self._saving is not None:
            self._saving.cancel()
            await self._save()

    def _count(self, record: RequestRecord) -> None:
        from kvchat.gateway.records import ProgramTotal, Stage

        if record.stage is not Stage.DONE:
            return
        self.totals.count(record.program, ProgramTotal.of(record, self.slots.restore_cost.prefill_ms))
        if self._saving is None:
            loop = asyncio.get_running_loop()
            self._saving = loop.call_later(SAVE_DELAY_S, lambda: self._background.start(self._save()))

    async def _save(self) -> None:
        self._saving = None
        with contextlib.suppress(OSError):  # the next request writes it again
            await asyncio.to_thread(self.totals.write, self.totals.as_text())

    async def _open(self, host: str, port: int, keys: Mapping[str, str]) -> str:
        await asyncio.to_thread(importlib.import_module, "kvchat.gateway.gateway")  # takes a tenth of a second
        from kvchat.gateway.checks import AccessPolicy, parse_origins

        owner = await asyncio.to_thread(owner_of, self.paths.data)
        known_keys = Keys(keys, owner.api_key if owner and owner.pid == os.getpid() else "")
        return await self.gateway.open(AccessPolicy(host, known_keys, parse_origins(self.settings().api_origins)), port)

    async def _share(self) -> None:
        await asyncio.to_thread(importlib.import_module, "kvchat.gateway.gateway")
        await self.sharing.open(self.gateway)

    async def _close(self) -> None:
        self.url = None
        await self.sharing.close()
        if self._gateway is not None:
            await self._gateway.close()

    async def _change_keys(self, change: Callable[[KeyStore, str], object], program: str) -> None:
        try:
            async with self._changing_keys:  # each change reads and writes all keys
                await asyncio.to_thread(change, KeyStore(self.paths), program)
        except OSError as error:
            raise SettingsNotSaved(self.paths.config, error) from error
        if self._follows_settings:
            await self.follow_settings()
