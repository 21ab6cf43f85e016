"""Client of the desktop's message bus (D-Bus)."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

_TIMEOUT_S = 10.0


class BusUnavailable(Exception):
    """Raised if the bus or the service is not available."""


class Service(NamedTuple):
    name: str
    path: str
    interface: str


class SessionBus:
    """A connection to the session or system bus, made at the first call. Use it with one event loop."""

    def __init__(self, bus: str = "SESSION") -> None:
        self._which = bus
        self._connecting = asyncio.Lock()
        self._connection: Any = None
        self._router: Any = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, service: Service, method: str, signature: str = "", *body: Any) -> tuple[Any, ...]:
        router = await self._connect()
        from jeepney import DBusAddress, DBusErrorResponse, new_method_call
        from jeepney.io.common import RouterClosed
        from jeepney.wrappers import unwrap_msg

        address = DBusAddress(service.path, service.name, service.interface)
        message = new_method_call(address, method, signature, body)
        try:
            return tuple(unwrap_msg(await asyncio.wait_for(router.send_and_get_reply(message), _TIMEOUT_S)))
        except (DBusErrorResponse, RouterClosed, OSError, EOFError, TimeoutError) as error:
            raise BusUnavailable(str(error)) from error

    def send(self, service: Service, method: str, signature: str = "", *body: Any) -> None:
        """Call a method without waiting for the reply, and ignore errors."""

        async def call() -> None:
            with contextlib.suppress(BusUnavailable):
                await self.call(service, method, signature, *body)

        self._keep_reference(asyncio.ensure_future(call()))

    async def listen(self, service: Service, signal: str, handler: Callable[..., object]) -> Callable[[], None]:
        """Call `handler` with the body of each signal, until the returned function is called. Raises BusUnavailable."""
        router = await self._connect()
        from jeepney import MatchRule, message_bus

        rule = MatchRule(type="signal", path=service.path, interface=service.interface, member=signal)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        filtered = router.filter(rule, queue=queue)
        bus = Service(message_bus.bus_name, message_bus.object_path, message_bus.interface)

        async def forward() -> None:
            while True:
                handler(*(await queue.get()).body)

        forwarding = asyncio.ensure_future(forward())
        self._keep_reference(forwarding)

        def stop() -> None:
            forwarding.cancel()
            filtered.close()
            if self._router is router:
                self.send(bus, "RemoveMatch", "s", rule.serialise())

        try:
            await self.call(bus, "AddMatch", "s", rule.serialise())
        except BaseException:
            stop()
            raise
        return stop

    async def unique_name(self) -> str:
        return str((await self._connect()).unique_name)

    async def close(self) -> None:
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._router is not None:
            await self._router.__aexit__(None, None, None)
            await self._connection.close()
            self._router = self._connection = None

    def _keep_reference(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> Any:
        if sys.platform in ("win32", "darwin"):
            raise BusUnavailable("No such bus")
        async with self._connecting:
            if self._router is None:
                try:
                    from jeepney.io.asyncio import DBusRouter, open_dbus_connection

                    self._connection = await asyncio.wait_for(open_dbus_connection(self._which), _TIMEOUT_S)
                except (ImportError, LookupError, OSError, ValueError, RuntimeError, EOFError, TimeoutError) as error:
                    raise BusUnavailable(str(error)) from error
                self._router = DBusRouter(self._connection)
            return self._router
