"""The context meter under the composer, and the window's status strip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QToolTip, QWidget

from kvchat.text.formatting import format_tokens
from kvchat.text.language import _, format_number, join_parts
from kvchat.ui.base.building import label, progress_bar, row, tool_button
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.widgets.controls import RoundBar, mix_colours
from kvchat.ui.widgets.layouts import ElidedLabel, plain_tip

if TYPE_CHECKING:
    from kvchat.chat.context import ContextUsage
    from kvchat.chat.turn.forecasts import Forecast
    from kvchat.engine.api.connection import EngineState, EngineStatus
    from kvchat.ui.chat.turn_status import Remark

_REMARK_GAP, _GAP = 18, 16  # pixels between remarks, and between the strip's parts
_STOP_BUTTON_SIZE = 14  # pixels, at 100 % text


class ContextBar(RoundBar):
    def __init__(self, look: Look) -> None:
        super().__init__(look, 120, 4)
        self.usage: ContextUsage | None = None  # call update after a change
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        theme, use = self._look.theme, self.usage
        if use is None:
            return
        strong = theme.warn if use.is_tight else theme.accent
        width, limit = box.width(), max(use.limit, 1)
        used = width * min(use.used / limit, 1.0)
        for left, right, colour in (
            (0.0, width, QColor(theme.line)),
            (width * (limit - use.reserve) / limit, width, mix_colours(theme.muted, theme.line, 0.45)),
            (0.0, used, QColor(strong)),
            (used, min(used + width * use.pending / limit, width), mix_colours(strong, theme.line, 0.55)),
        ):
            painter.fillRect(QRectF(left, 0, max(right - left, 0), box.height()), colour)


class ContextMeter(QWidget):
    """Context bar with its label. It keeps its space while empty, so that the composer does not move."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.bar = ContextBar(look)
        self.text, self.wait_label = ElidedLabel("small"), ElidedLabel("small")
        self.wait_label.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        row(self.bar, (self.text, 1), self.wait_label, on=self, spacing=10, margins=(18, 5, 18, 2))
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.show_usage(None)

    def show_usage(self, use: ContextUsage | None, forecast: Forecast | None = None) -> None:
        """Show how full the context is, and the expected wait for the reply. None means unknown."""
        wait = forecast.message_text if forecast else ""
        self.wait_label.set_text(wait)
        self.wait_label.setVisible(bool(wait))
        self.bar.setVisible(use is not None)
        self.bar.usage = use
        self.bar.update()
        text = explanation = ""
        if use is not None:
            parts = [_("{used} of {limit} tokens used", used=format_tokens(use.used), limit=format_tokens(use.limit))]
            if use.pending:
                parts.append(_("{waiting} in this message", waiting=format_tokens(use.pending)))
            text = join_parts([*parts, _("{reserve} reserved for the reply", reserve=format_tokens(use.reserve))])
            explanation = _(
                "Context length: {limit} tokens. {used} used so far, {waiting} in your message, and "
                "{reserve} reserved for the reply.",
                limit=format_number(use.limit),
                used=format_number(use.used),
                waiting=format_number(use.pending),
                reserve=format_number(use.reserve),
            )
        sent_now = _("If sent now, the first token comes after {wait}", wait=wait) if wait else ""
        self.text.set_text(text)
        restyle(self.text, "tone", "warn" if use is not None and use.is_tight else "")
        self.setAccessibleName(". ".join(filter(None, (_("Context: {words}", words=text) if text else "", sent_now))))
        self.setToolTip("\n".join(filter(None, (explanation, sent_now))))


class EngineDot(QWidget):
    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.state: EngineState | None = None  # unknown; call update after a change
        self.is_silent = False  # not responding

    def paintEvent(self, event: QPaintEvent) -> None:
        theme, state = self._look.theme, self.state.name if self.state is not None else "STOPPED"
        is_silent = self.is_silent and state == "READY"
        colour = theme.warn if is_silent else theme.accent
        if state in ("STOPPED", "STOPPING", "UNLOADED", "FAILED"):
            colour = theme.bad if state == "FAILED" else theme.muted
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QColor(colour))
            if state in ("READY", "FAILED") and not is_silent:
                painter.setBrush(QColor(colour))
            painter.drawEllipse(QRectF(self.rect()).adjusted(0.75, 0.75, -0.75, -0.75))


class Remarks(QWidget):
    """Right-aligned row of short status texts. Those of the lowest rank are omitted first if space is short."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._remarks: tuple[Remark, ...] = ()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)

    @property
    def text(self) -> str:
        return join_parts(remark.text for remark in self._remarks)

    def show_remarks(self, remarks: tuple[Remark, ...]) -> None:
        if remarks != self._remarks:
            self._remarks = remarks
            self.setAccessibleName(self.text)
            self.setToolTip(plain_tip("\n".join(remark.text for remark in remarks)))
            if QToolTip.isVisible() and self.underMouse():
                QToolTip.hideText()
            self.updateGeometry()
            self.update()

    def fitting(self, width: int) -> tuple[Remark, ...]:
        """Return the remarks that fit into `width` pixels: at least one, elided if necessary."""
        remarks = list(self._remarks)
        while len(remarks) > 1 and self._width(remarks) > width:
            remarks.remove(min(remarks, key=lambda remark: remark.rank))
        return tuple(remarks)

    def sizeHint(self) -> QSize:
        return QSize(max(self._width(self._remarks), 60), self.fontMetrics().height())

    def _width(self, remarks: Sequence[Remark]) -> int:
        widths = [self.fontMetrics().horizontalAdvance(remark.text) + _REMARK_GAP for remark in remarks]
        return sum(widths) - _REMARK_GAP

    def minimumSizeHint(self) -> QSize:
        return QSize(60, self.fontMetrics().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        metrics, theme = self.fontMetrics(), self._look.theme
        tones = {"good": theme.accent, "warn": theme.warn, "bad": theme.bad, "live": theme.text}
        y = (self.height() + metrics.ascent() - metrics.descent()) / 2
        right = float(self.width())
        with QPainter(self) as painter:
            for remark in reversed(self.fitting(self.width())):
                wide = metrics.horizontalAdvance(remark.text)
                text = metrics.elidedText(remark.text, Qt.TextElideMode.ElideRight, math.ceil(right))
                painter.setPen(QColor(tones.get(remark.tone, theme.muted)))
                left = max(right - wide, 0.0)
                painter.drawText(QPointF(self.width() - left - wide if self.isRightToLeft() else left, y), text)
                right -= wide + _REMARK_GAP


class StatusStrip(QFrame):
    def __init__(self, look: Look) -> None:
        super().__init__()
        self.setObjectName("strip")
        self.setAccessibleName(_("Status"))
        self.dot = EngineDot(look)
        self.state, self.context = label(kind="small"), label(kind="small")
        self.model = ElidedLabel("small")
        self.model.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self.progress = progress_bar(_("Processing"))
        self.progress.setFixedWidth(90)
        # Shown during unrequested processing; no taller than the text, or the page would move.
        self.stop_button = tool_button(_("Stop processing ahead"), kind="bare", icon=look.icon("close"))
        for widget in (self.progress, self.stop_button):
            widget.hide()
        self.remarks = Remarks(look)
        parts = row(self.dot, self.state, spacing=7), self.model, self.context, (self.remarks, 1)
        row(*parts, self.progress, self.stop_button, on=self, spacing=_GAP, margins=(_GAP, 6, _GAP, 6))
        self._look, self._is_away = look, False
        self._remarks: tuple[Remark, ...] = ()
        look.changed.connect(self._restyle)
        self._restyle()

    def show_engine(self, status: EngineStatus, model: str | None, context: int | None, context_reason: str) -> None:
        """`context` is the context length in tokens, or None if unknown."""
        self.dot.state, self._is_away = status.state, status.is_away and status.state.name == "FAILED"
        self._show_state()
        self.model.set_text(model or _("no model"))
        text = _("context {available}", available=format_tokens(context)) if context is not None else ""
        self.context.setText(text)
        self.context.setAccessibleName(text)
        self.context.setToolTip(context_reason)
        self._hide_overflow()

    def show_turn(
        self,
        remarks: tuple[Remark, ...],
        fraction: float | None,
        *,
        is_silent: bool = False,
        is_reading_ahead: bool = False,
    ) -> None:
        """Show a turn's remarks and `fraction`, the processed share of the prompt.

        `is_silent` means that the engine sends nothing; `is_reading_ahead`, that the prompt is processed before Send.
        """
        self._remarks, self.dot.is_silent = remarks, is_silent
        self._show_state()
        self.stop_button.setVisible(is_reading_ahead)
        self.progress.setVisible(fraction is not None)
        self.progress.setValue(int(1000 * (fraction or 0.0)))
        self._show_remarks()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._hide_overflow()

    def _show_state(self) -> None:
        state = self.dot.state
        is_silent = self.dot.is_silent and state is not None and state.name == "READY"
        text = _("not available") if self._is_away else _(state.value) if state is not None else ""
        text = _("not responding") if is_silent else text
        self.dot.update()
        self.state.setText(text)
        self.state.setAccessibleName(_("Engine {word}", word=text))

    def _show_remarks(self) -> None:
        remarks = (remark for remark in self._remarks if self._look.shows_numbers or remark.tone in ("warn", "bad"))
        self.remarks.show_remarks(tuple(remarks))
        self._hide_overflow()

    def _hide_overflow(self) -> None:
        """Hide the model and the context length if there is no room for them."""
        needed = [self.dot, self.state, self.remarks]
        needed += [part for part in (self.progress, self.stop_button) if not part.isHidden()]
        room = self.width() - sum(widget.sizeHint().width() + _GAP for widget in needed) - _GAP
        for part in (self.model, self.context):
            width = part.sizeHint().width() + _GAP
            is_shown = width <= room and (part is self.model or self._look.shows_numbers)
            part.setVisible(is_shown)
            room -= width if is_shown else 0

    def _restyle(self) -> None:
        font = self.font()
        font.setPointSizeF(self._look.fonts.small)
        self.remarks.setFont(font)
        self._show_remarks()
        self.stop_button.setIconSize(QSize(1, 1) * self._look.px(_STOP_BUTTON_SIZE - 2))
        self.stop_button.setFixedSize(QSize(1, 1) * self._look.px(_STOP_BUTTON_SIZE))
        self.dot.setFixedSize(QSize(1, 1) * self._look.px(9))
        self.dot.update()
        self.remarks.update()
