"""Finding out beforehand why Qt would abort."""

from __future__ import annotations

import socket

import pytest

from kvchat.cli import no_display
from kvchat.cli.no_display import DisplayProblem, find_problem


def test_no_display_at_all():
    problem = find_problem({})
    assert "neither DISPLAY nor WAYLAND_DISPLAY" in problem.detail


def test_the_offscreen_platform_needs_no_display():
    assert find_problem({"QT_QPA_PLATFORM": "offscreen"}) is None


def test_a_missing_library_is_named_with_the_line_that_installs_it(monkeypatch):
    libraries = ("libnot-there.so.1", "libnot-there-either.so.1", "libc.so.6")
    monkeypatch.setattr(no_display, "_CORE_LIBRARIES", libraries)
    monkeypatch.setitem(no_display._PACKAGES, "libnot-there-either.so.1", "libnot-there1")
    problem = find_problem({"QT_QPA_PLATFORM": "offscreen"})
    assert problem == DisplayProblem(
        "Qt needs libraries that are not installed: libnot-there.so.1, libnot-there-either.so.1.",
        "On Debian or Ubuntu, run: sudo apt-get install -y libnot-there1",
    )


@pytest.mark.parametrize(
    ("library", "package"),
    [
        ("libEGL.so.1", "libegl1"),
        ("libX11.so.6", "libx11-6"),
        ("libxkbcommon-x11.so.0", "libxkbcommon-x11-0"),
        ("libgssapi_krb5.so.2", "libgssapi-krb5-2"),
        ("libglib-2.0.so.0", "libglib2.0-0"),
    ],
)
def test_a_package_is_named_as_debian_does(library, package):
    assert no_display._package(library) == package


def test_wayland_counts_once_its_socket_answers(tmp_path):
    environment = {"WAYLAND_DISPLAY": "wayland-9", "XDG_RUNTIME_DIR": str(tmp_path)}
    problem = find_problem(environment)
    assert "WAYLAND_DISPLAY=wayland-9" in problem.detail
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "wayland-9"))
        server.listen()
        assert find_problem(environment) is None


def test_without_starter_the_app_only_explains(capsys):
    assert no_display.explain(DisplayProblem("No screen.", "Use kvchat ask."), starter=False) == 1
    assert capsys.readouterr().err == "kvchat cannot open a window. No screen.\n  Use kvchat ask.\n"
