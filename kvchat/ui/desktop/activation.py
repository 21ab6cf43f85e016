"""Bring a window of a background application to the front."""

import os

from PySide6.QtGui import QGuiApplication


def set_activation_token(token: str) -> None:
    """Let the next window that asks come to the front, with the desktop's activation token.

    Without one, Wayland only marks the window. Qt reads and removes the environment variable.
    """
    if token and on_wayland():
        os.environ["XDG_ACTIVATION_TOKEN"] = token


def on_wayland() -> bool:
    """Return True if windows cannot know or choose their place, nor raise themselves."""
    return QGuiApplication.platformName().startswith("wayland")
