"""The moments of a kvchat in which it can be killed: told as they begin and end, and one of them as the last."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from kvchat.chat.deletion import RecentlyDeleted
from kvchat.kvstore.inventory import Inventory
from kvchat.kvstore.store import BlockStore
from kvchat.runtime import Runtime
from kvchat.session.lease import Lease
from kvchat.transfer.service import TransferService

MOMENTS: dict[str, tuple[type, Callable[..., Any]]] = {  # the methods themselves: a renamed one fails at import
    "starting": (Runtime, Runtime.begin),
    "saving": (Lease, Lease.save),
    "absorbing": (BlockStore, BlockStore.absorb_pending),
    "restoring": (Lease, Lease._restore),
    "pruning": (Inventory, Inventory.prune),
    "deleting": (RecentlyDeleted, RecentlyDeleted.purge_chat),
    "forgetting": (Inventory, Inventory.delete_conversation),
    "exporting": (TransferService, TransferService.export),
    "importing": (TransferService, TransferService.import_files),
    "quitting": (Runtime, Runtime.close),
}
_STEPS = ("open", "os.", "shutil.", "sqlite3.", "socket.")  # what Python says of itself as it does them


@dataclass(frozen=True)
class Fate:
    """Who is killed, and when: in that moment, after so many steps or so long, if it does not end before."""

    moment: str
    victim: str  # "app", "engine" or "both"
    steps: int | None = None  # files and folders opened, renamed, deleted
    ms: float | None = None

    def in_words(self) -> str:
        return json.dumps(asdict(self))


def say(**what: object) -> None:
    """A line in one write: the process may be killed at any moment."""
    os.write(1, (json.dumps(what) + "\n").encode())


class Fulfilment:
    """Watches the moments of this process, and has its fate come over it. Make one, before anything of kvchat runs."""

    def __init__(self, fate: Fate | None) -> None:
        self.fate, self.struck = fate, False
        self.watching = False  # what the engine's self-test saves, in a store of its own, is no moment
        self._steps: int | None = None  # that are left
        self._guard = threading.Lock()
        sys.addaudithook(self._step)
        for name, (owner, method) in MOMENTS.items():
            setattr(owner, method.__name__, self._told(name, method))

    def _told(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        if asyncio.iscoroutinefunction(method):

            @functools.wraps(method)
            async def waited_for(*arguments: Any, **named: Any) -> Any:
                with self._parse_nested(name):
                    return await method(*arguments, **named)

            return waited_for

        @functools.wraps(method)
        def called(*arguments: Any, **named: Any) -> Any:
            with self._parse_nested(name):
                return method(*arguments, **named)

        return called

    @contextlib.contextmanager
    def _parse_nested(self, name: str) -> Iterator[None]:
        if not self.watching and name != "starting":
            yield
            return
        mine = self.fate is not None and self.fate.moment == name and not self.struck
        say(at=name)
        if mine and self.fate is not None:
            if self.fate.ms is not None:
                threading.Timer(self.fate.ms / 1000, self._strike).start()
            self._steps = self.fate.steps
        try:
            yield
        finally:
            if mine and self._steps is not None:
                self._strike()
            say(past=name)

    def _step(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._steps is None or not event.startswith(_STEPS):
            return
        self._steps -= 1
        if self._steps < 0:
            self._strike()

    def _strike(self) -> None:
        with self._guard:
            if self.struck or self.fate is None:
                return
            self.struck, self._steps = True, None
        if self.fate.victim != "app":
            for engine in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    engine.kill()
            say(killed="engine", moment=self.fate.moment)
        if self.fate.victim != "engine":
            say(dying=time.time(), moment=self.fate.moment)
            os.kill(os.getpid(), signal.SIGKILL)
