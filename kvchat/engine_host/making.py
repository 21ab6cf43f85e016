"""The two hosts, made and joined."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kvchat.engine.running.log import EngineLog
from kvchat.engine.running.supervisor import EngineSupervisor
from kvchat.engine.speaking.connection import EngineStatus
from kvchat.engine_host.external import ExternalHost
from kvchat.engine_host.managed import ManagedHost
from kvchat.engine_host.memory import EngineMemory
from kvchat.engine_host.setup import server_key
from kvchat.engine_host.switching import SwitchingHost
from kvchat.kvstore.store import SavePointStore
from kvchat.library.memory.corrections import CorrectionBook
from kvchat.session.restore_support import Findings
from kvchat.settings import Settings
from kvchat.system.paths import Paths


@dataclass(frozen=True)
class HostParts:
    """What hosts are made of."""

    paths: Paths
    settings: Callable[[], Settings]
    store: SavePointStore
    findings: Findings
    log: EngineLog
    take_model: Callable[[str], None]  # puts another model into the settings
    changed: Callable[[EngineStatus], None]  # hears of the host in use
    notify: Callable[[str, str], None]
    needed: Callable[[], Awaitable[int]]  # tokens that the chats have that are likely to be answered


def make_hosts(parts: HostParts) -> SwitchingHost:
    """Both, and what goes from one to the other."""
    generations, folder = itertools.count(1), parts.store.staging_folder()
    managed = ManagedHost(
        parts.settings,
        folder,
        EngineSupervisor(log=parts.log, generations=generations),
        parts.findings,
        EngineMemory(CorrectionBook(parts.paths.memory_corrections), parts.notify, parts.store),
        parts.needed,
    )
    external = ExternalHost(parts.settings, folder, generations, parts.findings, lambda: _kept_key(parts.paths))
    return SwitchingHost(parts.settings, parts.take_model, managed, external, parts.changed, parts.log)


def _kept_key(paths: Paths) -> str:
    kept = server_key(paths).load()
    return kept[0] if kept else ""
