"""Ctrl+Alt+K on X11: a passive grab on a connection of its own, by libxcb, which Qt's own window needs as well."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress

from PySide6.QtCore import QSocketNotifier

_CONTROL, _ALT = 1 << 2, 1 << 3
_LOCKS = (0, 1 << 1, 1 << 4, 1 << 1 | 1 << 4)  # Caps Lock and Num Lock are no part of what is meant
_LETTER_K, _KEY_PRESS, _ASYNC = 0x6B, 2, 1


class NoSuchKey(Exception):
    """No key of this keyboard gives a Latin K."""


class _Cookie(ctypes.Structure):
    _fields_ = (("sequence", ctypes.c_uint),)


class _Screens(ctypes.Structure):
    _fields_ = (("root", ctypes.POINTER(ctypes.c_uint32)), ("rest", ctypes.c_int), ("index", ctypes.c_int))


def grab(pressed: Callable[[], object]) -> Callable[[], object] | None:
    with suppress(OSError):
        return _Grab(pressed).take()
    return None


class _Grab:
    def __init__(self, pressed: Callable[[], object]) -> None:
        self._pressed = pressed
        self._xcb, symbols, self._c = (ctypes.CDLL(name) for name in ("libxcb.so.1", "libxcb-keysyms.so.1", None))
        xcb, pointer = self._xcb, ctypes.c_void_p
        for function in (xcb.xcb_connect, xcb.xcb_get_setup, xcb.xcb_request_check, xcb.xcb_poll_for_event):
            function.restype = pointer
        symbols.xcb_key_symbols_alloc.restype = pointer
        symbols.xcb_key_symbols_get_keycode.restype = ctypes.POINTER(ctypes.c_uint8)
        xcb.xcb_setup_roots_iterator.restype, xcb.xcb_grab_key_checked.restype = _Screens, _Cookie
        self._display = pointer(xcb.xcb_connect(None, None))
        self._notifier: QSocketNotifier | None = None
        if xcb.xcb_connection_has_error(self._display):
            self.release()
            raise ConnectionError("no X server")
        self._root = xcb.xcb_setup_roots_iterator(pointer(xcb.xcb_get_setup(self._display))).root[0]
        known = pointer(symbols.xcb_key_symbols_alloc(self._display))
        codes = symbols.xcb_key_symbols_get_keycode(known, _LETTER_K)
        self._code = codes[0] if codes else 0
        self._c.free(codes)
        symbols.xcb_key_symbols_free(known)
        if not self._code:  # X11's AnyKey: the grab would take every key pressed with Ctrl and Alt
            self.release()
            raise NoSuchKey

    def take(self) -> Callable[[], object] | None:
        xcb = self._xcb
        for locks in _LOCKS:
            held = self._display, 0, self._root, ctypes.c_uint16(_CONTROL | _ALT | locks), ctypes.c_uint8(self._code)
            error = xcb.xcb_request_check(self._display, xcb.xcb_grab_key_checked(*held, _ASYNC, _ASYNC))
            if error:
                self._c.free(ctypes.c_void_p(error))
                self.release()
                return None
        number = xcb.xcb_get_file_descriptor(self._display)
        self._notifier = QSocketNotifier(number, QSocketNotifier.Type.Read)
        self._notifier.activated.connect(self._hear)
        return self.release

    def release(self) -> None:
        if self._notifier is not None:
            self._notifier.setEnabled(False)
            self._notifier = None
        self._xcb.xcb_disconnect(self._display)

    def _hear(self) -> None:
        while event := self._xcb.xcb_poll_for_event(self._display):
            kind = ctypes.cast(event, ctypes.POINTER(ctypes.c_uint8))[0] & 0x7F
            self._c.free(ctypes.c_void_p(event))
            if kind == _KEY_PRESS:
                self._pressed()
        if self._notifier is not None and self._xcb.xcb_connection_has_error(self._display):
            self._notifier.setEnabled(False)  # the X server has gone
