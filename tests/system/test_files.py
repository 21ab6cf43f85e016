"""Atomic writes."""

import errno
import os
import socket
import stat
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from kvchat.system import files
from kvchat.system.files import NotAFile, atomic_write
from tests.systems import WINDOWS, has_mode, needs_links, needs_pipes


def test_atomic_write_replaces_privately(tmp_path: Path) -> None:
    target = tmp_path / "晚.json"
    for text, private in (("old", False), ("new", True)):
        with atomic_write(target, private=private) as new:
            new.write_text(text, "utf-8")
            assert target.exists() == private
        assert target.read_text("utf-8") == text
        assert has_mode(target, 0o600)
        target.chmod(0o644)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("fault", [OSError, KeyboardInterrupt])
def test_interrupted_write_keeps_the_old_file(tmp_path: Path, fault: type[BaseException]) -> None:
    target = tmp_path / "a.json"
    target.write_text("old", "utf-8")

    def fail(new: Path) -> None:
        new.write_text("ne", "utf-8")
        raise fault

    with pytest.raises(fault), atomic_write(target) as new:
        fail(new)
    assert target.read_text("utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_old_leftovers_of_killed_processes_are_deleted(tmp_path: Path) -> None:
    old, recent, foreign = (tmp_path / name for name in (".0123456789ab.new", ".0123456789ab.new-wal", ".mine.new"))
    for path in (old, recent, foreign):
        path.touch()
    for expired, left in ((old, [recent, foreign]), (recent, [foreign])):
        for path in (expired, foreign):
            os.utime(path, (0, 0))
        with atomic_write(tmp_path / "a.json") as new:
            new.write_text("x", "utf-8")
        assert sorted(tmp_path.iterdir()) == sorted([*left, tmp_path / "a.json"])


def test_file_open_in_a_virus_scanner_is_replaced_when_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "settings.json"
    target.write_text("old")
    scanner = target.open()  # Windows replaces no open file
    if sys.platform != "win32":
        replace = Path.replace

        def replace_as_windows(source: Path, target: Path) -> Path:
            if scanner.closed:
                return replace(source, target)
            error = PermissionError(errno.EACCES, "in use")
            error.winerror = 32
            raise error

        monkeypatch.setattr(Path, "replace", replace_as_windows)
    with monkeypatch.context() as patience:
        patience.setattr(files, "SHARING_TIMEOUT_S", 0.2)
        with pytest.raises(PermissionError), atomic_write(target) as new:
            new.write_text("given up")
    assert (target.read_text(), len(list(tmp_path.iterdir()))) == ("old", 1)
    closing = threading.Timer(0.3, scanner.close)
    closing.start()
    with atomic_write(target) as new:
        new.write_text("new")
    closing.join()
    assert target.read_text() == "new"


def test_read_only_file_is_replaced_or_kept(tmp_path: Path) -> None:
    target = tmp_path / "settings.json"
    target.write_text("old")
    target.chmod(0o444)
    with pytest.raises(PermissionError) if WINDOWS else nullcontext(), atomic_write(target) as new:
        new.write_text("new")
    assert (target.read_text(), has_mode(target, 0o444)) == ("old" if WINDOWS else "new", True)
    assert list(tmp_path.iterdir()) == [target]
    target.chmod(0o600)  # for pytest, which deletes it


@needs_links
def test_atomic_write_follows_links(tmp_path: Path) -> None:
    behind, link = tmp_path / "there" / "a.json", tmp_path / "link.json"
    behind.parent.mkdir()
    behind.write_text("old", "utf-8")
    behind.chmod(0o640)
    link.symlink_to("there/a.json")
    with atomic_write(link) as new:
        new.write_text("new", "utf-8")
    assert link.is_symlink()
    assert behind.read_text("utf-8") == "new"
    assert behind.stat().st_mode & 0o777 == 0o640
    assert list(behind.parent.iterdir()) == [behind]
    link.unlink()
    link.symlink_to("new.json")
    with atomic_write(link) as new:
        new.write_text("x", "utf-8")
    assert link.is_symlink()
    assert (tmp_path / "new.json").read_text("utf-8") == "x"


@needs_pipes
@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a socket", "a device"])
def test_atomic_write_refuses_non_files(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "x"
    with socket.socket(socket.AF_UNIX) as listening:
        match kind:
            case "a folder":
                place.mkdir()
            case "a pipe":
                os.mkfifo(place)
            case "a socket":
                listening.bind(str(place))
            case _ if os.geteuid():
                place.symlink_to("/dev/full")
            case _:  # root could replace that one: it gets one to spare
                os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        before = place.stat().st_mode
        with pytest.raises(NotAFile, match=kind), atomic_write(place) as new:
            new.write_text("x", "utf-8")
    assert place.stat().st_mode == before
    assert list(tmp_path.iterdir()) == [place]
