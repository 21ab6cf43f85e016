"""Files in shared folders: what is read, and attempts to get out of the folders."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.attachments import document_from_bytes
from kvchat.tools.built_in.definition import MAX_PART_CHARS
from kvchat.tools.built_in.files import MAX_ENTRIES, MAX_FILE_BYTES, file_tools
from kvchat.tools.tool import ToolFailed

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs links and pipes")


class Files:
    def __init__(self, *folders: Path) -> None:
        def read_text(name: str, data: bytes, format: str | None) -> str:
            return document_from_bytes(name, data, format).text

        self.folders = [str(folder) for folder in folders]
        self._list, self._read = file_tools(lambda: self.folders, read_text)

    async def list(self, **arguments: Any) -> str:
        return (await self._list.run(arguments)).text

    async def read(self, path: str | Path, start: int = 0) -> str:
        return (await self._read.run({"path": str(path), "start": start})).text

    @property
    def is_offered(self) -> bool:
        return self._list.is_offered() and self._read.is_offered()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    shared = tmp_path / "shared"
    (shared / "inner").mkdir(parents=True)
    (shared / "note.txt").write_text("hello", "utf-8")
    (shared / "inner" / "deep.md").write_text("# Deep", "utf-8")
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    (tmp_path / "shared-too").mkdir()
    (tmp_path / "shared-too" / "secret.txt").write_text("secret", "utf-8")
    return shared


async def test_files_are_listed_and_read_by_either_kind_of_path(shared: Path) -> None:
    files = Files(shared)
    assert (await files.list()).splitlines() == [f"{shared}{os.sep}", f"inner{os.sep}", "note.txt (5 bytes)"]
    assert "deep.md" in await files.list(path="inner")
    for path in ("note.txt", "./inner/../note.txt", shared / "note.txt"):
        assert await files.read(path) == "hello"
    with pytest.raises(ToolFailed, match="cannot be read"):
        await files.read("absent.txt")


async def test_several_folders_are_named_and_searched_in_order(shared: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "more.txt").write_text("more", "utf-8")
    files = Files(shared, other)
    assert await files.list() == f"{shared}{os.sep}\n{other}{os.sep}"
    assert await files.read("more.txt") == "more"


async def test_without_folders_nothing_is_offered_or_read(shared: Path) -> None:
    files = Files()
    assert not files.is_offered
    with pytest.raises(ToolFailed, match="not in a folder that the user shares"):
        await files.read(shared / "note.txt")


ESCAPES: dict[str, Callable[[Path], str]] = {
    "parent": lambda shared: "../secret.txt",
    "parent inside": lambda shared: "inner/../../secret.txt",
    "absolute": lambda shared: str(shared.parent / "secret.txt"),
    "same beginning": lambda shared: f"{shared}-too/secret.txt",
    "system": lambda shared: "/etc/passwd",
    "process": lambda shared: "/proc/self/environ",
    "home": lambda shared: "~/.ssh/id_rsa",
    "share": lambda shared: "\\\\server\\share\\secret.txt",
    "null": lambda shared: "note.txt\0",
    "long": lambda shared: "x" * 4000,
}


@pytest.mark.parametrize("name", ESCAPES)
async def test_no_path_leads_out(shared: Path, name: str) -> None:
    with pytest.raises(ToolFailed):
        await Files(shared).read(ESCAPES[name](shared))
    with pytest.raises(ToolFailed):
        await Files(shared).list(path=ESCAPES[name](shared))


@posix
async def test_no_link_leads_out(shared: Path) -> None:
    (shared / "file").symlink_to("../secret.txt")
    (shared / "folder").symlink_to("..")
    (shared / "chain").symlink_to("folder")
    (shared / "loop").symlink_to("loop")
    (shared / "process").symlink_to("/proc/self")
    files = Files(shared)
    for path in ("file", "folder/secret.txt", "chain/secret.txt", "folder/shared/../secret.txt", "process/environ"):
        with pytest.raises(ToolFailed, match="not in a folder that the user shares"):
            await files.read(path)
    with pytest.raises(ToolFailed, match="not in a folder that the user shares"):
        await files.list(path="folder")
    with pytest.raises(ToolFailed):
        await files.read("loop")
    (shared / "fine").symlink_to("inner/deep.md")
    assert await files.read("fine") == "# Deep"


@posix
async def test_a_shared_folder_may_be_a_link(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(shared)
    files = Files(tmp_path / "link")
    for path in (tmp_path / "link" / "note.txt", shared / "note.txt"):
        assert await files.read(path) == "hello"


async def test_hidden_files_are_left_out(shared: Path) -> None:
    (shared / ".ssh").mkdir()
    (shared / ".ssh" / "id_rsa").write_text("key", "utf-8")
    files = Files(shared)
    assert ".ssh" not in await files.list()
    for path in (".ssh/id_rsa", "inner/../.ssh/id_rsa"):
        with pytest.raises(ToolFailed):
            await files.read(path)


@posix
async def test_pipes_sockets_and_devices_are_refused_at_once(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(shared / "pipe")
    bound = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(shared)  # a socket path is short
    bound.bind("socket")
    files = Files(shared, Path("/dev"))
    for path in ("pipe", "socket", "/dev/zero", "/dev/tty"):
        with pytest.raises(ToolFailed, match="not a file"):
            await files.read(path)
    with pytest.raises(ToolFailed, match="a folder, not a file"):
        await files.read("inner")
    bound.close()


async def test_content_that_is_huge_binary_or_not_utf8(shared: Path) -> None:
    files = Files(shared)
    with (shared / "huge.txt").open("wb") as huge:
        huge.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ToolFailed, match="larger than"):
        await files.read("huge.txt")
    (shared / "program.txt").write_bytes(b"\x7fELF\0\0\0" * 100)
    with pytest.raises(ToolFailed, match="No text could be read"):
        await files.read("program.txt")
    (shared / "damaged.pdf").write_bytes(b"%PDF-1.7\nnothing")
    with pytest.raises(ToolFailed, match="damaged"):
        await files.read("damaged.pdf")
    (shared / "latin.txt").write_bytes("Die Straße führt über die Brücke. ".encode("latin-1") * 20)
    assert "Straße führt" in await files.read("latin.txt")


async def test_a_long_text_is_read_in_parts(shared: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(10_000))
    (shared / "long.txt").write_text(text, "utf-8", newline="")
    files, read, start = Files(shared), "", 0
    while start < len(text):
        part = await files.read("long.txt", start)
        assert len(part) < MAX_PART_CHARS + 200
        read, start = read + part[:MAX_PART_CHARS].partition("\n[")[0], start + MAX_PART_CHARS
    assert read == text
    assert "ends at character" in await files.read("long.txt", len(text))


async def test_a_folder_with_many_entries_and_strange_names(shared: Path) -> None:
    many = shared / "many"
    many.mkdir()
    for number in range(MAX_ENTRIES + 20):
        (many / f"{number}").touch()
    lines = (await Files(shared).list(path="many")).splitlines()
    assert len(lines) == MAX_ENTRIES + 2
    assert lines[-1] == f"[Only {MAX_ENTRIES} entries are listed.]"
    (shared / "inner" / "deep.md").unlink()
    assert await Files(shared).list(path="inner") == f"{shared / 'inner'} is empty"
    if sys.platform.startswith("linux"):
        Path(os.fsdecode(os.fsencode(shared / "inner") + b"/a\nb\xff\x1b")).touch()  # noqa: ASYNC240
        assert len((await Files(shared).list(path="inner")).splitlines()) == 2
