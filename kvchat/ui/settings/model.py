"""Settings, Model and context: the model, its context length, and the memory that takes."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QLabel, QWidget

from kvchat.library.memory.demand import COMPUTER, MemoryBar
from kvchat.library.memory.verdict import Proposal
from kvchat.runtime import Runtime
from kvchat.settings import SETTING_INFO
from kvchat.text.formatting import CHATS_READY, format_size
from kvchat.text.language import N_, _, join_list, join_parts, join_sentences
from kvchat.ui.base.building import button, clear, column, label, row, styled
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.controls import HEIGHT, RoundBar, mix
from kvchat.ui.widgets.entries import Entry
from kvchat.ui.widgets.layouts import breakable

_LEAST = 3.0  # pixels; keeps small parts visible
_NAMES = (
    N_("the model"),
    N_("context"),
    N_("compute buffers"),
    CHATS_READY,
)  # weights, KV cache, buffers, staging
_TONES = (1.0, 0.6, 0.3)  # of the accent


class ModelPage(SettingsPage):
    name, key = N_("Model and context"), "model"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        choose = button(_("Choose another…"), lambda: self.leads_to.emit("models"), name=_("Choose another model"))
        self.model = self.add(Entry(_("Model"), "", choose))
        name, tip = _("Test again whether chats can be remembered"), _("Restarts the engine")
        self.retest = button(_("Try again"), lambda: self.run(runtime.retest_restoring()), name=name, tip=tip)
        self.restoring = self.add(Entry(_("Restoring chats"), "", self.retest))
        self.add_settings(through="slots")
        self.memory = self.add(MemoryEntry(look))
        self.memory.taken.connect(lambda proposal: self.apply(proposal.apply_to(runtime.settings)))
        self.add_settings()

    def refresh(self) -> None:
        super().refresh()
        runtime = self.runtime
        engine = runtime.engine
        self.model.set_help(breakable(runtime.model.name or _("No model chosen yet.")))
        self.restoring.set_help(engine.restoring)
        self.restoring.setVisible(bool(engine.restoring))
        self.retest.setVisible(engine.may_retest)
        known = join_sentences(engine.context_reason, engine.context_warning)
        about = SETTING_INFO["context_size"]
        self.settings["context_size"].set_help("\n\n".join(part for part in (_(about.help), known) if part))
        offers = () if engine.restart_pending else engine.memory_proposals  # they apply to the running engine
        self.memory.show_memory(engine.memory_bars, offers)


class MemoryEntry(Entry):
    taken = Signal(object)  # accepted Proposal

    def __init__(self, look: Look) -> None:
        self._look = look
        self._shown: tuple[Sequence[MemoryBar], Sequence[Proposal]] = ((), ())
        self._holder = QWidget()
        self._column = column(on=self._holder, spacing=12, margins=0)
        super().__init__(_("Memory use"), _("Memory for weights, KV cache and buffers."), self._holder, wide=True)
        look.changed.connect(self._restyle)  # a lambda would outlive this widget

    def show_memory(self, bars: Sequence[MemoryBar], proposals: Sequence[Proposal]) -> None:
        self.setVisible(bool(bars))
        if (bars, proposals) == self._shown:
            return
        self._shown = (bars, proposals)
        measured = any(bar.measured for bar in bars)
        estimate = _("Estimated before loading.")
        self.set_help(_("As reported by the engine.") if measured else estimate)
        self._fill(bars, proposals)

    def _restyle(self) -> None:
        self._fill(*self._shown)

    def _fill(self, bars: Sequence[MemoryBar], proposals: Sequence[Proposal]) -> None:
        clear(self._column)
        for bar in bars:
            self._column.addWidget(MemoryPicture(self._look, bar))
        for proposal in proposals:
            self._column.addWidget(self._offer(proposal))

    def _offer(self, proposal: Proposal) -> QWidget:
        title = label(proposal.title, wraps=True)
        words = label(join_sentences(proposal.gain, proposal.price), "small", wraps=True)
        use = button(_("Use"), lambda: self.taken.emit(proposal), name=_("Use: {title}", title=proposal.title))
        use.setAutoDefault(False)
        use.setAccessibleDescription(words.text())
        offer, top = QWidget(), Qt.AlignmentFlag.AlignTop
        row((column(title, words, spacing=2), 1), (use, 0, top), on=offer, spacing=24, margins=0)
        return offer


class MemoryPicture(QWidget):
    def __init__(self, look: Look, bar: MemoryBar) -> None:
        super().__init__()
        name = _("System memory") if bar.device == COMPUTER else bar.device
        free = _("{free} free before loading", free=format_size(bar.free))
        caption = label(join_parts((name, free)), "small", wraps=True)  # two labels were cut off on small screens
        legend = styled(QLabel(" &nbsp; ".join(_legend(look, bar)), wordWrap=True), "small")
        column(caption, _Bar(look, bar), legend, on=self, spacing=4, margins=0)
        taken = join_list(
            f"{_(part)} {format_size(count)}" for part, count in zip(_NAMES, _parts(bar), strict=True) if count
        )
        self.setAccessibleName(
            _(
                "{name}: {taken}; reserved {margin} of {free} free",
                name=name,
                taken=taken,
                margin=format_size(bar.margin),
                free=format_size(bar.free),
            )
        )


class _Bar(RoundBar):
    """Bar of the free memory: the model's parts from the left, the margin at the right end."""

    def __init__(self, look: Look, bar: MemoryBar) -> None:
        super().__init__(look)
        self._bar = bar

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        """Draw the parts in order. Hatch the margin, including any part of the model that overlaps it."""
        theme, bar = self._look.theme, self._bar
        painter.fillRect(box, QColor(theme.line))
        scale = box.width() / max(bar.free, bar.needed, 1)
        left = 0.0
        for count, colour in zip(_parts(bar), _colours(self._look), strict=True):
            width = max(count * scale, _LEAST) if count else 0.0
            painter.fillRect(QRectF(left, 0, width, box.height()), colour)
            left += width
        margin = bar.margin * scale
        painter.setClipRect(QRectF(box.right() - margin, 0, margin, box.height()), Qt.ClipOperation.IntersectClip)
        painter.setPen(QColor(theme.muted if bar.fits else theme.warn))
        for x in range(int(box.right() - margin) - HEIGHT, int(box.right()) + 1, 5):
            painter.drawLine(x, HEIGHT, x + HEIGHT, 0)


def _parts(bar: MemoryBar) -> tuple[int, int, int, int]:
    return bar.weights, bar.kv, bar.compute + bar.other, bar.staging


def _colours(look: Look) -> tuple[QColor, ...]:
    theme = look.theme
    return (*(mix(theme.accent, theme.page, tone) for tone in _TONES), mix(theme.muted, theme.page, 0.5))


def _legend(look: Look, bar: MemoryBar) -> list[str]:
    parts = zip(_parts(bar), _colours(look), _NAMES, strict=True)
    words = [_entry(colour.name(), f"{_(name)} {format_size(count)}") for count, colour, name in parts if count]
    return [*words, _entry(look.theme.muted, _("reserved {margin}", margin=format_size(bar.margin)), "▨")]


def _entry(colour: str, words: str, sign: str = "■") -> str:
    return f'<span style="color:{colour}">{sign}</span>&nbsp;{words.replace(" ", "&nbsp;")}'
