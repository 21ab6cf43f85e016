"""Bring a window of a background application to the front."""

import os

from PySide6.QtGui import QGuiApplication


def set_activation_token(token: str) -> None:
    """Use the desktop's activation token for the next window that asks to come to the front.

    Without a token, Wayland only highlights the window. Qt reads and removes the environment variable.
    """
    if token and on_wayland():
        os.environ["XDG_ACTIVATION_TOKEN"] = token


def on_wayland() -> bool:
    """Return True on Wayland, where windows can neither know nor choose their position, nor raise themselves."""
    return QGuiApplication.platformName().startswith("wayland")
