"""Bringing a window to the front from the background."""

import os

from PySide6.QtGui import QGuiApplication


def set_activation_token(token: str) -> None:
    """Store the token with which the desktop lets the next window come to the front.

    Without a token, Wayland only highlights the window. Qt takes the token from an environment variable and removes it.
    """
    if token and on_wayland():
        os.environ["XDG_ACTIVATION_TOKEN"] = token


def on_wayland() -> bool:
    """Return True on Wayland, where a window cannot know or set its position, or come to the front without a token."""
    return QGuiApplication.platformName().startswith("wayland")
