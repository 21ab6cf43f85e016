"""Settings, General: how kvchat looks, and when its engine runs."""

from __future__ import annotations

from kvchat.ui.base.theme import ZOOMS
from kvchat.ui.settings.page import Desk, SettingsPage
from kvchat.ui.widgets.entries import ChoiceEntry, NumberEntry
from kvchat.ui.widgets.number_text import MINUTES
from kvchat.words.wording import NUMBERS

_THEMES = (("system", "Like the system"), ("light", "Light"), ("dark", "Dark"))
_SIZES = tuple((percent, f"{percent} %") for percent in ZOOMS)
_NUMBERS = ((True, "Show"), (False, "Hide"))
_ON_OFF = ((True, "On"), (False, "Off"))
_STARTS = (("app", "With kvchat"), ("message", "With the first message"))


class GeneralPage(SettingsPage):
    """What is neither the model's nor the disk's."""

    name = "General"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        words = "Light or dark, or whatever your desktop uses right now."
        self.theme = self.add(ChoiceEntry(desk.look, "theme", "Theme", words, _THEMES, desk.change))
        words = "Of all text. Ctrl++ and Ctrl+− change it in the main window, Ctrl+0 sets it back."
        self.zoom = self.add(ChoiceEntry(desk.look, "zoom", "Text size", words, _SIZES, desk.change))
        words = "How long each reply took and where its chat came from, below it and in the line at the bottom."
        self.numbers = self.add(ChoiceEntry(desk.look, "show_numbers", NUMBERS, words, _NUMBERS, desk.change))
        words = "In the language of the chat, when it has nothing else to do. A name you gave stays."
        entry = ChoiceEntry(desk.look, "model_titles", "Let the model name chats", words, _ON_OFF, desk.change)
        self.titles = self.add(entry)
        words = "With the first message saves memory until you need it; that message waits until the model is loaded."
        self.start = self.add(ChoiceEntry(desk.look, "engine_start", "Start the engine", words, _STARTS, desk.change))
        self.idle = self.add(
            NumberEntry(
                "idle_minutes",
                "Stop the engine when idle",
                "After so long without a message the model’s memory is freed. The next message brings it back, and "
                "your chats come back from disk.",
                MINUTES,
                desk.change,
                default="never",
                reset="Never",
            )
        )
