"""Descriptions of disk use and of prune plans, and the summary at the top of the storage window."""

from datetime import datetime, timedelta

from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QLabel, QWidget

from kvchat.kvstore.savepoint import ConversationUsage, PrunedConversation, PrunePlan, StoreUsage, program_of
from kvchat.session.restore_cost import BreakEven
from kvchat.store_service import describe_capacity
from kvchat.text.formatting import (
    format_age,
    format_estimate,
    format_percent,
    format_rate,
    format_size,
    format_size_of,
    sum_times,
)
from kvchat.text.language import _, format_number, join_parts, join_sentences, plural, punctuation
from kvchat.ui.base.building import STRETCH, column, label, progress_bar, row, show_text
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.controls import RoundBar, mix_colours

_MIN_SHARE_OF_TARGET = 0.9  # plans that leave less say why


def bytes_saved(usage: StoreUsage) -> int:
    """Return the bytes that deduplication saves, compared with a separate file for each save point."""
    return max(0, usage.logical_bytes - usage.physical_bytes)


def describe_sharing(usage: StoreUsage) -> str:
    if not usage.save_points:
        return ""
    saved = bytes_saved(usage)
    if not saved and any(entry.shared_bytes for entry in usage.conversations):
        return _("Chats share some chat memory, but too little to save space yet.")
    if not saved:
        return _("No chat memory is shared yet. If turns or chats begin the same way, kvchat saves that part once.")
    share, total = saved / usage.logical_bytes, format_size(usage.logical_bytes)
    return _(
        "{spared} saved by deduplication ({percent}). Without it: {logical_bytes}.",
        spared=format_size(saved),
        percent=format_percent(share) if share < 0.995 else _("more than 99%"),
        logical_bytes=total,
    )


def describe_computer(name: str, size: int) -> str:
    """Describe the chat memory on a paired computer. `size` is 0 if there is none, or if it is unknown."""
    kept = _("The memory of your chats is kept on {name}.", name=name)
    there = _("It takes {size} there. The figures below are for this computer.", size=format_size(size))
    return join_sentences(kept, there if size else "")


def describe_limits(usage: StoreUsage, max_age_days: int | None) -> str:
    programs, unused = "", ""
    rule = _(
        "When the limit of {limit} is reached, kvchat deletes the chat memory that saves the least time per GB.",
        limit=format_size(usage.quota_bytes),
    )
    if any(program_of(entry.conversation_id) for entry in usage.conversations):
        programs = _(
            "The memory of apps is deleted before the memory of chats. It is limited to "
            "{programs_quota_bytes}, and so is the memory of each device.",
            programs_quota_bytes=format_size(usage.programs_quota_bytes),
        )
    if max_age_days is not None:
        unused = plural(
            max_age_days,
            "Chat memory not used for {count} day is also deleted.",
            "Chat memory not used for {count} days is also deleted.",
        )
    return join_sentences(describe_capacity(usage.quota_bytes, usage.chat_bytes), rule, programs, unused)


def describe_break_even(break_even: BreakEven | None) -> str:
    """Describe the chat length above which restoring is faster than reprocessing, if it has been measured."""
    if break_even is None:
        return ""
    reading, loading = (
        format_rate(1000 / break_even.prefill_ms_per_token),
        format_size(1000 / break_even.restore_ms_per_byte),
    )
    rates = _("(processing {reading}, loading {loading}/s)", reading=reading, loading=loading)
    if break_even.tokens is None:
        return _("On this computer, loading is never faster than processing {rates}.", rates=rates)
    return _(
        "On this computer, loading a chat of about {tokens} tokens or more is faster than processing it {rates}.",
        tokens=format_number(break_even.tokens),
        rates=rates,
    )


def describe_use(usage: ConversationUsage, now: datetime, seconds_saved: float = 0.0) -> str:
    text = _("used {when}", when=format_age(usage.last_used_at, now.astimezone(usage.last_used_at.tzinfo)))
    if program_of(usage.conversation_id):
        text = join_parts((plural(usage.save_points, "{count} prompt saved", "{count} prompts saved"), text))
    if seconds_saved >= 1:
        return _("{words} · {time} saved", words=text, time=format_estimate(seconds_saved))
    if usage.reprocessing:
        return _("{words} · reprocessing: {time}", words=text, time=format_estimate(usage.reprocessing))
    return text


def describe_split(usage: ConversationUsage) -> str:
    if not usage.bytes:
        return _("nothing saved")
    if not usage.shared_bytes:
        return _("nothing shared")
    own, shared = format_size(usage.exclusive_bytes), format_size(usage.shared_bytes)
    return _("{exclusive_bytes} not shared, {shared_bytes} shared", exclusive_bytes=own, shared_bytes=shared)


def describe_loss(loss: PrunedConversation) -> str:
    if loss.save_points_left:
        what = plural(loss.save_points, "{count} old turn", "{count} old turns")
        if program_of(loss.conversation_id):
            what = plural(loss.save_points, "{count} prompt", "{count} prompts")
        return _("would delete {what} ({size})", what=what, size=format_size(loss.bytes_freed))
    if loss.reprocessing is None:
        return _("would have to be reprocessed")
    return _("reprocessing would take {time}", time=format_estimate(loss.reprocessing))


def describe_plan(plan: PrunePlan, target_bytes: int) -> str:
    left, pinned, why = format_size(plan.bytes_left), "", ""
    if plan.bytes_left > max(target_bytes, 0):
        pinned = _(
            "At least {bytes_left} must remain: chat memory that is always kept, and the chat memory index.",
            bytes_left=left,
        )
    if not plan.save_point_ids:
        return join_sentences(_("Nothing would be deleted."), pinned)
    if plan.bytes_left < _MIN_SHARE_OF_TARGET * target_bytes:
        why = _(
            "This leaves {bytes_left}, because the memory of a reply can only be deleted as a whole.", bytes_left=left
        )
    chats = [entry for entry in plan.conversations if not program_of(entry.conversation_id)]
    thinned = [entry for entry in chats if entry.save_points_left]
    prompts = sum(entry.save_points for entry in plan.conversations) - sum(entry.save_points for entry in chats)
    parts = list[str]()
    if prompts:
        parts.append(_("{prompts} from apps", prompts=plural(prompts, "{count} prompt", "{count} prompts")))
    if thinned:
        turns = plural(sum(entry.save_points for entry in thinned), "{count} old turn", "{count} old turns")
        parts.append(_("{turns} of {count}", turns=turns, count=plural(len(thinned), "{count} chat", "{count} chats")))
    if plan.fully_removed:
        parts.append(_must_be_reprocessed(len(plan.fully_removed)))
    if plan.reprocessing:
        parts.append(_("reprocessing everything would take {time}", time=format_estimate(plan.reprocessing)))
    frees = _("Frees {size}: {what}.", size=format_size(plan.bytes_freed), what=punctuation("; ").join(parts))
    return join_sentences(frees, pinned, why)


def describe_expiry(usage: StoreUsage, days: int, now: datetime) -> str:
    """Describe what deleting the save points unused for `days` days would cost."""
    limit = now - timedelta(days=days)
    chats = [entry for entry in usage.conversations if not program_of(entry.conversation_id)]
    cold = [entry for entry in chats if entry.save_points and not entry.pinned and entry.last_used_at < limit]
    if not cold:
        return _("No chat would have to be reprocessed now, but old turns may be deleted. Messages are not deleted.")
    text = _must_be_reprocessed(len(cold))
    if duration := sum_times(entry.reprocessing for entry in cold):
        time = format_estimate(duration)
        text = _("{result}; reprocessing everything would take {time}", result=text, time=time)
    return join_sentences(
        text, _("Memory of old turns in other chats may also be deleted."), _("Messages are not deleted.")
    )


def _must_be_reprocessed(count: int) -> str:
    return plural(count, "{count} chat must be reprocessed", "{count} chats must be reprocessed")


class SavingsBar(RoundBar):
    """Bar of the disk space used, as a share of the space that save points would take without deduplication."""

    share = 1.0  # size on disk divided by the size of whole slot files

    def show_usage(self, usage: StoreUsage) -> None:
        total = usage.physical_bytes + bytes_saved(usage)
        self.share = usage.physical_bytes / total if total else 0.0
        on_disk, sharing = format_size(usage.physical_bytes), describe_sharing(usage)
        self.setAccessibleName(_("{physical_bytes} on disk. {sharing}", physical_bytes=on_disk, sharing=sharing))
        self.update()

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        theme = self._look.theme
        painter.fillRect(box, mix_colours(theme.accent, theme.page, 0.18) if self.share else QColor(theme.line))
        if self.share:
            width = max(box.width() * self.share, 4.0)
            painter.fillRect(QRectF(0, 0, width, box.height()), QColor(theme.accent))


class UsageSummary(QWidget):
    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.total_label = label(kind="title")
        self.quota_bar = progress_bar(_("Share of the storage limit in use"))
        self.savings_bar = SavingsBar(look)
        self.on_disk_label, self.savings_label = label(kind="strong"), label(kind="muted", wraps=True)
        self.free_floor_label, self.break_even_label = label(kind="small", wraps=True), label(kind="small", wraps=True)
        self.break_even_label.hide()
        self.figure_labels: list[QLabel] = []
        self._figures, cells = QWidget(), []
        for text, tip in (
            (_("written today"), _("Bytes written to the disk today (SSD wear)")),
            (_("written in total"), _("Bytes written to the disk in total (SSD wear)")),
            (_("cached in RAM"), _("Chat memory that loads without reading the disk")),
            (_("free on this disk"), ""),
        ):
            figure, caption = label(kind="strong"), label(text, "small", wraps=True)
            self.figure_labels.append(figure)
            caption.setBuddy(figure)
            for part in (figure, caption):
                part.setToolTip(tip)
            cells.append((column(figure, caption, STRETCH, spacing=0), 1))
        row(*cells, on=self._figures, spacing=12, margins=0)
        legend = row(self.on_disk_label, (self.savings_label, 1), spacing=14)
        above = self.total_label, self.quota_bar, 6, legend, self.savings_bar, 4, self._figures
        column(*above, self.free_floor_label, self.break_even_label, on=self, spacing=8, margins=(8, 0, 8, 0))

    def show_usage(self, usage: StoreUsage, break_even: BreakEven | None) -> None:
        show_text(self.break_even_label, describe_break_even(break_even))
        self.total_label.setText(_("{size} in use", size=format_size_of(usage.physical_bytes, usage.quota_bytes)))
        self.quota_bar.setValue(int(1000 * min(usage.physical_bytes / max(usage.quota_bytes, 1), 1.0)))
        if usage.problem:
            self.total_label.setText(_("kvchat cannot save chat memory"))
        for widget in (self.quota_bar, self._figures):
            widget.setVisible(not usage.problem)
        self.savings_bar.show_usage(usage)
        self.on_disk_label.setText(_("{physical_bytes} on disk", physical_bytes=format_size(usage.physical_bytes)))
        self.savings_label.setText(describe_sharing(usage))
        for widget in (self.savings_bar, self.on_disk_label, self.savings_label):
            widget.setVisible(usage.physical_bytes > 0)
        counts = usage.bytes_written_today, usage.bytes_written, usage.warm_bytes, usage.free_bytes
        for figure, count in zip(self.figure_labels, counts, strict=True):
            figure.setText(format_size(count) if count else _("nothing"))
        floor, others = format_size(usage.free_floor_bytes), ""
        rule = _(
            "When less than {free_floor_bytes} is free on the disk, kvchat stops saving chat memory.",
            free_floor_bytes=floor,
        )
        if usage.other_bytes:
            size = format_size(usage.other_bytes)
            others = _("{size} of the space in use is the index and temporary files.", size=size)
        self.free_floor_label.setText("" if usage.problem else join_sentences(rule, others))
