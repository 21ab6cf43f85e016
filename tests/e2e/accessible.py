"""The application as a screen reader sees it: find a widget by role and name, read it, type into it, press it.

Speaks AT-SPI over D-Bus (specification: at-spi2-core, xml/*.xml). Qt answers when QT_LINUX_ACCESSIBILITY_ALWAYS_ON=1.
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
    """The widget or its application has gone away, or does not do what it was asked."""


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
    """One accessible widget. Its properties are asked for anew at each use."""

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
        """This widget and all below it. Whatever goes away meanwhile is left out."""
        yield self
        try:
            children = self.children()
        except Gone:
            return
        for child in children:
            yield from child.walk()

    def find_all(self, role: str | None = None, name: str | None = None) -> list[Node]:
        """All widgets below with this role and this name, in the order of the tree. None matches everything."""
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
        """`accessibility`: a connection for this alone."""
        self._connection = accessibility
        _ask(accessibility, new_method_call(_REGISTRY, "RegisterEvent", "s", (event,)))
        rule = MatchRule(type="signal", interface=f"{_ATSPI}Event.Object", member=member)
        self._queue = accessibility.filter(rule).queue
        _ask(accessibility, new_method_call(_DBUS, "AddMatch", "s", (rule.serialise(),)))

    def close(self) -> None:
        self._connection.close()

    def _next(self, latest: float) -> Message:
        return self._connection.recv_until_filtered(self._queue, timeout=max(latest - time.monotonic(), 0.01))


class Announcements(_Signals):
    def __init__(self, accessibility: DBusConnection) -> None:
        super().__init__(accessibility, "object:announcement", "Announcement")
        self._heard: list[str] = []

    def wait_for(self, words: str, seconds: float) -> str:
        """The first with these words, those before now included."""
        latest = time.monotonic() + seconds
        while not (found := [one for one in self._heard if words in one]):
            self._heard.append(str(self._next(latest).body[3][1]))
        return found[0]


class Focus(_Signals):
    def __init__(self, accessibility: DBusConnection) -> None:
        super().__init__(accessibility, "object:state-changed:focused", "StateChanged")

    def wait_for(self, role: str, seconds: float, name: str | None = None) -> Node:
        """The first widget whose role ends so, and of this name if one is given, of those not passed over yet."""
        latest = time.monotonic() + seconds
        while True:
            message = self._next(latest)
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
