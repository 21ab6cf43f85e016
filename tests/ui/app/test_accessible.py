"""The windows as a screen reader sees them: roles, names and announcements."""

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QEvent, QObject, QSize, Qt
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QAccessibleEvent, QAccessibleInterface
from PySide6.QtWidgets import QApplication, QMainWindow, QWidget

from kvchat.chat.events import ReplyFinished, TurnFailed
from kvchat.chat.record.messages import MessageState, Role
from kvchat.errors import KvchatError
from kvchat.session.proof import Source
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.accessibility import report_accessible_roles
from kvchat.ui.transcript.footer import ReceiptView
from tests.ui.every_window import furnish, open_all
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until

_MEANINGLESS = {QAccessible.Role.Client, QAccessible.Role.Border, QAccessible.Role.NoRole}
report_accessible_roles()


@pytest.fixture
def furnished(runtime: StagedRuntime) -> StagedRuntime:
    furnish(runtime)
    return runtime


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Record announcements: text, and True if urgent."""
    heard: list[tuple[str, bool]] = []

    def hear(event: QAccessibleEvent) -> None:
        assert isinstance(event, QAccessibleAnnouncementEvent)
        heard.append((event.message(), event.politeness() is QAccessible.AnnouncementPoliteness.Assertive))

    monkeypatch.setattr("kvchat.ui.base.accessibility.QAccessible.updateAccessibility", hear)
    return heard


@pytest.mark.slow
async def test_whatever_can_be_used_says_what_it_is_and_does(furnished: StagedRuntime, window: MainWindow) -> None:
    window.chat.open("thesis")
    await until(lambda: len(window.findChildren(ReceiptView)) == len(Source))
    windows = await open_all(furnished, window)
    found = [(top.windowTitle(), face) for top in windows for face in faces(top) if can_be_used(face)]
    unclear = [
        (title, face.role().name, type(face.object()).__name__, name(face))
        for title, face in found
        if not name(face).strip() or face.role() in _MEANINGLESS
    ]
    for top in windows[1:]:
        top.close()
    assert len(found) > 200
    assert unclear == []


class Strays(QObject):
    """Event filter that records widgets shown as windows by mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Show and isinstance(watched, QWidget):
            flags = watched.windowType()
            if watched.isWindow() and flags is Qt.WindowType.Window and not isinstance(watched, QMainWindow):
                self.found.append(f"{type(watched).__name__} {watched.accessibleName()}")
        return False


async def test_no_part_of_a_window_is_shown_as_a_window_of_its_own(
    furnished: StagedRuntime, window: MainWindow, qapp: QApplication
) -> None:
    """A widget shown before it has a parent flashes, and takes as long as a window."""
    strays = Strays()
    qapp.installEventFilter(strays)
    windows = await open_all(furnished, window)
    qapp.removeEventFilter(strays)
    for top in windows[1:]:
        top.close()
    assert strays.found == []


@pytest.mark.slow
async def test_every_window_fits_a_small_screen_and_a_large_one_at_three_hundred_percent(
    furnished: StagedRuntime, window: MainWindow
) -> None:
    windows = await open_all(furnished, window)
    least = {top.windowTitle(): top.minimumSizeHint().expandedTo(top.minimumSize()) for top in windows}
    for top in windows[1:]:
        top.close()
    room = QSize(3840 // 3, 2160 // 3) - QSize(16, 48)
    assert {title: size for title, size in least.items() if size.boundedTo(room) != size} == {}


async def test_a_reply_is_one_thing_with_a_name(furnished: StagedRuntime, window: MainWindow) -> None:
    furnished.chat.write("tax", Role.USER, "What is due?")
    furnished.chat.write("tax", Role.ASSISTANT, "**Forty** euros.\n\n```python\nprint(40)\n```\n\nOn Friday.")
    window.chat.open("tax")
    await until(
        lambda: len(window.transcript.views) == 2 and all(v.is_complete for v in window.transcript.views.values())
    )
    grouped = [name(face) for face in faces(window.transcript) if face.role() is QAccessible.Role.Grouping]
    assert sorted(grouped) == ["Reply: **Forty** euros. ```python print(40) ``` On Friday.", "You: What is due?"]


async def test_what_happens_is_said(furnished: StagedRuntime, window: MainWindow, said: list[tuple[str, bool]]) -> None:
    window.chat.open("tax")
    furnished.chat.write("tax", Role.USER, "What is due?")
    reply = furnished.chat.write("tax", Role.ASSISTANT, "**Forty** euros.", state=MessageState.COMPLETE)
    furnished.events.publish(ReplyFinished("tax", reply.id, None))
    await until(lambda: ("Reply: Forty euros.", False) in said)
    window.notices.notify("Saved", "In your folder.")
    window.notices.show_error(KvchatError("The disk is full", "Nothing was saved.", "Make room."))
    assert said[-2:] == [("Saved. In your folder.", False), ("The disk is full. Nothing was saved. Make room.", True)]
    furnished.events.publish(TurnFailed("tax", KvchatError("The engine died", "It ran out of memory.")))
    await until(lambda: ("The engine died. It ran out of memory.", True) in said)


def faces(top: QWidget) -> Iterator[QAccessibleInterface]:
    """Yield all accessible interfaces below `top` that a screen reader sees."""
    waiting = [QAccessible.queryAccessibleInterface(top)]
    while waiting:
        face = waiting.pop()
        yield face
        waiting += [
            child
            for place in range(face.childCount())
            if (child := face.child(place)) is not None and child.isValid() and not child.state().invisible
        ]


def can_be_used(face: QAccessibleInterface) -> bool:
    """Return True if it can have keyboard focus; a widget with a focus proxy cannot."""
    thing = face.object()
    return bool(face.state().focusable) and not (isinstance(thing, QWidget) and thing.focusProxy() is not None)


def name(face: QAccessibleInterface) -> str:
    return face.text(QAccessible.Text.Name)
