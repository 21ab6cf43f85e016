"""Archives like llama.cpp's releases, and unsafe ones."""

import io
import os
import random
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.system import archives
from kvchat.system.archives import UnsafeArchive, unpack
from tests.library.engine_archives import tarred, zipped
from tests.systems import needs_links


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def unpacked(archive: Path, into: Path) -> list[str]:
    into.mkdir(exist_ok=True)
    unpack(archive, into, threading.Event())
    return sorted(path.relative_to(into).as_posix() for path in into.rglob("*"))


@needs_links
def test_top_folder_is_removed_and_links_and_modes_stay(tmp_path: Path) -> None:
    files = {"llama-b1/llama-server": b"#!", "llama-b1/LICENSE": b"MIT", "llama-b1/rocblas/library/a.dat": b"x"}
    archive = put(tmp_path, "a.tar.gz", tarred(files, links={"llama-b1/libllama.so": "LICENSE"}))
    into = tmp_path / "into"
    assert unpacked(archive, into) == [
        *("LICENSE", "libllama.so", "llama-server"),
        *("rocblas", "rocblas/library", "rocblas/library/a.dat"),
    ]
    assert os.access(into / "llama-server", os.X_OK)
    assert not os.access(into / "LICENSE", os.X_OK)
    assert (into / "libllama.so").readlink() == Path("LICENSE")


def test_second_archive_and_stop(tmp_path: Path) -> None:
    into, stop = tmp_path / "into", threading.Event()
    unpacked(put(tmp_path, "a.zip", zipped({"llama-server.exe": b"1", "ggml-cuda.dll": b"2"})), into)
    second = put(tmp_path, "b.tar.gz", tarred({"cudart-llama-b1/libcudart.so.12": b"3", "cudart-llama-b1/x": b"4"}))
    assert unpacked(second, into) == ["ggml-cuda.dll", "libcudart.so.12", "llama-server.exe", "x"]
    stop.set()
    unpack(second, tmp_path, stop)
    assert {path.name for path in tmp_path.iterdir()} == {"a.zip", "b.tar.gz", "into"}


def with_member(change: Callable[[tarfile.TarInfo], object]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("good"), io.BytesIO())
        entry = tarfile.TarInfo("llama-b1/bad")
        change(entry)
        tar.addfile(entry, io.BytesIO(b"x" * entry.size))
    return buffer.getvalue()


def linked(name: str, kind: bytes = tarfile.SYMTYPE) -> Callable[[tarfile.TarInfo], object]:
    def change(entry: tarfile.TarInfo) -> None:
        entry.type, entry.linkname = kind, name

    return change


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tarred({"../outside": b"x"}), "invalid name"),
        (tarred({"a/../../outside": b"x"}), "invalid name"),
        (tarred({"/tmp/outside": b"x"}), "invalid name"),
        (tarred({"C:\\outside": b"x"}), "invalid name"),
        (zipped({"../outside": b"x"}), "invalid name"),
        (zipped({"a/../../outside": b"x"}), "invalid name"),
        (with_member(linked("../../outside")), "link to another folder"),
        (with_member(linked("/etc/passwd")), "link to another folder"),
        (with_member(linked("..")), "link to another folder"),
        (with_member(linked("good", tarfile.LNKTYPE)), "is not a file"),
        (with_member(linked("", tarfile.FIFOTYPE)), "is not a file"),
        (with_member(linked("", tarfile.CHRTYPE)), "is not a file"),
        (tarred({"x/y": b""}, links={"x": "."}), "link to another folder"),
        (b"no archive", "damaged"),
        (tarred({"a": random.Random(0).randbytes(100_000)})[:50_000], "damaged"),
        (b"", "damaged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "archive",  # bytes contain the time
)
def test_unsafe_or_damaged_archives_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    into = tmp_path / "in" / "into"
    into.mkdir(parents=True)
    with pytest.raises(UnsafeArchive, match=message):
        unpacked(put(tmp_path, "a.tar.gz", content), into)
    assert list(into.iterdir()) == []
    assert list(tmp_path.rglob("outside")) == []


@needs_links
def test_file_behind_a_link_is_refused(tmp_path: Path) -> None:
    content = tarred({"d/x": b"1", "l/y": b"2"}, links={"l": "d"}, links_first=True)
    with pytest.raises(UnsafeArchive, match="in a linked folder"):
        unpacked(put(tmp_path, "a.tar.gz", content), tmp_path / "into")


def test_archive_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1000)
    for content in (tarred({"a": bytes(2000)}), zipped({"a": bytes(2000)})):
        with pytest.raises(UnsafeArchive, match="too large when unpacked"):
            unpacked(put(tmp_path, "a", content), tmp_path / "into")
    monkeypatch.setattr(archives, "MAX_FILES", 2)
    with pytest.raises(UnsafeArchive, match="too large when unpacked"):
        unpacked(put(tmp_path, "a", tarred({str(n): b"" for n in range(3)})), tmp_path / "into")


def test_zip_with_wrong_size_or_link_is_refused(tmp_path: Path) -> None:
    content = zipped({"a": bytes(5000)})
    lying = content.replace((5000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    assert lying != content
    with pytest.raises(UnsafeArchive):
        unpacked(put(tmp_path, "a.zip", lying), tmp_path / "into")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        entry = zipfile.ZipInfo("l")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(UnsafeArchive, match="link"):
        unpacked(tmp_path / "b.zip", tmp_path / "into")
