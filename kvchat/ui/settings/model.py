"""Settings, Model and context: which model, how much it can hold in mind, and how exactly."""

from __future__ import annotations

from kvchat.runtime import Runtime
from kvchat.ui.base.building import button
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.memory import MemoryEntry
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.entries import TOKENS, ChoiceEntry, Entry, NumberEntry
from kvchat.ui.widgets.layouts import breakable
from kvchat.words.language import N_, _, sentences

_KV_TYPES = (("f16", N_("Exact (f16)")), ("q8_0", N_("Half the memory (q8_0)")), ("q4_0", N_("A quarter (q4_0)")))
_PRECISION = N_(
    "With less precision longer chats fit, and replies may suffer a little. What was kept with another precision "
    "cannot be used until you change it back. In the field’s terms: the type of the KV cache."
)

_SLOTS = ((0, N_("kvchat decides")), (1, N_("One")), (2, N_("Two")), (4, N_("Four")))
_SIDE_BY_SIDE = N_(
    "So many of the chats used last stay in the model’s view at once: going back to one of them takes no time, and as "
    "many can be answered at a time. They share the context size, and each slows the others a little."
)


class ModelPage(SettingsPage):
    """The model and its memory."""

    name = N_("Model and context")

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        change = self.change
        choose = button(_("Choose another…"), lambda: self.leads_to.emit("models"), name=_("Choose another model"))
        self.model = self.add(Entry(_("Model"), "", choose))
        self.retest = button(
            _("Try again"),
            lambda: self.run(runtime.retest_restoring()),
            name=_("Try out again whether chats can be remembered"),
            tip=_("The engine starts again for that"),
        )
        self.restoring = self.add(Entry(_("Chats after a restart"), "", self.retest))
        default, reset = _("kvchat decides"), _("Let kvchat decide")
        context = NumberEntry("context_size", _("Context size"), "", TOKENS, change, default=default, reset=reset)
        self.context = self.add(context)
        self.slots = self.add(ChoiceEntry(look, "slots", _("Chats side by side"), _(_SIDE_BY_SIDE), _SLOTS, change))
        self.memory = self.add(MemoryEntry(look))
        self.memory.taken.connect(lambda proposal: self.apply(proposal.taken(runtime.settings)))
        title = _("Precision of the memory of chats")
        self.kv_type = self.add(ChoiceEntry(look, "kv_type", title, _(_PRECISION), _KV_TYPES, change))

    def refresh(self) -> None:
        """Model and context are the runtime's to say."""
        super().refresh()
        runtime = self.runtime
        engine = runtime.engine
        self.model.say(breakable(runtime.model.name or _("None is chosen yet.")))
        self.restoring.say(engine.restoring)
        self.restoring.setVisible(bool(engine.restoring))
        self.retest.setVisible(engine.may_retest)
        words = _("How much of a chat the model has in view at once. More takes more memory.")
        known = sentences(engine.context_reason, engine.context_warning)
        self.context.say("\n\n".join(part for part in (words, known) if part))
        offers = () if engine.restart_pending else engine.memory_proposals  # they are about the engine that runs
        self.memory.show_memory(engine.memory_bars, offers)
