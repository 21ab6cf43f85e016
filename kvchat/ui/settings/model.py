"""Settings, Model and context: which model, how much it can hold in mind, and how exactly."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QPushButton

from kvchat.ui.settings.memory import MemoryEntry
from kvchat.ui.settings.page import Desk, SettingsPage
from kvchat.ui.widgets.elided import breakable
from kvchat.ui.widgets.entries import ChoiceEntry, Entry, NumberEntry
from kvchat.ui.widgets.number_text import TOKENS

_KV_TYPES = (
    ("f16", "Exact (f16)"),
    ("q8_0", "Half the memory (q8_0)"),
    ("q4_0", "A quarter (q4_0)"),
)


class ModelPage(SettingsPage):
    """The model and its memory."""

    name = "Model and context"
    model_requested = Signal()

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        choose = QPushButton("Choose another…")
        choose.setAccessibleName("Choose another model")
        choose.clicked.connect(self.model_requested)
        self.model = self.add(Entry("Model", "", choose))
        self.retest = QPushButton("Try again")
        self.retest.setAccessibleName("Try out again whether chats can be remembered")
        self.retest.setToolTip("The engine starts again for that")
        self.retest.clicked.connect(lambda: desk.panel.run(desk.runtime.retest_restoring()))
        self.restoring = self.add(Entry("Chats after a restart", "", self.retest))
        self.context = self.add(
            NumberEntry(
                "context_size",
                "Context size",
                "",
                TOKENS,
                desk.change,
                default="kvchat decides",
                reset="Let kvchat decide",
            )
        )
        self.memory = self.add(MemoryEntry(desk.look))
        self.memory.taken.connect(lambda proposal: desk.apply(proposal.taken(desk.runtime.settings)))
        self.kv_type = self.add(
            ChoiceEntry(
                desk.look,
                "kv_type",
                "Precision of the memory of chats",
                "With less precision longer chats fit, and replies may suffer a little. What was kept with another "
                "precision cannot be used until you change it back. In the field’s terms: the type of the KV cache.",
                _KV_TYPES,
                desk.change,
            )
        )

    def refresh(self) -> None:
        """Model and context are the runtime's to say."""
        super().refresh()
        runtime = self.desk.runtime
        engine = runtime.engine
        self.model.say(breakable(runtime.model.name or "None is chosen yet."))
        self.restoring.say(engine.restoring)
        self.restoring.setVisible(bool(engine.restoring))
        self.retest.setVisible(engine.may_retest)
        words = "How much of a chat the model has in view at once. More takes more memory."
        known = " ".join(part for part in (engine.context_reason, engine.context_warning) if part)
        self.context.say("\n\n".join(part for part in (words, known) if part))
        offers = () if engine.restart_pending else engine.memory_proposals  # they are about the engine that runs
        self.memory.show_memory(engine.memory_bars, offers)
