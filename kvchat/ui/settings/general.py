"""Settings, General: how kvchat looks, and when its engine runs."""

from __future__ import annotations

import asyncio

from PySide6.QtGui import QKeySequence

from kvchat.runtime import Runtime
from kvchat.settings import Settings
from kvchat.system.login import can_start_at_login, start_at_login, starts_at_login
from kvchat.ui.base.theme import ZOOMS, Look
from kvchat.ui.desktop.global_key import KEY
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.entries import MINUTES, ChoiceEntry, NumberEntry, SwitchEntry
from kvchat.words.language import LANGUAGES, N_, SYSTEM, _
from kvchat.words.wording import NUMBERS

_THEMES = (("system", N_("Like the system")), ("light", N_("Light")), ("dark", N_("Dark")))
_LANGUAGES = ((SYSTEM, N_("Like the system")), *LANGUAGES.items())
_SIZES = tuple((percent, f"{percent} %") for percent in ZOOMS)
_AHEAD = (("auto", N_("Automatically")), ("always", N_("Always")), ("never", N_("Never")))
_STARTS = (("app", N_("With kvchat")), ("message", N_("With the first message")))


class GeneralPage(SettingsPage):
    """What is neither the model's nor the disk's."""

    name = N_("General")

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        change = self.change
        words = _("Light or dark, or whatever your desktop uses right now.")
        self.theme = self.add(ChoiceEntry(look, "theme", _("Theme"), words, _THEMES, change))
        words = _("Of kvchat’s own words, when it starts the next time. In a chat, write as you like.")
        self.language = self.add(ChoiceEntry(look, "language", _("Language"), words, _LANGUAGES, change))
        words = _("Of all text. Ctrl++ and Ctrl+− change it in the main window, Ctrl+0 sets it back.")
        self.zoom = self.add(ChoiceEntry(look, "zoom", _("Text size"), words, _SIZES, change))
        words = _("How long each reply took and where its chat came from, below it and in the line at the bottom.")
        self.numbers = self.add(SwitchEntry(look, "show_numbers", _(NUMBERS), words, change))
        words = _("In the language of the chat, when it has nothing else to do. A name you gave stays.")
        self.titles = self.add(SwitchEntry(look, "model_titles", _("Let the model name chats"), words, change))
        words = _(
            "While you look at a chat or write, the engine reads what it will need, and then answers at once. "
            "Automatically: not on battery, and not with a server of your own. Of a draft nothing is kept."
        )
        self.read_ahead = self.add(ChoiceEntry(look, "read_ahead", _("Read before you send"), words, _AHEAD, change))
        words = _(
            "{key} opens a small window to ask something in, whatever you are at. On Wayland your desktop asks "
            "which key it shall be.",
            key=QKeySequence(KEY).toString(QKeySequence.SequenceFormat.NativeText),
        )
        self.quick = self.add(SwitchEntry(look, "quick_key", _("Ask from anywhere"), words, change))
        self.login = self.add(LoginEntry(look, self))
        words = _(
            "With the first message saves memory until you need it; that message waits until the model is loaded."
        )
        self.start = self.add(ChoiceEntry(look, "engine_start", _("Start the engine"), words, _STARTS, change))
        words = _(
            "After so long without a message the model’s memory is freed. The next message brings it back, and "
            "your chats come back from disk."
        )
        title = _("Stop the engine when idle")
        self.idle = self.add(
            NumberEntry("idle_minutes", title, words, MINUTES, change, default=_("never"), reset=_("Never"))
        )
        words = _("Asks GitHub once a day, and shows where it is. Nothing is fetched or installed.")
        title = _("Tell me of a newer kvchat")
        self.updates = self.add(SwitchEntry(look, "update_notice", title, words, change))


class LoginEntry(SwitchEntry):
    """Whether kvchat starts with the session. Not one of kvchat's settings: the desktop knows."""

    def __init__(self, look: Look, page: SettingsPage) -> None:
        words = _("In the tray, without opening its window. Your chats are then ready when you are.")
        super().__init__(look, "", _("Start at login"), words, lambda _, on: page.run(self._change(on)))
        self._page = page

    def refresh(self, settings: Settings) -> None:
        """Show how it is now, where that can be changed from here."""
        self.setVisible(can_start_at_login())
        self._page.run(self._show_now())

    async def _show_now(self) -> None:
        self.switch.setChecked(await asyncio.to_thread(starts_at_login))

    async def _change(self, on: bool) -> None:
        try:
            await asyncio.to_thread(start_at_login, on)
        finally:
            self.refresh(self._page.runtime.settings)
