"""Operations of kvchat during which it can be killed: their start and end are reported, and one is the last."""

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

MOMENTS: dict[str, tuple[type, Callable[..., Any]]] = {  # the methods themselves, so that a rename fails at import
    "starting": (Runtime, Runtime.start),
    "saving": (Lease, Lease.save),
    "absorbing": (BlockStore, BlockStore.absorb_pending),
    "restoring": (Lease, Lease.restore),
    "pruning": (Inventory, Inventory.prune),
    "deleting": (RecentlyDeleted, RecentlyDeleted.purge_chat),
    "forgetting": (Inventory, Inventory.delete_conversation),
    "exporting": (TransferService, TransferService.export),
    "importing": (TransferService, TransferService.import_files),
    "quitting": (Runtime, Runtime.close),
}
_STEPS = ("open", "os.", "shutil.", "sqlite3.", "socket.")  # audit events


@dataclass(frozen=True)
class Kill:
    """The process to kill, and when: after some steps or time of this operation, or at its end."""

    moment: str
    victim: str  # "app", "engine" or "both"
    steps: int | None = None  # file operations
    ms: float | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def report(**fields: object) -> None:
    """Write a line with a single call: the process may be killed at any time."""
    os.write(1, (json.dumps(fields) + "\n").encode())


class Killer:
    """Reports the operations of this process and kills it at the planned one. Create it before kvchat runs."""

    def __init__(self, plan: Kill | None) -> None:
        self.plan, self.has_struck = plan, False
        self.watching = False  # set after the engine's self-test, which saves in its own store
        self._steps: int | None = None  # left
        self._guard = threading.Lock()
        sys.addaudithook(self._step)
        for name, (owner, method) in MOMENTS.items():
            setattr(owner, method.__name__, self._wrap(name, method))

    def _wrap(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        if asyncio.iscoroutinefunction(method):

            @functools.wraps(method)
            async def call_async(*arguments: Any, **named: Any) -> Any:
                with self._operation(name):
                    return await method(*arguments, **named)

            return call_async

        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            with self._operation(name):
                return method(*arguments, **named)

        return call

    @contextlib.contextmanager
    def _operation(self, name: str) -> Iterator[None]:
        if not self.watching and name != "starting":
            yield
            return
        is_planned = self.plan is not None and self.plan.moment == name and not self.has_struck
        report(at=name)
        if is_planned and self.plan is not None:
            if self.plan.ms is not None:
                threading.Timer(self.plan.ms / 1000, self._strike).start()
            self._steps = self.plan.steps
        try:
            yield
        finally:
            if is_planned and self._steps is not None:
                self._strike()
            report(past=name)

    def _step(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._steps is None or not event.startswith(_STEPS):
            return
        self._steps -= 1
        if self._steps < 0:
            self._strike()

    def _strike(self) -> None:
        with self._guard:
            if self.has_struck or self.plan is None:
                return
            self.has_struck, self._steps = True, None
        if self.plan.victim != "app":
            for engine in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    engine.kill()
            report(killed="engine", moment=self.plan.moment)
        if self.plan.victim != "engine":
            report(dying=time.time(), moment=self.plan.moment)
            os.kill(os.getpid(), signal.SIGKILL)
