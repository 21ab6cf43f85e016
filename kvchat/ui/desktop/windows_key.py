"""Ctrl+Alt+K on Windows: RegisterHotKey, on a thread of its own, whose queue gets the presses."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any

_CONTROL, _ALT, _NO_REPEAT = 0x2, 0x1, 0x4000
_HOTKEY, _QUIT = 0x312, 0x12  # WM_HOTKEY, WM_QUIT


def register(pressed: Callable[[], object]) -> Callable[[], object] | None:
    """Call `pressed`, on another thread, with each press; returns what gives it back, None where it is not to be had.

    https://learn.microsoft.com/windows/win32/api/winuser/nf-winuser-registerhotkey
    """
    windows: Any = getattr(ctypes, "windll")  # noqa: B009 - of Windows alone
    begun: queue.Queue[int] = queue.Queue()  # the thread's id; 0: another program has the key

    def serve() -> None:
        if not windows.user32.RegisterHotKey(None, 1, _CONTROL | _ALT | _NO_REPEAT, ord("K")):
            begun.put(0)
            return
        message = _Message()
        windows.user32.PeekMessageW(ctypes.byref(message), None, 0, 0, 0)  # makes the thread's queue
        begun.put(windows.kernel32.GetCurrentThreadId())
        while windows.user32.GetMessageW(ctypes.byref(message), None, 0, 0) > 0:
            if message.kind == _HOTKEY:
                pressed()
        windows.user32.UnregisterHotKey(None, 1)

    thread = threading.Thread(target=serve, name="global key", daemon=True)
    thread.start()
    number = begun.get()
    if not number:
        return None

    def release() -> None:
        windows.user32.PostThreadMessageW(number, _QUIT, 0, 0)
        thread.join()

    return release


class _Message(ctypes.Structure):
    """MSG."""

    _fields_ = (
        ("window", ctypes.c_void_p),
        ("kind", ctypes.c_uint),
        ("first", ctypes.c_size_t),
        ("second", ctypes.c_ssize_t),
        ("time", ctypes.c_ulong),
        ("x", ctypes.c_long),
        ("y", ctypes.c_long),
    )
