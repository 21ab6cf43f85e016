"""Above the composer when the context is nearly full: what can be done, for the user to choose."""

from __future__ import annotations

from PySide6.QtCore import Signal

from kvchat.chat.context.context import ContextUse
from kvchat.library.memory.context_size import ContextChoice
from kvchat.ui.widgets.cards import Card
from kvchat.words.wording import tokens_short

TOO_LONG = "This does not fit the context"


class ContextCard(Card):
    """A larger context, the newest part alone, a summary, or part of what is attached. Hidden while there is room."""

    raise_requested = Signal()
    drop_requested = Signal()
    summary_requested = Signal()
    part_requested = Signal()
    stop_requested = Signal()
    later_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.larger = self.add_button("Larger context", "primary")
        self.part = self.add_button("Attach a part of it")
        self.drop = self.add_button("Keep the newest part")
        self.summarise = self.add_button("Summarise the middle")
        self.stop = self.add_button("Stop")
        self.later = self.add_button("Not now", "flat")
        self.larger.clicked.connect(self.raise_requested)
        self.summarise.clicked.connect(self.summary_requested)
        self.drop.clicked.connect(self.drop_requested)
        self.part.clicked.connect(self.part_requested)
        self.stop.clicked.connect(self.stop_requested)
        self.later.clicked.connect(self.later_requested)
        self.summarise.setToolTip("The model sums up what was said; you go on in a branch that begins with that.")
        self.drop.setToolTip("You go on in a branch without the older messages; they stay on the branch you leave.")
        self.part.setToolTip("The beginning of the longest text is attached, as much as there is room for.")
        self.hide()

    def show_choice(
        self, use: ContextUse, larger: ContextChoice | None, *, can_shorten: bool, can_part: bool = False
    ) -> None:
        """Offer what helps. `larger`: the context size that could be had; without turns nothing can be shortened.

        `can_part`: there is a text of which a part could be attached.
        """
        price = f"{larger.reason} " if larger is not None else ""
        self.say(
            TOO_LONG if use.over else "The context is nearly full",
            _taken(use),
            price + _otherwise(use, larger, can_shorten=can_shorten, can_part=can_part),
        )
        if larger is not None:
            self.larger.setText(f"Larger context ({tokens_short(larger.tokens)})")
            self.larger.setToolTip("The engine starts again with a larger context.")
        self._show_buttons(larger=larger is not None, shorten=can_shorten, part=can_part, working=False)

    def show_summarising(self) -> None:
        """The model is at work."""
        self.say("Summarising…", "The model reads what was said and sums it up.", "")
        self._show_buttons(larger=False, shorten=False, part=False, working=True)

    def _show_buttons(self, *, larger: bool, shorten: bool, part: bool, working: bool) -> None:
        self.larger.setVisible(larger)
        self.summarise.setVisible(shorten)
        self.drop.setVisible(shorten)
        self.part.setVisible(part)
        self.stop.setVisible(working)
        self.later.setVisible(not working)
        self.show()


def _taken(use: ContextUse) -> str:
    taken = use.used + use.waiting
    if use.over:
        return f"It has {taken:,} tokens, and the context holds {use.limit:,}."
    return f"{taken:,} of {use.limit:,} tokens are taken, and {use.reserve:,} are kept for the reply."


def _otherwise(use: ContextUse, larger: ContextChoice | None, *, can_shorten: bool, can_part: bool) -> str:
    """What else can be done, beside the buttons."""
    if can_shorten or can_part:
        return "Nothing is cut unless you choose it."
    if larger is not None:
        return "You may also send less at once."
    if use.used >= use.limit:
        return "Give this chat a model with a larger context, or begin a new chat."
    return "Send less at once, or give this chat a model with a larger context."
