"""Detection of reasons why Qt would abort."""

import socket

from kvchat.system import display
from kvchat.system.display import DisplayProblem, find_display_problem
from tests.systems import not_on_windows

pytestmark = not_on_windows("Windows always has a display")


def test_a_missing_display_is_explained_unless_the_platform_needs_none():
    problem = find_display_problem({})
    assert "neither DISPLAY nor WAYLAND_DISPLAY" in problem.detail
    assert find_display_problem({"QT_QPA_PLATFORM": "offscreen"}) is None


def test_missing_libraries_are_named_with_the_command_to_install_them(monkeypatch):
    libraries = ("libNot.so.1", "libX12.so.6", "libnot-x11.so.0", "libgssapi_not5.so.2", "libglib-not.so.0")
    monkeypatch.setattr(display, "_CORE_LIBRARIES", (*libraries, "libc.so.6"))
    monkeypatch.setitem(display._PACKAGES, "libglib-not.so.0", "libglib2.0-0")
    assert find_display_problem({"QT_QPA_PLATFORM": "offscreen"}) == DisplayProblem(
        f"Qt needs libraries that are not installed: {', '.join(libraries)}.",
        "On Debian or Ubuntu, run: sudo apt-get install -y libnot1 libx12-6 libnot-x11-0 libgssapi-not5-2 libglib2.0-0",
    )


def test_wayland_is_available_if_its_socket_answers(tmp_path):
    environment = {"WAYLAND_DISPLAY": "wayland-9", "XDG_RUNTIME_DIR": str(tmp_path)}
    problem = find_display_problem(environment)
    assert "WAYLAND_DISPLAY=wayland-9" in problem.detail
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "wayland-9"))
        server.listen()
        assert find_display_problem(environment) is None
