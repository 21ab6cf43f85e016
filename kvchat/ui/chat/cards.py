"""Cards above the composer: one for an engine that is not ready, one for a nearly full context."""

from kvchat.chat.context import ContextUsage
from kvchat.engine.api.connection import EngineState, EngineStatus
from kvchat.engine.api.errors import FailureKind
from kvchat.library.memory.context_size import ContextChoice
from kvchat.text.formatting import format_tokens
from kvchat.text.language import N_, _, format_number
from kvchat.ui.base.theme import restyle
from kvchat.ui.widgets.controls import Card

TOO_LONG = N_("The prompt exceeds the context length")


class EngineCard(Card):
    def __init__(self) -> None:
        super().__init__()
        self.start_button = self.add_button(_("Start"), "primary")
        self.restart_button = self.add_button(_("Restart"), "primary")
        self.pair_button = self.add_button(_("Pair again…"), "primary")
        self.log_button = self.add_button(_("View log"))
        self.locate_button = self.add_button(_("Locate file…"), "primary")
        self.download_button = self.add_button(_("Download again…"))
        self.model_button = self.add_button(_("Choose another model"))
        self.own_engine_button = self.add_button(_("Use this computer instead"))

    def show_status(
        self,
        status: EngineStatus,
        model: str | None,
        *,
        is_model_missing: bool = False,
        can_download: bool = False,
        has_own_engine: bool = False,
    ) -> None:
        """Show the engine's state.

        `can_download` means that a missing model can be downloaded again, `has_own_engine` that this computer can take
        over from a paired one.
        """
        state, failure, is_away = status.state, status.failure, status.is_away
        is_remote = is_away or status.is_unpaired
        self.restart_button.setText(_("Try again") if is_away else _("Restart"))
        failed, stopped = state is EngineState.FAILED, state is EngineState.STOPPED
        if state in (EngineState.READY, EngineState.UNLOADED):
            self.hide()
            return
        if failure is not None and not stopped:
            detail = failure.detail
            if not failed:
                detail = _("Restarting the engine.")
                if status.restart_attempt:
                    detail = _("Restarting the engine (attempt {attempt}).", attempt=status.restart_attempt)
                if failure.kind in (FailureKind.NOT_FOUND, FailureKind.AWAY):  # not our own engine: keep looking
                    detail = _("{detail} Trying again…", detail=failure.detail)
            self.set_text(failure.title, detail, failure.advice)
        else:
            self.set_text(*_status_texts(status, model), "")
        self.model_button.setText(_("Choose another model") if model is not None else _("Choose a model"))
        self.show_buttons(
            stopped and model is not None and self.start_button,
            failed and not is_model_missing and not status.is_unpaired and self.restart_button,
            failed and status.is_unpaired and self.pair_button,
            failed and not is_model_missing and not is_remote and self.log_button,
            failed and is_model_missing and self.locate_button,
            failed and is_model_missing and can_download and self.download_button,
            ((failed and not is_away) or (stopped and model is None)) and self.model_button,
            is_remote and has_own_engine and self.own_engine_button,
        )
        for widget in (self, self.title):
            restyle(widget, "tone", "bad" if failed else "")
        self.show()


def _status_texts(status: EngineStatus, model: str | None) -> tuple[str, str]:
    if status.is_testing:
        once = _("This takes a few seconds, once per model and engine. You can start typing.")
        return _("Testing chat memory…"), once
    match status.state:
        case EngineState.STOPPED if model is None:
            return _("No model chosen"), _("Your messages are saved. Choose a model to get replies.")
        case EngineState.STOPPED:
            return _("The engine is stopped"), _("Your chats and their memory are saved.")
        case EngineState.STOPPING:
            return _("Stopping the engine…"), ""
        case EngineState.STARTING:
            return _("Starting the engine…"), ""
    loading = _("Loading {name}…", name=model or _("the model"))
    return loading, _("You can start typing. The reply comes as soon as the model is loaded.")


class ContextCard(Card):
    def __init__(self) -> None:
        super().__init__()
        self.increase_button = self.add_button(_("Increase context"), "primary")
        self.quote_button = self.add_button(_("Quote passages"))
        self.attach_part_button = self.add_button(_("Attach only a part"))
        self.drop_button = self.add_button(_("Drop older messages"))
        self.summarize_button = self.add_button(_("Summarize the middle"))
        self.stop_button = self.add_button(_("Stop"))
        self.new_chat_button = self.add_button(_("New chat"), "primary")
        self.dismiss_button = self.add_button(_("Not now"), "flat")
        self.increase_button.setToolTip(_("Restarts the engine with a longer context."))
        self.summarize_button.setToolTip(
            _("The model summarizes the chat. You continue in a new branch with the summary.")
        )
        self.drop_button.setToolTip(
            _("You continue in a new branch without the older messages. They stay in the current branch.")
        )
        self.quote_button.setToolTip(
            _("kvchat keeps the text with the chat and quotes the passages that match each question.")
        )
        self.attach_part_button.setToolTip(_("Attaches as much of the longest text as fits, from its beginning."))
        self.hide()

    def show_choice(
        self, use: ContextUsage, larger: ContextChoice | None, *, can_shorten: bool, can_attach_part: bool = False
    ) -> None:
        """Offer ways to make the message fit.

        `larger` is a context length that would suffice. `can_attach_part` means that a part of an attached text would
        fit.
        """
        if can_shorten or can_attach_part:
            advice = _("kvchat does not remove anything unless you choose to.")
        elif larger is not None:
            advice = _("You can also send a shorter message.")
        elif use.used >= use.limit:
            advice = _("Choose a model with a longer context, or start a new chat.")
        else:
            advice = _("Send a shorter message, or choose a model with a longer context.")
        if larger is not None:
            advice = f"{larger.reason} {advice}"
            self.increase_button.setText(_("Increase context to {tokens}", tokens=format_tokens(larger.tokens)))
        taken, rounded = format_number(use.used + use.pending), format_tokens(use.used + use.pending)
        limit, reserve = format_number(use.limit), format_number(use.reserve)
        title = _(TOO_LONG) if use.is_over_limit else _("The context is nearly full")
        text = _("It has {taken} tokens; the context length is {limit}.", taken=taken, limit=limit)
        if use.is_over_limit and use.estimated:
            text = _("It has about {taken} tokens; the context length is {limit}.", taken=rounded, limit=limit)
        elif not use.is_over_limit:
            about = _("{taken} of {limit} tokens are used, and {reserve} are reserved for the reply.")
            text = about.format(taken=taken, limit=limit, reserve=reserve)
        self.set_text(title, text, advice)
        remedies = [larger is not None and self.increase_button]
        remedies += [can_attach_part and self.quote_button, can_attach_part and self.attach_part_button]
        remedies += [can_shorten and self.drop_button, can_shorten and self.summarize_button]
        self.show_buttons(*remedies, not any(remedies) and self.new_chat_button, self.dismiss_button)
        self.show()

    def show_summarising(self) -> None:
        self.set_text(_("Summarizing…"), _("The model is summarizing the chat."), "")
        self.show_buttons(self.stop_button)
        self.show()
