"""What a screen reader is told beyond what Qt's own widgets say: what of ours are, and what has just happened."""

from __future__ import annotations

from PySide6.QtCore import QObject
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QAccessibleInterface
from PySide6.QtWidgets import QAccessibleWidget, QWidget


def tell_roles() -> None:
    """From now on a widget whose class has an `accessible_role` is told of as that."""
    QAccessible.installFactory(_face)


def announce(widget: QWidget, words: str, *, urgent: bool = False) -> None:
    """Have it said, whatever has the keyboard; what is urgent interrupts what is being said."""
    if not words:
        return
    event = QAccessibleAnnouncementEvent(widget, words)
    politeness = QAccessible.AnnouncementPoliteness
    event.setPoliteness(politeness.Assertive if urgent else politeness.Polite)
    QAccessible.updateAccessibility(event)


def _face(kind: str, thing: QObject) -> QAccessibleInterface | None:
    role = getattr(type(thing), "accessible_role", None)
    if role is None or not isinstance(thing, QWidget):
        return None
    return QAccessibleWidget(thing, role)
