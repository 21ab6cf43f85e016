"""Take the README's screenshots of the real application: python -m tests.e2e.screenshots FOLDER."""

import sys
import tempfile
from pathlib import Path

from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home
from tests.e2e.window import open_window
from tests.models import starter_model

SIZE, SCALE = "1650x1140", "1.25"
LETTER = "Write a letter to the tax office."
SUPPER = "晚餐食譜 🍅 番茄炒蛋"
LOAVES = "\n".join(
    f"Loaf {number}: {300 + 5 * number} g of flour, {200 + 3 * number} g of water, {number % 7 + 5} g of salt, "
    f"{number % 5 + 2} hours of rest, {200 + number % 40} degrees for {25 + number % 20} minutes."
    for number in range(1, 46)
)
NOTES = (
    f"Here are my notes on bread, please keep them in mind.\n{LOAVES}\nWhat is bread made of? Answer in one sentence."
)
QUESTION = "Write a Python function that adds two numbers."


def main(folder: Path) -> None:
    """Make three chats; restart in the light and the dark theme and reply to the longest."""
    with tempfile.TemporaryDirectory(prefix="kvchat-pictures-") as scratch, Desktop(size=SIZE) as desktop:
        desktop.environment["QT_SCALE_FACTOR"] = SCALE
        home = Home(Path(scratch) / "home")
        settings = {"model_path": str(starter_model()), "max_tokens": 260, **GREEDY}
        home.write_settings(**settings)
        with open_window(desktop, home) as window:
            for count, text in enumerate((LETTER, SUPPER, NOTES), start=1):
                desktop.key("ctrl+n")
                window.send(text)
                window.replies(count)
                window.wait_for_saves(count)
            window.quit()
        for theme in ("light", "dark"):
            again = home.copy(Path(scratch) / theme)
            again.write_settings(theme=theme, **settings)
            with open_window(desktop, again) as window:
                window.open_conversation("Here are my notes")
                desktop.key("F11")
                window.wait_for_strip("loaded")
                window.send(QUESTION)
                window.replies(4)
                window.wait_for_strip("saved")
                desktop.xdotool("mousemove", "1640", "1139")  # nearly outside the screen
                desktop.screenshot().save(folder / f"screenshot-{theme}.png")
                window.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
