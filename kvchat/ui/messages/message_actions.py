"""What can be asked for with a message, and the buttons below it that ask: seen under the last, or near the mouse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from PySide6.QtCore import Qt
from PySide6.QtGui import QFocusEvent, QMouseEvent, QPaintEvent, QPointingDevice
from PySide6.QtWidgets import QLabel, QMenu, QToolButton, QWidget

from kvchat.chat.record.messages import Message
from kvchat.ui.base.building import label, row, styled, tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.rendering.page_style import PageStyle
from kvchat.words.language import _
from kvchat.words.wording import date_of, day_short, moment_of


class Request(Enum):
    """What is to be done with a message."""

    REGENERATE = "regenerate"  # another reply beside it
    REGENERATE_WITH = "regenerate-with"  # the same by another model, which is chosen first
    CONTINUE = "continue"  # the reply goes on
    EDIT = "edit"  # other words in its place, on a branch of their own
    FORK = "fork"  # a chat of its own goes on from here
    DELETE = "delete"
    SWITCH = "switch"  # to the branch beside it that begins with the message `text`


@dataclass(frozen=True)
class MessageRequest:
    """A request and the message it is about."""

    run: Request
    message: Message
    text: str = ""


class MessageActions(QWidget):
    """A row of buttons. It takes its room also while unseen, so that nothing moves."""

    def __init__(self, style: PageStyle, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._style = style
        self._buttons: list[_QuietButton] = []
        self._time: QLabel | None = None
        self._always = self._near = False
        self.pager: list[QToolButton] = []  # to the branch before and after, where there are several
        self._row = row(on=self, spacing=2, margins=0)

    def add(self, glyph: str, words: str, act: Callable[[], object]) -> QToolButton:
        button = _QuietButton(self)
        button.setProperty("kind", "quiet")
        button.setIcon(icon(glyph, self._style.theme.muted))
        button.setToolTip(words)
        button.setAccessibleName(words)
        button.clicked.connect(lambda: act())
        self._buttons.append(button)
        self._row.addWidget(button)
        return button

    def add_time(self, at: datetime) -> None:
        """When the message was written, before all buttons: the time of day, or the day of an earlier one."""
        local, now = at.astimezone(), datetime.now().astimezone()
        day = day_short(local) if local.year == now.year else date_of(local)
        words = f"{local:%H:%M}" if local.date() == now.date() else day
        self._time = time = _QuietLabel(self, words)
        styled(time, "small").setToolTip(moment_of(at))
        time.setAccessibleName(moment_of(at))
        self._row.insertWidget(0, time)

    def add_to(self, menu: QMenu) -> None:
        """What the buttons do but copying, as entries of a menu."""
        for button in self._buttons[1:]:
            if not button.isHidden():
                menu.addAction(button.icon(), button.toolTip(), button.click)

    def add_pager(self, position: int, count: int, go: Callable[[int], object]) -> None:
        """Which of several branches this is, counted from 0, always seen; `go` is given another one's position."""
        place = label(f"{position + 1} / {count}", "small")
        place.setAccessibleName(_("Branch {position} of {count}", position=position + 1, count=count))
        for glyph, words, to in (
            ("chevron-left", _("Previous branch"), position - 1),
            ("chevron-right", _("Next branch"), position + 1),
        ):
            picture = icon(glyph, self._style.theme.muted if 0 <= to < count else self._style.theme.line)
            button = tool_button(words, lambda _=False, to=to: go(to), "quiet", icon=picture)
            button.setEnabled(0 <= to < count)
            self.pager.append(button)
        for widget in (self.pager[0], place, self.pager[1]):
            self._row.addWidget(widget)

    @property
    def seen(self) -> bool:
        """True while the time and the buttons are painted."""
        return self._near or self._always or any(button.hasFocus() for button in self._buttons)

    def stay(self, always: bool) -> None:
        self._always = always
        self.update()

    def reveal(self, near: bool) -> None:
        """Show the buttons while the mouse, or the last tap, is on the message; else let them fade into the page."""
        self._near = near
        self.update()


class _QuietLabel(QLabel):
    """Words that are painted only while their row is seen."""

    def __init__(self, actions: MessageActions, words: str) -> None:
        super().__init__(words)
        self._actions = actions

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._actions.seen:
            super().paintEvent(event)


class _QuietButton(QToolButton):
    """A button that is painted only while its row is seen."""

    def __init__(self, actions: MessageActions) -> None:
        super().__init__()
        self._actions, self.painted = actions, False
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # else a click would give the keyboard to the page

    def paintEvent(self, event: QPaintEvent) -> None:
        self.painted = self._actions.seen
        if self.painted:
            super().paintEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """A finger comes from nowhere: where the button was not to be seen before, it shows the row and no more."""
        if self.painted or event.pointerType() is not QPointingDevice.PointerType.Finger:
            super().mousePressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self._actions.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self._actions.update()
