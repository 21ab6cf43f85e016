"""The model page of the settings: the model, its context length, and the memory that both need."""

from collections.abc import Sequence

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QLabel, QWidget

from kvchat.library.memory.demand import MemoryUse
from kvchat.runtime import Runtime
from kvchat.settings import SETTING_INFO
from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _, join_list, join_parts, join_sentences
from kvchat.ui.base.building import button, clear, column, label, styled
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.controls import BAR_HEIGHT, RoundBar, mix_colours
from kvchat.ui.widgets.entries import Entry
from kvchat.ui.widgets.layouts import allow_line_breaks

_MIN_WIDTH = 3.0  # pixels; keeps small parts visible
_PART_NAMES = (
    N_("model"),
    N_("context"),
    N_("compute buffers"),
    N_("cached chats (maximum)"),
)  # weights, KV cache, buffers, staging; a size follows each
_PART_TONES = (1.0, 0.6, 0.3)  # weight of the accent color in the colors of the model's parts


class ModelPage(SettingsPage):
    name, key = N_("Model and context"), "model"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        choose = button(
            _("Choose another…"), lambda: self.window_requested.emit("models"), name=_("Choose another model")
        )
        self.model = self.add(Entry(_("Model"), "", choose))
        name, tip = _("Test chat memory again"), _("Restarts the engine")
        self.retest_button = button(_("Try again"), lambda: self.run(runtime.retest_restoring()), name=name, tip=tip)
        self.restoring = self.add(Entry(_("Chat memory"), "", self.retest_button))
        self.add_settings(through="slots")
        self._charts, help = MemoryCharts(look), _("Memory for weights, KV cache and buffers.")
        self.memory = self.add(Entry(_("Memory use"), help, self._charts, is_wide=True))
        self.add_settings()

    def refresh(self) -> None:
        super().refresh()
        runtime = self.runtime
        engine = runtime.engine
        self.model.set_help(allow_line_breaks(runtime.model.name or _("No model chosen yet.")))
        self.restoring.set_help(engine.restore_description)
        self.restoring.setVisible(bool(engine.restore_description))
        self.retest_button.setVisible(engine.can_retest)
        reason = join_sentences(engine.context_reason, engine.context_warning)
        about = SETTING_INFO["context_size"]
        self.settings["context_size"].set_help("\n\n".join(part for part in (_(about.help), reason) if part))
        is_measured = any(bar.measured for bar in engine.memory_uses)
        self.memory.setVisible(bool(engine.memory_uses))
        self.memory.set_help(_("As reported by the engine.") if is_measured else _("Estimated before loading."))
        self._charts.show_memory(engine.memory_uses)


class MemoryCharts(QWidget):
    """Bars and words for the model's use of each device's memory."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._bars: Sequence[MemoryUse] = ()
        self._column = column(on=self, spacing=12, margins=0)
        look.changed.connect(self._fill)  # a lambda would outlive this widget

    def show_memory(self, bars: Sequence[MemoryUse]) -> None:
        if bars != self._bars:
            self._bars = bars
            self._fill()

    def _fill(self) -> None:
        clear(self._column)
        for bar in self._bars:
            self._column.addWidget(memory_chart(self._look, bar))


def memory_chart(look: Look, bar: MemoryUse) -> QWidget:
    name, free, margin, chart = bar.name, format_size(bar.free), format_size(bar.margin), QWidget()
    # One label: two were cut off on small screens.
    caption = label(join_parts((name, _("{free} free before loading", free=free))), "small", wraps=True)
    used = [
        (colour.name(), f"{_(part)} {format_size(count)}")
        for count, colour, part in zip(_parts(bar), _colours(look), _PART_NAMES, strict=True)
        if count
    ]
    reserved = _legend_entry(look.theme.muted, _("reserved {margin}", margin=margin), "▨")
    entries = [*(_legend_entry(colour, text) for colour, text in used), reserved]
    legend = styled(QLabel(" &nbsp; ".join(entries), wordWrap=True), "small")
    column(caption, _FreeMemoryBar(look, bar), legend, on=chart, spacing=4, margins=0)
    taken = join_list(text for _colour, text in used)
    summary = _("{name}: {taken}; reserved {margin} of {free} free", name=name, taken=taken, margin=margin, free=free)
    chart.setAccessibleName(summary)
    return chart


class _FreeMemoryBar(RoundBar):
    """Bar of a device's free memory: the model's parts from the left, the reserved memory at the right end."""

    def __init__(self, look: Look, bar: MemoryUse) -> None:
        super().__init__(look)
        self._bar = bar

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        """Draw the parts from the left, and hatch the reserved memory even where a part extends into it."""
        theme, bar = self._look.theme, self._bar
        painter.fillRect(box, QColor(theme.line))
        scale = box.width() / max(bar.free, bar.needed, 1)
        left = 0.0
        for count, colour in zip(_parts(bar), _colours(self._look), strict=True):
            width = max(count * scale, _MIN_WIDTH) if count else 0.0
            painter.fillRect(QRectF(left, 0, width, box.height()), colour)
            left += width
        margin = bar.margin * scale
        painter.setClipRect(QRectF(box.right() - margin, 0, margin, box.height()), Qt.ClipOperation.IntersectClip)
        painter.setPen(QColor(theme.muted if bar.fits else theme.warn))
        for x in range(int(box.right() - margin) - BAR_HEIGHT, int(box.right()) + 1, 5):
            painter.drawLine(x, BAR_HEIGHT, x + BAR_HEIGHT, 0)


def _parts(bar: MemoryUse) -> tuple[int, int, int, int]:
    return bar.weights, bar.kv, bar.compute + bar.other, bar.staging


def _colours(look: Look) -> tuple[QColor, ...]:
    theme = look.theme
    return (
        *(mix_colours(theme.accent, theme.page, tone) for tone in _PART_TONES),
        mix_colours(theme.muted, theme.page, 0.5),
    )


def _legend_entry(colour: str, text: str, symbol: str = "■") -> str:
    unbroken = "\u2060".join(text.replace(" ", "\u00a0"))  # Chinese and Japanese have no spaces
    return f'<span style="color:{colour}">{symbol}</span>&nbsp;{unbroken}'
