"""A system tray on a private bus, and a client for its icons.

With `play_tray`, Qt's QSystemTrayIcon is available under a bare Xvfb. `TrayItem` reads an icon's properties and menu,
and activates menu entries (org.kde.StatusNotifierItem and com.canonical.dbusmenu).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jeepney import DBusAddress, HeaderFields, MessageType, Properties, new_method_call
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import DBusConnection
from jeepney.low_level import Message

from tests.desktop_bus import Bus

WATCHER_NAME = "org.kde.StatusNotifierWatcher"
WATCHER_PATH = "/StatusNotifierWatcher"
ITEM_PATH = "/StatusNotifierItem"
ITEM_INTERFACE = "org.kde.StatusNotifierItem"
MENU_INTERFACE = "com.canonical.dbusmenu"
_ANSWER_SECONDS = 60.0


def play_tray(bus: Bus) -> None:
    """Act as the desktop's part of the tray: accept registrations and report a host."""
    items: list[str] = []

    def answer(member: str, body: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]] | None:
        properties = {
            "IsStatusNotifierHostRegistered": ("b", True),
            "ProtocolVersion": ("i", 0),
            "RegisteredStatusNotifierItems": ("as", list(items)),
        }
        match member:
            case "RegisterStatusNotifierItem":  # a bus name, or an object path on their own connection
                items.append(watcher.sender + body[0] if body[0].startswith("/") else body[0] + ITEM_PATH)
                return "", ()
            case "RegisterStatusNotifierHost":
                return "", ()
            case "Get":
                return "v", (properties[body[1]],)
            case "GetAll":
                return "a{sv}", (properties,)
        return None

    watcher = bus.play(WATCHER_NAME, WATCHER_PATH, WATCHER_NAME, answer)


@dataclass(frozen=True)
class MenuEntry:
    """An entry of a tray menu. `label` is without the mnemonic's underscore; empty for a separator."""

    id: int
    label: str
    enabled: bool
    checked: bool
    children: tuple[MenuEntry, ...] = ()

    def lines(self, indent: int = 0) -> list[str]:
        mark = "✓ " if self.checked else ""
        own = f"{'  ' * indent}{mark}{self.label or '────'}{'' if self.enabled else ' (disabled)'}"
        return [own] + [line for child in self.children for line in child.lines(indent + 1)]


class TrayItem:
    def __init__(self, connection: DBusConnection, full_name: str) -> None:
        self._connection = connection
        name, _, path = full_name.partition("/")
        self._item = DBusAddress(f"/{path}", bus_name=name, interface=ITEM_INTERFACE)
        self._menu = DBusAddress(self.read("Menu"), bus_name=name, interface=MENU_INTERFACE)

    def read(self, name: str) -> Any:
        return _call(self._connection, Properties(self._item).get(name))[0][1]

    def menu(self) -> tuple[MenuEntry, ...]:
        _call(self._connection, new_method_call(self._menu, "AboutToShow", "i", (0,)))
        _revision, root = _call(self._connection, new_method_call(self._menu, "GetLayout", "iias", (0, -1, [])))
        return _entry_lock(root).children

    def click(self, label: str) -> None:
        """Activate the entry with this label. Raises LookupError if there is none or it is disabled."""
        entries = self.menu()
        for entry in _flat(entries):
            if entry.label == label and entry.enabled:
                event = (entry.id, "clicked", ("i", 0), 0)
                _call(self._connection, new_method_call(self._menu, "Event", "isvu", event))
                return
        raise LookupError(f"no enabled entry {label!r} in the tray menu: {[e.label for e in _flat(entries)]}")


def tray_items(connection: DBusConnection) -> list[TrayItem]:
    """Return the tray icons of running applications, oldest first."""
    watcher = DBusAddress(WATCHER_PATH, bus_name=WATCHER_NAME, interface=WATCHER_NAME)
    names: list[str] = _call(connection, Properties(watcher).get("RegisteredStatusNotifierItems"))[0][1]
    running = [name for name in names if _call(connection, message_bus.NameHasOwner(name.partition("/")[0]))[0]]
    return [TrayItem(connection, name) for name in running]


def _call(connection: DBusConnection, message: Message) -> Any:
    reply = connection.send_and_get_reply(message, timeout=_ANSWER_SECONDS)
    if reply.header.message_type == MessageType.error:
        raise RuntimeError(f"{reply.header.fields[HeaderFields.error_name]}: {reply.body}")
    return reply.body


def _entry_lock(layout: Any) -> MenuEntry:
    identifier, properties, children = layout
    values = {name: value for name, (_signature, value) in properties.items()}
    return MenuEntry(
        id=identifier,
        label=values.get("label", "").replace("_", ""),
        enabled=values.get("enabled", True),
        checked=values.get("toggle-state", 0) == 1,
        children=tuple(_entry_lock(child) for _signature, child in children if child[1].get("visible", ("b", True))[1]),
    )


def _flat(entries: tuple[MenuEntry, ...]) -> list[MenuEntry]:
    return [entry for top in entries for entry in (top, *_flat(top.children))]
