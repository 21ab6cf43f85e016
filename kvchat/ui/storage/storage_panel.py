"""The storage window: the disk use of each chat's memory, and actions such as pruning it."""

import asyncio
import html
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QFrame, QLabel, QSlider, QWidget

from kvchat.chat.service import ChatService
from kvchat.engine.api.connection import EngineState
from kvchat.kvstore.savepoint import PrunedConversation, PrunePlan, StoreUsage, device_of, program_of, program_owner
from kvchat.runtime import Runtime
from kvchat.system.concurrency import shielded
from kvchat.text.formatting import STORAGE, format_size
from kvchat.text.language import N_, _
from kvchat.ui.base.building import STRETCH, button, column, label, row, show_text, styled
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.storage.usage_list import MENU_BUTTON_SIZE, UsageList, UsageRow, shared_colour
from kvchat.ui.storage.usage_summary import UsageSummary, describe_computer, describe_limits, describe_plan
from kvchat.ui.widgets.layouts import ScrollPage

_SLIDER_STEPS = 1000
_DEBOUNCE_S = 0.12  # delay after the last slider move before planning
_SLIDER_HINT = N_("Move the slider to see which chat memory would be deleted and how long reprocessing would take.")


class PruneCard(QFrame):
    """Card with a slider for the size to prune to. It shows plans; its owner makes and executes them."""

    plan_dropped = Signal()  # the owner must make a plan for `target`
    prune_requested = Signal(object)  # the visible PrunePlan

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        styled(self, "card")
        self.plan: PrunePlan | None = None
        self._total = 0
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setMaximum(_SLIDER_STEPS)
        self.reset()
        self.slider.setPageStep(_SLIDER_STEPS // 20)
        self.slider.setSingleStep(_SLIDER_STEPS // 100)
        self.slider.setAccessibleName(_("Shrink to"))
        self.target_label = label()
        self.target_label.setMinimumWidth(64)
        self.target_label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.preview_label = label(_(_SLIDER_HINT), "muted", wraps=True)
        self.preview_label.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.prune_button = button(_("Shrink"), lambda: self.prune_requested.emit(self.plan))
        self.prune_button.setEnabled(False)
        self.slider.valueChanged.connect(self._slider_moved)
        title = label(_("Shrink to"), "strong")
        title.setBuddy(self.slider)
        # Always room for three lines: the list below must not jump while the slider moves.
        self.preview_label.setMinimumHeight(3 * self.preview_label.fontMetrics().lineSpacing())
        above = row(title, (self.slider, 1), self.target_label, spacing=12)
        below = row((self.preview_label, 1), (self.prune_button, 0, Qt.AlignmentFlag.AlignBottom), spacing=16)
        column(above, below, on=self, spacing=8, margins=(12, 10, 12, 12))

    @property
    def target(self) -> int:
        return self._total * self.slider.value() // _SLIDER_STEPS

    @property
    def is_slider_moved(self) -> bool:
        return self.slider.value() < _SLIDER_STEPS

    def set_total(self, total: int) -> None:
        """Set the size in bytes at the slider's right end. A plan on display is discarded."""
        target, was_moved = self.target, self.is_slider_moved
        self._total = total
        with QSignalBlocker(self.slider):
            step = target * _SLIDER_STEPS // total if was_moved and total else _SLIDER_STEPS
            self.slider.setValue(min(step, _SLIDER_STEPS))
        self._slider_moved()

    def reset(self) -> None:
        self.slider.setValue(_SLIDER_STEPS)

    def show_plan(self, plan: PrunePlan) -> None:
        self.plan = plan
        self.preview_label.setText(describe_plan(plan, self.target))
        self.prune_button.setEnabled(bool(plan.save_point_ids))
        frees = _("Free {bytes_freed}", bytes_freed=format_size(plan.bytes_freed))
        self.prune_button.setText(frees if plan.save_point_ids else _("Shrink"))
        self.prune_button.setAccessibleName(_("Shrink. {text}", text=self.preview_label.text()))

    def drop_plan(self) -> None:
        self.plan = None
        self.prune_button.setEnabled(False)
        self.plan_dropped.emit()

    def _slider_moved(self) -> None:
        self.drop_plan()
        self.target_label.setText(format_size(self.target))
        self.slider.setAccessibleDescription(format_size(self.target))
        if not self.is_slider_moved:
            self.preview_label.setText(_(_SLIDER_HINT))
            self.prune_button.setText(_("Shrink"))


def row_id(owner: str) -> str:
    """Return the owner whose row includes this owner's memory: the chats of a device have one row."""
    device = device_of(owner)
    return program_owner(device) if device else owner


def losses_by_row(plan: PrunePlan) -> dict[str, PrunedConversation]:
    losses: dict[str, PrunedConversation] = {}
    for loss in plan.conversations:
        id = row_id(loss.conversation_id)
        before = losses.get(id, PrunedConversation(id, 0, 0, 0))
        losses[id] = replace(
            loss,
            conversation_id=id,
            save_points=before.save_points + loss.save_points,
            bytes_freed=before.bytes_freed + loss.bytes_freed,
            save_points_left=before.save_points_left + loss.save_points_left,
        )
    return losses


_MIN_LIST_HEIGHT = 120  # pixels at 100 % text
EMPTY = N_("No chat memory yet. kvchat saves it after each reply.")


async def owner_names(chat: ChatService) -> dict[str, str]:
    """Return the names of all owners of chat memory by id: chats, recently deleted chats and prepared documents."""
    names = {conversation.id: conversation.title for conversation in await chat.conversations()}
    deleted = await chat.recently_deleted.entries()
    names |= {entry.id: _("{title} (recently deleted)", title=entry.title) for entry in deleted if entry.is_chat}
    prepared = await chat.library.names_by_owner()
    return names | {owner: _("{name} (library)", name=name) for owner, name in prepared.items()}


class StoragePanel(Panel):
    changed = Signal()  # something was deleted, pinned or pruned
    saved_requested = Signal()  # open the time saved page
    limits_requested = Signal()  # open the quota, free space and age settings

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _(STORAGE), parent, size=(620, 720), min_size=(460, 560))
        self._usage: StoreUsage | None = None
        self._titles: Mapping[str, str] = {}
        self._seconds_saved: Mapping[str, float] = {}  # by chat id
        self._planning: asyncio.Task[None] | None = None
        self._planning_lock = asyncio.Lock()  # allows one plan at a time, which may take a second
        self._changes_in_progress = 0  # number of running changes, which a new plan would miss
        self.summary = UsageSummary(look)
        self.computer_label = label(wraps=True)  # about the paired computer that keeps the memory
        self.computer_label.setMargin(8)
        self.prune_card = PruneCard()
        self.list = UsageList(look)
        self.empty_label = label(_(EMPTY), "muted", wraps=True)
        self.empty_label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty_label.setMargin(24)
        self.empty_label.hide()
        self.list.setMinimumHeight(look.px(_MIN_LIST_HEIGHT))
        self.limits_label = label(kind="small", wraps=True)
        self._limits_button = button(_("Change limits…"), self.close, "link", name=_("Change the limits"))
        self._limits_button.clicked.connect(self.limits_requested)
        top = Qt.AlignmentFlag.AlignTop
        limits = row((self.limits_label, 1), (self._limits_button, 0, top), spacing=10, margins=(8, 0, 8, 0))
        page = ScrollPage("page")  # too tall for small screens
        self._legend = styled(QLabel(), "small")
        text = _("Show affected chats only")
        self.losses_filter_button = button(text, None, "link", name=_("Show only chats that would lose memory"))
        self.losses_filter_button.setCheckable(True)
        self.losses_filter_button.toggled.connect(
            lambda on: self.losses_filter_button.setText(_("Show all") if on else text)
        )
        self.losses_filter_button.hide()
        self._heading = QWidget()
        row(label(_("Chats"), "strong"), STRETCH, self._legend, self.losses_filter_button, on=self._heading)
        parts = (
            self.computer_label,
            self.summary,
            self._heading,
            (self.list, 1),
            (self.empty_label, 1),
            self.prune_card,
            limits,
        )
        column(*parts, on=page.content, spacing=12, margins=0)
        name = _("Delete all chat memory")
        self.delete_all_button = button(_("Delete all…"), self._ask_delete_all, "danger", name=name)
        self.close_button = button(_("Close"), self.close, "primary", name=_("Close storage"))
        saved = button(_("Time saved…"), self.saved_requested, tip=_("Time saved by chat memory, day by day"))
        buttons = row(self.delete_all_button, STRETCH, saved, self.close_button, margins=(8, 0, 8, 0))
        column(self.notices, (page, 1), buttons, on=self, spacing=12, margins=(16, 20, 16, 18))
        self.list.delete_requested.connect(self._delete)
        self.list.pin_requested.connect(lambda id, on: self._apply_change(self._runtime.save_points.set_pinned(id, on)))
        self.list.never_save_requested.connect(
            lambda id, on: self._apply_change(self._runtime.save_points.set_never_save(id, on))
        )
        self.prune_card.plan_dropped.connect(self._start_planning)
        self.prune_card.prune_requested.connect(self._prune)
        self.losses_filter_button.toggled.connect(self._fill_list)
        self._look.changed.connect(self._restyle)
        self._restyle()

    def refresh(self) -> None:
        if not self.isVisible():
            self.prune_card.reset()
        self.run(self._load())

    def show_usage(self, usage: StoreUsage, titles: Mapping[str, str]) -> None:
        before, self._usage, self._titles = self._usage, usage, titles
        self.summary.show_usage(usage, self._runtime.break_even)
        self.limits_label.setText(describe_limits(usage, self._runtime.settings.max_age_days))
        has_memory, computer = bool(usage.conversations), self._runtime.engine.computer
        self.list.setVisible(has_memory)
        self._heading.setVisible(has_memory)
        self.prune_card.setVisible(has_memory and (not computer or usage.save_points > 0))
        show_text(self.computer_label, describe_computer(computer, usage.server_bytes) if computer else "")
        away = ""
        if computer and self._runtime.engine.status.state is not EngineState.READY:
            away = _("{name} is not available, so the memory of your chats cannot be shown.", name=computer)
        self.empty_label.setText(usage.problem or away or _(EMPTY))
        self.empty_label.setVisible(not has_memory)
        for widget in (self.limits_label, self._limits_button):
            widget.setVisible(not usage.problem)
        if self.prune_card.plan is None or before is None or before.conversations != usage.conversations:
            self.prune_card.set_total(usage.physical_bytes)  # also refills the list
        else:
            self._fill_list()
        self.delete_all_button.setEnabled(has_memory)

    def _fill_list(self) -> None:
        if self._usage is None:
            return
        plan = self.prune_card.plan
        losses = losses_by_row(plan) if plan else {}
        if not losses:
            self.losses_filter_button.setChecked(False)
        self.losses_filter_button.setVisible(bool(losses))
        self._legend.setVisible(not losses)
        others = (
            entry for entry in self._usage.conversations if row_id(entry.conversation_id) == entry.conversation_id
        )
        entries = sorted((*others, *self._usage.devices), key=lambda entry: entry.bytes, reverse=True)
        largest = entries[0].bytes if entries else 0
        if self.losses_filter_button.isChecked():
            entries = [entry for entry in entries if entry.conversation_id in losses]
        rows = []
        for entry in entries:
            id, program = entry.conversation_id, program_of(entry.conversation_id)
            title = _("{name} (app)", name=program) if program else self._titles.get(id, _("Deleted chat"))
            if device := device_of(id):
                title = _("{name} (device)", name=self._runtime.api_server.sharing.label_of(device))
            rows.append(UsageRow(title, entry, losses.get(id), largest, self._seconds_saved.get(id, 0.0)))
        self.list.usage.set_rows(rows)

    def _restyle(self) -> None:
        layout = self._heading.layout()
        assert layout is not None
        begin, end = 8, self._look.px(MENU_BUTTON_SIZE) + 12
        layout.setContentsMargins(*((end, 4, begin, 0) if self.isRightToLeft() else (begin, 4, end, 0)))
        self._heading.setFixedHeight(max(layout.sizeHint().height(), self.losses_filter_button.sizeHint().height() + 4))
        own, shared = self._look.theme.accent, shared_colour(self._look).name()
        parts = ((own, _("not shared")), (shared, _("shared with others")))
        square = '<span style="color:{}">■</span>&nbsp;{}'
        self._legend.setText(" &nbsp; ".join(square.format(colour, html.escape(text)) for colour, text in parts))

    def _ask_delete_all(self) -> None:
        text = _("Messages are not deleted. Each chat must be reprocessed once before it replies quickly again.")
        confirm(self, _("Delete all chat memory?"), text, _("Delete all"), lambda: self._delete(None))

    def _apply_change(self, coroutine: Coroutine[Any, Any, object]) -> None:
        async def apply() -> None:
            try:
                await coroutine
            finally:
                self._changes_in_progress -= 1
                await self._load()
                self.changed.emit()

        self._changes_in_progress += 1
        self.prune_card.drop_plan()
        self.run(apply())

    async def _load(self) -> None:
        usage = await self._runtime.save_points.usage()
        titles = await owner_names(self._runtime.chat)
        self._seconds_saved = await self._runtime.chat.seconds_saved()
        self.show_usage(usage, titles)

    def _start_planning(self) -> None:
        """Make a plan for the slider's size. A plan still being made is canceled."""

        async def plan(target: int) -> None:
            await asyncio.sleep(_DEBOUNCE_S)
            async with self._planning_lock:
                plan = await shielded(self._runtime.save_points.plan_prune(target))
            self.prune_card.show_plan(plan)
            self._fill_list()

        if self._planning is not None:
            self._planning.cancel()
        self._fill_list()
        if self.prune_card.is_slider_moved and not self._changes_in_progress:
            self._planning = self.run(plan(self.prune_card.target))

    def _prune(self, plan: PrunePlan) -> None:
        self.prune_card.reset()
        self._apply_change(self._runtime.save_points.prune(plan))

    def _delete(self, conversation_id: str | None) -> None:
        self._apply_change(self._runtime.save_points.delete(conversation_id))
