"""What a document's chip and a picture's tile have in common."""

from __future__ import annotations

from PySide6.QtCore import QSize, Signal
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QToolButton

from kvchat.chat.record.messages import Attachment
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.widgets.elided import plain_tip
from kvchat.words.wording import size, tokens_short


class AttachmentCard(QFrame):
    """One attachment: a button that opens it, how much it is, and the cross that takes it away again."""

    opened = Signal()
    removed = Signal()

    def __init__(self, look: Look, attachment: Attachment, what: str, tip: str) -> None:
        super().__init__()
        self.attachment = attachment
        self._look = look
        self.setProperty("kind", "chip")
        self.name = QPushButton()
        self.name.setAccessibleName(f"{what} {attachment.name}")
        self.name.setToolTip(plain_tip(f"{attachment.name}\n{size(attachment.size)}\n{tip}"))
        self.name.clicked.connect(self.opened)
        self.count = QLabel(size(attachment.size))
        self.count.setProperty("kind", "small")

    def cross(self) -> QToolButton:
        """The button that takes it away."""
        cross = QToolButton()
        cross.setIcon(icon("close", self._look.theme.muted))
        cross.setIconSize(QSize(12, 12))
        cross.setAccessibleName(f"Remove {self.attachment.name}")
        cross.clicked.connect(self.removed)
        return cross

    def show_found(self, found: bool) -> None:
        """Whether what is searched for is in it."""
        restyle(self, "found", "true" if found else "false")
        self.name.setAccessibleDescription("What you search for is in it" if found else "")

    def show_tokens(self, tokens: int, *, counted: bool) -> None:
        """How many tokens it has; an estimate says so."""
        self.count.setText(f"{tokens_short(tokens)} tokens" if counted else f"about {tokens_short(tokens)} tokens")
