"""Where Tab goes on a page whose widgets are made in any order: to what stands next. Nothing is stored.

Qt's own chain is in the order of making, and is better not even looked at: PySide takes what `nextInFocusChain` (and
`focusProxy`) returns for a child of the widget that was asked, and declares it dead together with that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import QApplication, QWidget


def takes_tab(widget: QWidget) -> bool:
    """Whether Tab may stop there now."""
    wanted = widget.focusPolicy().value & Qt.FocusPolicy.TabFocus.value
    return bool(wanted) and widget.isVisible() and widget.isEnabled()


def stops_in(area: QWidget) -> list[QWidget]:
    """Where Tab stops in an area, itself included, in reading order: line by line, each from the left."""
    stops = list(filter(takes_tab, _family(area)))
    boxes = {stop: QRect(stop.mapTo(area, QPoint(0, 0)), stop.size()) for stop in stops}
    stops.sort(key=lambda stop: boxes[stop].top())
    line = dict.fromkeys(stops, 0)
    for above, below in pairwise(stops):
        line[below] = line[above] + (boxes[below].center().y() > boxes[above].bottom())
    return sorted(stops, key=lambda stop: (line[stop], boxes[stop].left()))


def next_in_window(page: QWidget, forwards: bool) -> QWidget | None:
    """What is next in the window of a page, in the order in which it was built; the page is one stop."""
    here = QApplication.focusWidget()
    family = list(_family(page.window(), closed=page))
    start = family.index(here) if here in family else family.index(page)
    around = [*family[start + 1 :], *family[:start]]
    return next(filter(takes_tab, around if forwards else reversed(around)), None)


def set_focus(stop: QWidget, forwards: bool) -> None:
    """Give it the keys as Tab or Shift+Tab do."""
    stop.setFocus(Qt.FocusReason.TabFocusReason if forwards else Qt.FocusReason.BacktabFocusReason)


def _family(widget: QWidget, closed: QWidget | None = None) -> Iterator[QWidget]:
    """A widget and those in it, to be seen or not, in the order in which they came; `closed` is not looked into."""
    yield widget
    for child in widget.children() if widget is not closed else ():
        if isinstance(child, QWidget) and not child.isWindow():
            yield from _family(child, closed)
