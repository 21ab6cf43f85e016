"""The door itself: opened and closed, and what is seen of it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from kvchat.engine.speaking import wire
from kvchat.errors import KvchatError
from kvchat.gateway.answering import Answering
from kvchat.gateway.door.app import make_app
from kvchat.gateway.door.checks import Checks, is_loopback
from kvchat.gateway.door.keys import Keys
from kvchat.gateway.door.server import Listening, listen
from kvchat.gateway.mending import Mending, no_rules
from kvchat.gateway.metrics import Metrics
from kvchat.gateway.models import Catalogue
from kvchat.gateway.requests import Passages
from kvchat.kvstore.savepoint import program_of
from kvchat.session.host import EngineHost, ReadyEngine
from kvchat.session.slots import Slots
from kvchat.words.language import _

PORT = 8737


class NoKey(KvchatError):
    """Others could reach the door, and there is no key."""

    def __init__(self, host: str) -> None:
        super().__init__(
            _("A door that others can reach needs a key"),
            _("At {host} every computer of the network could use the model.", host=host),
            _("Give a key (--key-file, or Settings, Other programs), or listen at 127.0.0.1 alone."),
        )


@dataclass(frozen=True)
class Door:
    """Where it is, and for whom."""

    host: str = "127.0.0.1"
    port: int = PORT
    keys: Keys = field(default_factory=lambda: Keys({}))
    origins: frozenset[str] = frozenset()


class Gateway:
    """Belongs to one event loop. `passages` has the requests, live and past; subscribe there to hear of them."""

    def __init__(
        self,
        slots: Slots,
        host: EngineHost,
        catalogue: Catalogue,
        absorb: Callable[[], Awaitable[None]],
        rules: Callable[[str], Collection[str]] = no_rules,
        shares: Callable[[], bool] = lambda: False,
    ) -> None:
        """`absorb` has the store take apart what was saved, when there is time; `rules`: those on for a program.

        `shares`: whether all programs share their memory.
        """
        self._slots, self._host = slots, host
        self.catalogue = catalogue
        self.passages = Passages(shares)
        self.metrics, self.totals = (Metrics(self.passages, by_program=one) for one in (True, False))
        self.answering = Answering(slots, host, catalogue.find, self.passages, absorb, Mending(rules))
        self.door: Door | None = None  # that is open
        self._listening: Listening | None = None

    @property
    def url(self) -> str | None:
        """Where it is to be found; None while it is closed."""
        if self.door is None or self._listening is None:
            return None
        host = f"[{self.door.host}]" if ":" in self.door.host else self.door.host
        return f"http://{host}:{self._listening.port}"

    @property
    def idle_s(self) -> float:
        """For how long nobody has asked anything, in seconds."""
        return self.answering.background.idle_s

    async def open(self, door: Door) -> str:
        """Open it, in place of one that is open; its address. Raises NoKey and PortTaken."""
        if not door.keys and not is_loopback(door.host):
            raise NoKey(door.host)
        await self.shut()
        self._listening = await listen(make_app(self, Checks(door.host, door.keys, door.origins)), door.host, door.port)
        self.door = door
        assert self.url is not None
        return self.url

    async def shut(self) -> None:
        """Take in nobody any more; what is being answered breaks off, what is being saved is saved."""
        self.door = None
        with self.answering.stopped():
            await self.answering.background.idle()
            if self._listening is not None:
                await self._listening.close()  # whoever waits may be stopped: the next waits for it again
                self._listening = None

    def forget(self, program: str) -> None:
        """Nothing of a program's past requests is known any more."""
        self.passages.forget(program)
        self.answering.mending.forget(program)

    async def look(self, path: str) -> bytes:
        """What the engine shows there, the folders of its files left out. Raises KvchatError."""
        shown = wire.parse_object(await (await self._ready()).engine.look(path))
        paths = {name: shown[name] for name in ("model_path", "model_alias") if isinstance(shown.get(name), str)}
        return json.dumps(shown | {name: re.split(r"[/\\]", one)[-1] for name, one in paths.items()}).encode()

    async def ask_aside(self, program: str, path: str, body: bytes) -> tuple[int, bytes]:
        """The engine's status and answer to what needs no slot. Raises KvchatError, and Refused as `Crashes.check`."""
        crashes = self.answering.crashes
        async with crashes.answering(program):
            engine = (await self._ready()).engine
            crashes.watch(engine.life)
            async with crashes.asking(program), engine.passed_on(path, body) as answer:
                return answer.status_code, await answer.aread()

    def as_json(self, program: str | None) -> dict[str, Any]:
        """What `GET /kvchat/requests` answers: what is under way, the last requests newest first, and the slots.

        Those of one program, to which nobody else's are told; None: all.
        """
        under_way, last = (
            [passage.as_json() for passage in passages if program in (None, passage.program)]
            for passages in (self.passages.under_way, list(reversed(self.passages.last)))
        )
        return {
            "at": time.time(),
            "under_way": under_way,
            "last": last,
            "slots": [
                {
                    "slot": slot.number,
                    "owner": _shown(slot.contents.owner),
                    "tokens": len(slot.contents.tokens),
                    "busy": slot.claim > 0,  # answering, settling or saving
                }
                for slot in self._slots.all
                if slot.contents is not None and program in (None, program_of(slot.contents.owner))
            ],
        }

    async def _ready(self) -> ReadyEngine:
        """The engine that there is; one is started if there is none."""
        if self._host.is_ready():
            return await self._host.ready()
        async with self._slots.alone():
            return await self._host.ready()


def _shown(owner: str) -> str:
    """Whose a slot is, as other programs may know it."""
    return program_of(owner) or "kvchat"
