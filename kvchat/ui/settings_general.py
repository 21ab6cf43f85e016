"""Settings, General: how kvchat looks."""

from __future__ import annotations

from kvchat.ui.settings_entries import ChoiceEntry
from kvchat.ui.settings_page import Desk, SettingsPage

_THEMES = (("system", "Like the system"), ("light", "Light"), ("dark", "Dark"))


class GeneralPage(SettingsPage):
    """What is neither the model's nor the disk's."""

    name = "General"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        words = "Light or dark, or whatever your desktop uses right now."
        self.theme = self.add(ChoiceEntry(desk.look, "theme", "Theme", words, _THEMES, desk.change))
