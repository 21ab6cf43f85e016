"""Ctrl+Alt+K on macOS: Carbon's RegisterEventHotKey, which needs no permission."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_CARBON = "/System/Library/Frameworks/Carbon.framework/Carbon"
_KEYBOARD, _HOT_KEY_PRESSED = int.from_bytes(b"keyb", "big"), 5
_CONTROL, _OPTION, _LETTER_K = 1 << 12, 1 << 11, 0x28  # of Events.h


class _Kind(ctypes.Structure):
    """EventTypeSpec."""

    _fields_ = (("group", ctypes.c_uint32), ("kind", ctypes.c_uint32))


class _Id(ctypes.Structure):
    """EventHotKeyID."""

    _fields_ = (("signature", ctypes.c_uint32), ("id", ctypes.c_uint32))


_Handler = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def register(pressed: Callable[[], object]) -> Callable[[], object] | None:
    """Call `pressed` with each press. Returns what gives the key back, or None if it cannot be had."""
    carbon = ctypes.CDLL(_CARBON)
    carbon.GetApplicationEventTarget.restype = ctypes.c_void_p
    target = ctypes.c_void_p(carbon.GetApplicationEventTarget())

    def hear(_next: object, _event: object, _data: object) -> int:
        pressed()
        return 0

    handler, key, installed = _Handler(hear), ctypes.c_void_p(), ctypes.c_void_p()
    wanted, kind = _Id(int.from_bytes(b"kvch", "big"), 1), _Kind(_KEYBOARD, _HOT_KEY_PRESSED)
    modifiers = _CONTROL | _OPTION
    if carbon.RegisterEventHotKey(_LETTER_K, modifiers, wanted, target, 0, ctypes.byref(key)):
        return None
    carbon.InstallEventHandler(target, handler, 1, ctypes.byref(kind), None, ctypes.byref(installed))

    def release() -> _Handler:  # type: ignore[valid-type]
        carbon.UnregisterEventHotKey(key)
        carbon.RemoveEventHandler(installed)
        return handler  # it had to live as long as the key

    return release
