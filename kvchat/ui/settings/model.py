"""Settings, Model and context: which model, how much it can hold in mind, and how exactly."""

from __future__ import annotations

from PySide6.QtCore import Signal

from kvchat.runtime import Runtime
from kvchat.ui.base.building import button
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.memory import MemoryEntry
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.elided import breakable
from kvchat.ui.widgets.entries import TOKENS, ChoiceEntry, Entry, NumberEntry

_KV_TYPES = (("f16", "Exact (f16)"), ("q8_0", "Half the memory (q8_0)"), ("q4_0", "A quarter (q4_0)"))
_PRECISION = (
    "With less precision longer chats fit, and replies may suffer a little. What was kept with another precision "
    "cannot be used until you change it back. In the field’s terms: the type of the KV cache."
)

_SLOTS = ((0, "kvchat decides"), (1, "One"), (2, "Two"), (4, "Four"))
_SIDE_BY_SIDE = (
    "So many of the chats used last stay in the model’s view at once: going back to one of them takes no time, and as "
    "many can be answered at a time. They share the context size, and each slows the others a little."
)


class ModelPage(SettingsPage):
    """The model and its memory."""

    name = "Model and context"
    model_requested = Signal()

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        change = self.change
        choose = button("Choose another…", self.model_requested, name="Choose another model")
        self.model = self.add(Entry("Model", "", choose))
        self.retest = button(
            "Try again",
            lambda: self.run(runtime.retest_restoring()),
            name="Try out again whether chats can be remembered",
            tip="The engine starts again for that",
        )
        self.restoring = self.add(Entry("Chats after a restart", "", self.retest))
        default, reset = "kvchat decides", "Let kvchat decide"
        context = NumberEntry("context_size", "Context size", "", TOKENS, change, default=default, reset=reset)
        self.context = self.add(context)
        self.slots = self.add(ChoiceEntry(look, "slots", "Chats side by side", _SIDE_BY_SIDE, _SLOTS, change))
        self.memory = self.add(MemoryEntry(look))
        self.memory.taken.connect(lambda proposal: self.apply(proposal.taken(runtime.settings)))
        title = "Precision of the memory of chats"
        self.kv_type = self.add(ChoiceEntry(look, "kv_type", title, _PRECISION, _KV_TYPES, change))

    def refresh(self) -> None:
        """Model and context are the runtime's to say."""
        super().refresh()
        runtime = self.runtime
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
