"""AT-SPI client over D-Bus: find a widget by role and name, read it, type into it, press it.

Specification: at-spi2-core, xml/*.xml. Qt answers if QT_LINUX_ACCESSIBILITY_ALWAYS_ON=1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jeepney import DBusAddress, HeaderFields, MatchRule, Message, MessageType, Properties, message_bus, new_method_call
from jeepney.io.blocking import DBusConnection, open_dbus_connection

_ROOT = DBusAddress("/org/a11y/atspi/accessible/root", bus_name="org.a11y.atspi.Registry")
_BUS = DBusAddress("/org/a11y/bus", bus_name="org.a11y.Bus", interface="org.a11y.Bus")
_REGISTRY = DBusAddress("/org/a11y/atspi/registry", _ROOT.bus_name, "org.a11y.atspi.Registry")
_DBUS = DBusAddress(message_bus.object_path, message_bus.bus_name, message_bus.interface)
_ATSPI = "org.a11y.atspi."
_NULL_PATH = "/org/a11y/atspi/null"
_SCREEN = 0  # coordinates relative to the screen
_ANSWER_SECONDS = 60.0
_LABELLED_BY = 2  # of the relations, and positions in the state bit field (atspi-constants.h)
_ACTIVE, _FOCUSABLE, _FOCUSED, _SHOWING = 1, 11, 12, 25


class Gone(LookupError):
    """The widget or its application is gone, or does not support the call."""


@dataclass(frozen=True)
class Box:
    x: int
    y: int
    width: int
    height: int

    @property
    def centre(self) -> tuple[int, int]:
        return self.x + self.width // 2, self.y + self.height // 2


@dataclass(frozen=True)
class Node:
    """An accessible widget. Its properties are queried at each use."""

    connection: DBusConnection
    address: DBusAddress

    @property
    def name(self) -> str:
        return str(self._get("Accessible", "Name"))

    @property
    def role(self) -> str:
        return str(self._call("Accessible", "GetRoleName")[0])

    @property
    def labels(self) -> list[Node]:
        relations = self._call("Accessible", "GetRelationSet")[0]
        found = [target for kind, targets in relations if kind == _LABELLED_BY for target in targets]
        return [Node(self.connection, DBusAddress(path, bus_name=name)) for name, path in found]

    showing = property(lambda self: self._state(_SHOWING))
    active = property(lambda self: self._state(_ACTIVE))
    focusable = property(lambda self: self._state(_FOCUSABLE))
    focused = property(lambda self: self._state(_FOCUSED))

    @property
    def box(self) -> Box:
        return Box(*self._call("Component", "GetExtents", "u", (_SCREEN,))[0])

    @property
    def text(self) -> str:
        return str(self._call("Text", "GetText", "ii", (0, -1))[0])

    def set_text(self, text: str) -> None:
        self._call("EditableText", "SetTextContents", "s", (text,))

    def press(self) -> None:
        self._call("Action", "DoAction", "i", (0,))

    def focus(self) -> None:
        self._call("Component", "GrabFocus")

    def children(self) -> list[Node]:
        found = self._call("Accessible", "GetChildren")[0]
        return [Node(self.connection, DBusAddress(path, bus_name=name)) for name, path in found if path != _NULL_PATH]

    @property
    def parent(self) -> Node:
        name, path = self._get("Accessible", "Parent")
        return Node(self.connection, DBusAddress(path, bus_name=name))

    def walk(self) -> Iterator[Node]:
        """Yield this widget and all below it, except those that disappear meanwhile."""
        yield self
        try:
            children = self.children()
        except Gone:
            return
        for child in children:
            yield from child.walk()

    def find_all(self, role: str | None = None, name: str | None = None) -> list[Node]:
        """Return all widgets with this role and name, in tree order. None matches everything."""
        return [node for node in self.walk() if node.matches(role, name)]

    def find(self, role: str | None = None, name: str | None = None) -> Node | None:
        return next((node for node in self.walk() if node.matches(role, name)), None)

    def tree(self, indent: int = 0) -> list[str]:
        try:
            own = f"{'  ' * indent}{self.role} {self.name!r}{'' if self.showing else ' (hidden)'}"
            return [own] + [line for child in self.children() for line in child.tree(indent + 1)]
        except Gone:
            return []

    def matches(self, role: str | None, name: str | None) -> bool:
        try:
            return (role is None or self.role == role) and (name is None or self.name == name)
        except Gone:
            return False

    def _state(self, bit: int) -> bool:
        low, high = self._call("Accessible", "GetState")[0]
        return bool((low | high << 32) >> bit & 1)

    def _call(self, interface: str, member: str, signature: str = "", body: tuple[Any, ...] = ()) -> Any:
        address = self.address.with_interface(_ATSPI + interface)
        return _ask(self.connection, new_method_call(address, member, signature, body))

    def _get(self, interface: str, name: str) -> Any:
        return _ask(self.connection, Properties(self.address.with_interface(_ATSPI + interface)).get(name))[0][1]


def open_accessibility_bus(session: DBusConnection) -> DBusConnection:
    address = _ask(session, new_method_call(_BUS, "GetAddress"))[0]
    return open_dbus_connection(address)


class _Signals:
    def __init__(self, accessibility: DBusConnection, event: str, member: str) -> None:
        """`accessibility`: a connection of its own."""
        self._connection = accessibility
        _ask(accessibility, new_method_call(_REGISTRY, "RegisterEvent", "s", (event,)))
        rule = MatchRule(type="signal", interface=f"{_ATSPI}Event.Object", member=member)
        self._queue = accessibility.filter(rule).queue
        _ask(accessibility, new_method_call(_DBUS, "AddMatch", "s", (rule.serialise(),)))

    def close(self) -> None:
        self._connection.close()

    def _next(self, deadline: float) -> Message:
        return self._connection.recv_until_filtered(self._queue, timeout=max(deadline - time.monotonic(), 0.01))


class Announcements(_Signals):
    def __init__(self, accessibility: DBusConnection) -> None:
        super().__init__(accessibility, "object:announcement", "Announcement")
        self._received: list[str] = []

    def wait_for(self, text: str, seconds: float) -> str:
        """Return the first announcement with this text, including earlier ones."""
        deadline = time.monotonic() + seconds
        while not (matches := [message for message in self._received if text in message]):
            self._received.append(str(self._next(deadline).body[3][1]))
        return matches[0]


class Focus(_Signals):
    def __init__(self, accessibility: DBusConnection) -> None:
        super().__init__(accessibility, "object:state-changed:focused", "StateChanged")

    def wait_for(self, role: str, seconds: float, name: str | None = None) -> Node:
        """Return the next focused widget whose role ends with `role`, with this name if given."""
        deadline = time.monotonic() + seconds
        while True:
            message = self._next(deadline)
            fields = message.header.fields
            node = Node(self._connection, DBusAddress(fields[HeaderFields.path], fields[HeaderFields.sender]))
            if message.body[0] == "focused" and message.body[1]:
                with suppress(Gone):
                    if node.role.endswith(role) and name in (None, node.name):
                        return node


def applications(accessibility: DBusConnection) -> list[Node]:
    return Node(accessibility, _ROOT).children()


def _ask(connection: DBusConnection, message: Any) -> Any:
    reply = connection.send_and_get_reply(message, timeout=_ANSWER_SECONDS)
    if reply.header.message_type == MessageType.error:
        raise Gone(f"{reply.header.fields[HeaderFields.error_name]}: {reply.body}")
    return reply.body
