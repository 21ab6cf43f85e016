"""The storage page of the settings: the limits for save points, and the data folders."""

import asyncio
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices

from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.store_service import describe_capacity, long_chat_bytes, store_bounds
from kvchat.text.formatting import MEMORY_OF_CHATS, STORAGE, format_size
from kvchat.text.language import _, join_sentences, plural
from kvchat.ui.base.building import button, left_to_right
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.storage.usage_summary import describe_expiry, describe_plan
from kvchat.ui.widgets.entries import Entry
from kvchat.ui.widgets.layouts import allow_line_breaks


class StoragePage(SettingsPage):
    """Limits for save points, and data folders. Before a lower limit deletes save points, the page asks."""

    name, key = STORAGE, "storage"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        show = button(_("Show…"), lambda: self.window_requested.emit("storage"), name=_("Show chat memory"))
        text = _("Disk space used by each chat, with options to keep or delete its memory.")
        self.add(Entry(_("Chat memory by chat"), text, show))
        self.add_settings()
        paths = runtime.paths
        for title, folder, text in (
            (_(MEMORY_OF_CHATS), paths.save_points, _("You can delete this folder at any time.")),
            (_("Chats"), paths.data, _("Back up this folder to keep your chats.")),
            (_("Settings"), paths.config, ""),
        ):
            name = _("Open the folder: {title}", title=title)
            show = button(_("Open folder"), lambda _, folder=folder: self._open(folder), name=name)
            place = left_to_right(allow_line_breaks(str(folder)))
            self.add(Entry(title, f"{place}\n{text}".rstrip(), show))

    def refresh(self) -> None:
        super().refresh()
        self.run(self._show_disk())

    async def _show_disk(self) -> None:
        settings = self.runtime.settings

        def read_disk() -> tuple[int, int, int, int]:
            free = shutil.disk_usage(self.runtime.paths.cache).free
            return self._quota(settings.quota_bytes), self._quota(None), long_chat_bytes(settings), free

        quota, usual, chat, free = await asyncio.to_thread(read_disk)
        if settings is not self.runtime.settings:
            return
        help = _(
            "Disk space for chat memory. When the limit is reached, kvchat deletes the chat memory "
            "that saves the least time per GB. Automatic limit: {limit}.",
            limit=format_size(usual),
        )
        self.settings["quota_bytes"].set_help(join_sentences(help, describe_capacity(quota, chat)))
        self.settings["free_floor_bytes"].set_help(
            _(
                "When less than this is free on the disk, kvchat stops saving chat memory. {free} free now.",
                free=format_size(free),
            )
        )

    def _quota(self, chosen: int | None) -> int:
        """Return the limit in bytes that results from the setting `chosen`. Reads the disk, so call it in a thread."""
        return store_bounds(self.runtime.paths, replace(self.runtime.settings, quota_bytes=chosen)).quota

    def change(self, name: str, value: Any) -> None:
        if name == "quota_bytes":
            self.run(self._change_quota(value))
        elif name == "max_age_days":
            self.run(self._change_age(value))
        else:
            super().change(name, value)

    async def _change_quota(self, chosen: int | None) -> None:
        """Set the storage limit, but ask first if this would delete save points."""
        quota = await asyncio.to_thread(self._quota, chosen)
        if quota < await asyncio.to_thread(self._quota, self.runtime.settings.quota_bytes):
            plan = await self.runtime.save_points.plan_prune(quota)
            if plan.save_point_ids:
                title = _("Lower the limit to {limit}?", limit=format_size(quota))
                text = join_sentences(describe_plan(plan, quota), _("Messages are not deleted."))
                self._ask("quota_bytes", title, text, _("Lower the limit"), chosen)
                return
        super().change("quota_bytes", chosen)

    async def _change_age(self, days: int | None) -> None:
        before = self.runtime.settings.max_age_days
        if days is None or (before is not None and days >= before):
            super().change("max_age_days", days)
            return
        title = plural(
            days, "Delete chat memory not used for {count} day?", "Delete chat memory not used for {count} days?"
        )
        text = describe_expiry(await self.runtime.save_points.usage(), days, datetime.now(UTC))
        self._ask("max_age_days", title, text, _("Delete"), days)

    def _ask(self, name: str, title: str, text: str, action: str, value: int | None) -> None:
        dialog = confirm(self.panel, title, text, action, lambda: super(StoragePage, self).change(name, value))
        dialog.rejected.connect(lambda: self.settings[name].restore(self.runtime.settings))

    def _open(self, folder: Path) -> None:
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
            path, advice = _("Path: {folder}.", folder=folder), _("Open the folder in your file manager.")
            self.panel.show_error(KvchatError(_("The folder could not be opened"), path, advice))
