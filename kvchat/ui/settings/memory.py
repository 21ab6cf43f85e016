"""Settings, Model and context: the memory the model takes, and what would make it fit better."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from kvchat.library.memory.bar import MemoryBar
from kvchat.library.memory.proposals import Proposal
from kvchat.ui.base.theme import Look
from kvchat.ui.engine.memory_picture import MemoryPicture
from kvchat.ui.widgets.entries import Entry


class MemoryEntry(Entry):
    """A bar for each memory, and below them the proposals with their price."""

    taken = Signal(object)  # the Proposal the user wants

    def __init__(self, look: Look) -> None:
        self._look = look
        self._shown: tuple[Sequence[MemoryBar], Sequence[Proposal]] = ((), ())
        self._holder = QWidget()
        self._column = QVBoxLayout(self._holder)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(12)
        super().__init__("Memory", "What the model takes.", self._holder, wide=True)
        look.changed.connect(self._restyle)  # a lambda would be called when this is gone

    def show_memory(self, bars: Sequence[MemoryBar], proposals: Sequence[Proposal]) -> None:
        """Show these; without a bar there is nothing to show at all."""
        self.setVisible(bool(bars))
        if (bars, proposals) == self._shown:
            return
        self._shown = (bars, proposals)
        measured = any(bar.measured for bar in bars)
        self.say("What the engine has taken, as it says itself." if measured else "An estimate from before the load.")
        self._fill(bars, proposals)

    def _restyle(self) -> None:
        self._fill(*self._shown)

    def _fill(self, bars: Sequence[MemoryBar], proposals: Sequence[Proposal]) -> None:
        while (item := self._column.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()
        for bar in bars:
            self._column.addWidget(MemoryPicture(self._look, bar))
        for proposal in proposals:
            self._column.addWidget(self._offer(proposal))

    def _offer(self, proposal: Proposal) -> QWidget:
        title, words = QLabel(proposal.title), QLabel(f"{proposal.gain} {proposal.price}")
        words.setProperty("kind", "small")
        for label in (title, words):
            label.setTextFormat(Qt.TextFormat.PlainText)
            label.setWordWrap(True)
        use = QPushButton("Use")
        use.setAutoDefault(False)
        use.setAccessibleName(f"Use: {proposal.title}")
        use.setAccessibleDescription(words.text())
        use.clicked.connect(lambda: self.taken.emit(proposal))
        texts = QVBoxLayout()
        texts.setSpacing(2)
        texts.addWidget(title)
        texts.addWidget(words)
        offer = QWidget()
        row = QHBoxLayout(offer)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(24)
        row.addLayout(texts, 1)
        row.addWidget(use, 0, Qt.AlignmentFlag.AlignTop)
        return offer
