"""Where Tab goes on a page whose widgets are made in any order: to what stands next. Nothing is stored."""

from __future__ import annotations

from itertools import pairwise

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import QWidget

_FORWARDS, _BACKWARDS = Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason


def takes_tab(widget: QWidget) -> bool:
    """Whether Tab may stop there now."""
    wanted = widget.focusPolicy().value & Qt.FocusPolicy.TabFocus.value
    return bool(wanted) and widget.isVisible() and widget.isEnabled() and widget.focusProxy() is None


def stops_in(area: QWidget) -> list[QWidget]:
    """Where Tab stops in an area, itself included, in reading order: line by line, each from the left."""
    stops = [widget for widget in (area, *area.findChildren(QWidget)) if takes_tab(widget)]
    boxes = {stop: QRect(stop.mapTo(area, QPoint(0, 0)), stop.size()) for stop in stops}
    stops.sort(key=lambda stop: boxes[stop].top())
    line = dict.fromkeys(stops, 0)
    for above, below in pairwise(stops):
        line[below] = line[above] + (boxes[below].center().y() > boxes[above].bottom())
    return sorted(stops, key=lambda stop: (line[stop], boxes[stop].left()))


def set_focus(stop: QWidget, forwards: bool) -> None:
    """Give it the keys as Tab or Shift+Tab do."""
    stop.setFocus(_FORWARDS if forwards else _BACKWARDS)


def next_in_window(page: QWidget, forwards: bool) -> QWidget | None:
    """What is next in the window of a page by the window's own order, in which the page is one stop."""
    window = page.window()
    here = window.focusWidget() or window
    start = page if page.isAncestorOf(here) else here
    one = _after(start, forwards)
    while one is not None and one is not start:
        if takes_tab(one) and (one is page or not page.isAncestorOf(one)):
            return one
        one = _after(one, forwards)
    return None


def _after(widget: QWidget, forwards: bool) -> QWidget | None:
    return widget.nextInFocusChain() if forwards else widget.previousInFocusChain()
