"""How the engine is doing, in numbers that are looked up while somebody looks."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFormLayout, QLabel

from kvchat.chat.events import Event, FirstToken, Prefilling, ReplyFinished, Speed
from kvchat.engine.speaking.connection import EngineState, EngineStatus
from kvchat.engine.speaking.vitals import Vitals
from kvchat.ui.base.building import column, label, progress_bar
from kvchat.ui.widgets.layouts import ScrollPage
from kvchat.words.language import N_, _, number, sentences
from kvchat.words.wording import per_second, size, tokens_short

_ROWS = (
    ("state", N_("Engine")),
    ("model", N_("Model")),
    ("now", N_("Now")),
    ("context", N_("Context used")),
    ("prefill", N_("Reading")),
    ("decode", N_("Writing")),
    ("memory", N_("Memory in use")),
    ("graphics", N_("Graphics memory in use")),
    ("process", N_("Process")),
)
_UNKNOWN = "–"


class LivePage(ScrollPage):
    """Rows of a name and a number."""

    def __init__(self) -> None:
        super().__init__("page")
        self._values: dict[str, QLabel] = {}
        self.used = progress_bar(_("Context used"))
        self.used.setFixedWidth(260)
        form = QFormLayout(self.ground, horizontalSpacing=28, verticalSpacing=9)
        form.setContentsMargins(4, 6, 4, 0)
        for key, words in ((key, _(words)) for key, words in _ROWS):
            value = self._values[key] = label(_UNKNOWN, wraps=True, selectable=True)
            value.setAccessibleName(words)
            name = label(words, "muted")
            name.setAlignment(Qt.AlignmentFlag.AlignTop)  # of several lines beside the first
            if key == "context":
                form.addRow(name, column(value, (self.used, 0, Qt.AlignmentFlag.AlignLeft), spacing=5))
            else:
                form.addRow(name, value)

    def value(self, key: str) -> str:
        return self._values[key].text()

    def show_engine(self, status: EngineStatus, location: str, model: str | None) -> None:
        words, attempt = _(status.state.value), status.restart_attempt
        if attempt:
            words = _("{state}, restarted {times} times", state=words, times=attempt)
        if status.failure is not None:
            words += f"\n{sentences(status.failure.title, status.failure.detail)}"
        self._say("state", "\n".join(part for part in (words, location) if part))
        self._say("model", model or _("none"))
        if status.state is not EngineState.READY:
            self._say("now", _UNKNOWN)

    def show_vitals(self, vitals: Vitals | None) -> None:
        """What was looked up; None: there is no engine."""
        slot = vitals.slot if vitals else None
        self.used.setVisible(slot is not None)
        if slot:
            self._say(
                "context",
                _(
                    "{tokens} of {context_size} tokens",
                    tokens=tokens_short(slot.tokens),
                    context_size=tokens_short(slot.context_size),
                ),
            )
            self.used.setRange(0, max(1, slot.context_size))
            self.used.setValue(slot.tokens)
            if slot.busy and self.value("now") in (_UNKNOWN, _("idle")):
                self._say("now", _("busy"))
            elif not slot.busy:
                self._say("now", _("idle"))
        else:
            self._say("context", _UNKNOWN)
        self._say("prefill", _rate(vitals.speed.prefill if vitals else None))
        self._say("decode", _rate(vitals.speed.decode if vitals else None))
        self._say("memory", _bytes(vitals.memory if vitals else None))
        self._say("graphics", _bytes(vitals.graphics_memory if vitals else None))
        self._say("process", str(vitals.pid) if vitals and vitals.pid is not None else _UNKNOWN)

    def hear(self, event: Event) -> None:
        match event:
            case Prefilling(done=done, total=total):
                self._say("now", _("reading, {done} of {total} tokens", done=number(done), total=number(total)))
            case FirstToken():
                self._say("now", _("writing"))
            case Speed(tokens_per_second=rate) if rate:
                self._say("now", _("writing, {rate}", rate=per_second(rate)))
            case ReplyFinished():
                self._say("now", _("idle"))

    def _say(self, key: str, words: str) -> None:
        self._values[key].setText(words)


def _rate(rate: float | None) -> str:
    return _("{rate} on average", rate=per_second(rate)) if rate is not None else _UNKNOWN


def _bytes(count: int | None) -> str:
    return size(count) if count is not None else _UNKNOWN
