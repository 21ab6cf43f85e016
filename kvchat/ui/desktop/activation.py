"""How a window of an application that stands behind others comes to the front."""

from __future__ import annotations

import os

from PySide6.QtGui import QGuiApplication


def let_to_front(token: str) -> None:
    """The next window that asks for it comes to the front, with the token of whoever has the user's attention now.

    Without one Wayland only marks the window. Qt takes it from the environment, and out of it.
    """
    if token and on_wayland():
        os.environ["XDG_ACTIVATION_TOKEN"] = token


def on_wayland() -> bool:
    """Return True if windows do not know or choose their place, nor come to the front by themselves."""
    return QGuiApplication.platformName().startswith("wayland")
