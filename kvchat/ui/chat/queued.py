"""A message that was written during a reply: on show above the composer until it is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QFrame, QWidget

from kvchat.ui.base.building import button, label, row, styled
from kvchat.ui.widgets.elided import ElidedLabel
from kvchat.words.language import _, listed
from kvchat.words.wording import one_line

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Attachment


class QueuedMessage(QFrame):
    """Its words and what can be done with it. Takes no room while there is none."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        styled(self, "details").setAccessibleName(_("Queued message"))
        self.state, self.words = label(kind="small"), ElidedLabel()
        self.send = button(_("Send now"), kind="link", name=_("Send the queued message now"))
        self.edit = button(_("Edit"), kind="link", name=_("Edit the queued message"))
        self.remove = button(_("Remove"), kind="link", name=_("Remove the queued message"))
        parts = self.state, (self.words, 1), self.send, self.edit, self.remove
        row(*parts, on=self, spacing=10, margins=(12, 4, 12, 4))
        self.source: Callable[[], tuple[str, Sequence[Attachment]]] = lambda: ("", ())
        self.hide()

    def refresh(self) -> None:
        """Show the message that the source has now; an empty one hides the line."""
        text, attachments = self.source()
        self.words.set_text(listed(part for part in (one_line(text), *(a.name for a in attachments)) if part))
        self.setVisible(bool(text or attachments))

    def set_waiting(self, waiting: bool) -> None:
        """Say whether it is sent by itself: while the reply before it is being made."""
        self.state.setText(_("Sent after this reply:") if waiting else _("Not sent yet:"))
        self.send.setVisible(not waiting)
