"""Detection of a missing display before Qt is imported, which would abort the process."""

import ctypes
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvchat.text.language import N_, _, join_list

_NO_DISPLAY_ADVICE = N_("Start kvchat in a desktop session, or chat in the terminal with: kvchat ask PROMPT")

# Libraries that Qt and its platform plugins need.
_CORE_LIBRARIES = (
    *("libEGL.so.1", "libGL.so.1", "libglib-2.0.so.0", "libgthread-2.0.so.0", "libfontconfig.so.1", "libfreetype.so.6"),
    *("libdbus-1.so.3", "libX11.so.6", "libxkbcommon.so.0", "libgssapi_krb5.so.2", "libbrotlidec.so.1", "libzstd.so.1"),
)
_X11_LIBRARIES = (
    *("libX11-xcb.so.1", "libxkbcommon-x11.so.0", "libxcb-cursor.so.0", "libxcb-icccm.so.4", "libxcb-keysyms.so.1"),
    *("libxcb-image.so.0", "libxcb-randr.so.0", "libxcb-render.so.0", "libxcb-render-util.so.0", "libxcb-shape.so.0"),
    *("libxcb-shm.so.0", "libxcb-sync.so.1", "libxcb-util.so.1", "libxcb-xfixes.so.0", "libxcb-xkb.so.1"),
)
_WAYLAND_LIBRARIES = ("libwayland-client.so.0", "libwayland-cursor.so.0")
_PACKAGES = {  # Debian packages whose names do not follow from the library's
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libbrotlidec.so.1": "libbrotli1",
}


@dataclass(frozen=True)
class DisplayProblem:
    detail: str
    advice: str


def find_display_problem(environment: Mapping[str, str] = os.environ) -> DisplayProblem | None:
    """Return why Qt would abort, or None. Only on Linux can the display or its libraries be missing."""
    if sys.platform != "linux":
        return None
    plugin = environment.get("QT_QPA_PLATFORM", "").split(";")[0].split(":")[0]
    if plugin not in ("", "xcb") and not plugin.startswith("wayland"):
        return _find_missing_libraries(_CORE_LIBRARIES)  # offscreen, vnc etc. need no display
    needed: tuple[str, ...] = _CORE_LIBRARIES
    if environment.get("DISPLAY"):
        needed += _X11_LIBRARIES
    elif environment.get("WAYLAND_DISPLAY"):
        needed += _WAYLAND_LIBRARIES
    else:
        detail = _("There is no display: neither DISPLAY nor WAYLAND_DISPLAY is set.")
        return DisplayProblem(detail, _(_NO_DISPLAY_ADVICE))
    return _find_missing_libraries(needed) or _find_unreachable_display(environment)


def _find_missing_libraries(libraries: Iterable[str]) -> DisplayProblem | None:
    missing, packages = [], []
    for library in libraries:
        try:
            ctypes.CDLL(library)
        except OSError:
            missing.append(library)
            name, _dot, version = library.lower().replace("_", "-").partition(".so.")
            packages.append(_PACKAGES.get(library, f"{name}{'-' if name[-1].isdigit() else ''}{version}"))
    if not missing:
        return None
    return DisplayProblem(
        _("Qt needs libraries that are not installed: {libraries}.", libraries=join_list(missing)),
        _("On Debian or Ubuntu, run: sudo apt-get install -y {packages}", packages=" ".join(dict.fromkeys(packages))),
    )


def _find_unreachable_display(environment: Mapping[str, str]) -> DisplayProblem | None:
    names = [name for name in ("DISPLAY", "WAYLAND_DISPLAY") if environment.get(name)]
    if "DISPLAY" in names and _x_server_answers(environment["DISPLAY"]):
        return None
    if "WAYLAND_DISPLAY" in names:
        path = Path(environment.get("XDG_RUNTIME_DIR", "")) / environment["WAYLAND_DISPLAY"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                return None
    variables = _(" and ").join(f"{name}={environment[name]}" for name in names)
    return DisplayProblem(_("Cannot connect to the display at {display}.", display=variables), _(_NO_DISPLAY_ADVICE))


def _x_server_answers(display: str) -> bool:
    """Return True if an X server accepts a connection.

    Uses libxcb, as Qt does, which parses the display name and finds the user's credentials.
    """
    xcb = ctypes.CDLL("libxcb.so.1")
    xcb.xcb_connect.restype = ctypes.c_void_p
    xcb.xcb_connect.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    xcb.xcb_connection_has_error.argtypes = [ctypes.c_void_p]
    xcb.xcb_disconnect.argtypes = [ctypes.c_void_p]
    connection = xcb.xcb_connect(display.encode(), None)
    try:
        return not xcb.xcb_connection_has_error(connection)
    finally:
        xcb.xcb_disconnect(connection)
