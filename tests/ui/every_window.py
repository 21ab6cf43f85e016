"""Data for every kind of text on screen, and all windows that show it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from PySide6.QtWidgets import QMenu, QWidget

from kvchat.chat.options import Preset
from kvchat.chat.record.messages import Role
from kvchat.kvstore.savepoint import ConversationUsage
from kvchat.library.memory.demand import COMPUTER, MemoryUse
from kvchat.session.proof import Source
from kvchat.session.restore_cost import BreakEven
from kvchat.session.restore_support import RestoreFinding, Strategy
from kvchat.settings import GB
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.settings.model import ModelPage
from kvchat.ui.settings.presets import ChatSettingsWindow, PresetsPage
from tests.ui.programs.made_up import fill as programs_made_up
from tests.ui.staged_runtime import StagedRuntime, a_receipt, counted
from tests.ui.waiting import until


def furnish(runtime: StagedRuntime) -> None:
    """Add chats in every state, replies from every source, and figures about them."""
    for id, title, points in (
        ("thesis", "Thesis, chapter 3", 4),
        ("jeju", "Trip to Jeju", 0),
        ("tax", "Tax letter", 2),
    ):
        runtime.chat.add(title, id=id)
        used = datetime.now(UTC) - timedelta(hours=3)
        runtime.keep(ConversationUsage(id, points * 9_000_000, points, used, points * 8_000_000, 9_000_000, 40.0))
    runtime.keep(replace(runtime.usage_of("tax"), pinned=True))
    runtime.keep(replace(runtime.usage_of("jeju"), never_save=True))
    runtime.break_even = BreakEven(1032, 4.2, 1e-5)
    runtime.chat.counted = counted()
    runtime.engine.finding = RestoreFinding(Strategy.SETTLE, proved=False)
    runtime.engine.memory_uses = (
        MemoryUse(COMPUTER, 16 * GB, GB, 4 * GB, 2 * GB, GB // 2, GB // 10, measured=True, staging=GB),
    )
    for source in Source:
        runtime.chat.write("thesis", Role.USER, "Which lake is deepest?")
        runtime.chat.write("thesis", Role.ASSISTANT, "Baikal.", receipt=a_receipt(source, queue_wait_ms=4000.0))
    runtime.chat.keep(Preset("Terse", "Be brief."))


async def open_all(runtime: StagedRuntime, window: MainWindow) -> list[QWidget]:
    """Open and fill all windows and show each settings page; return the windows. The caller closes them."""
    side = window.side_windows
    settings, storage, saved = side.open_settings(), side.open_storage(), side.open_time_saved()
    programs_made_up(runtime)
    programs = side.open_programs()
    programs.requests.list.select(1)
    await until(
        lambda: (
            storage.list.usage.rows
            and settings.page(ModelPage).memory.isVisibleTo(settings.page(ModelPage))
            and saved.statistics
        )
    )
    for page in settings.pages:
        settings.show_page(page.name)
    engine, models, manual = side.open_engine(), side.open_models(), side.open_manual()
    deleted, library = side.open_deleted(), side.open_library()
    window.open_chat_settings()
    dialog = settings.page(PresetsPage).open_dialog(Preset("Terse", "Be brief."))
    sheet, palette = window.keyboard.open_sheet(), window.keyboard.open_palette()
    (chat,) = window.findChildren(ChatSettingsWindow)
    for menu in window.findChildren(QMenu):
        menu.aboutToShow.emit()
    beside = settings, storage, saved, programs, engine, models, manual, deleted, library, chat
    return [window, *beside, dialog, sheet, palette]
