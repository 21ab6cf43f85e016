"""From files, folders and repositories to documents."""

import os
from pathlib import Path

import pytest

from kvchat.chat.attachments import AttachmentError
from kvchat.chat.prepared import documents
from kvchat.chat.prepared.documents import PreparationError, detect_changes, read_documents
from tests.systems import ONLINE_ONLY, make_online_only


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_files_ignored_by_git_are_skipped(tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    (repository / ".git").mkdir(parents=True)
    (repository / ".gitignore").write_text("*.log\n/build/\n")
    write(repository, b_py="b", a_md="a", x_log="no", build__c_py="no", src__build__d_py="d", src__e_log="e")
    (repository / "src" / ".gitignore").write_text("!e.log\n")
    (repository / "picture.bin").write_bytes(b"\0\1\2")
    (repository / "link.md").symlink_to(repository / "a.md")
    names = [document.source.name for document in read_documents([repository])]
    assert names == ["repo/a.md", "repo/b.py", "repo/src/build/d.py", "repo/src/e.log"]
    assert [document.source.name for document in read_documents([repository / "src"])] == [
        "src/build/d.py",
        "src/e.log",
    ]


def test_files_stored_online_only_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, here_md="a", cloud_md="b")
    make_online_only(monkeypatch, tmp_path / "cloud.md", ONLINE_ONLY[0])
    (document,) = read_documents([tmp_path])
    assert document.text == "a"
    assert not detect_changes([tmp_path], [document.source])


def test_known_files_stay_first(tmp_path: Path) -> None:
    write(tmp_path, b_md="b", c_md="c")
    before = [document.source for document in read_documents([tmp_path])]
    write(tmp_path, a_md="a")
    names = [Path(document.source.path).name for document in read_documents([tmp_path], before)]
    assert names == ["b.md", "c.md", "a.md"]


def test_touched_file_is_unchanged(tmp_path: Path) -> None:
    write(tmp_path, a_md="a", b_md="b", c_md="c")
    before = [document.source for document in read_documents([tmp_path])]
    os.utime(tmp_path / "a.md", ns=(1, 1))
    assert not detect_changes([tmp_path], before)
    (tmp_path / "a.md").write_text("A")
    (tmp_path / "b.md").unlink()
    assert detect_changes([tmp_path], before).text == "1 file changed, 1 removed"
    (tmp_path / "c.md").unlink()
    assert detect_changes([tmp_path / "c.md"], before[2:]).text == "1 file removed"


def test_limits_and_files_without_text_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.bin").write_bytes(b"\0\1\2")
    with pytest.raises(PreparationError, match="nothing to prepare"):
        read_documents([tmp_path])
    with pytest.raises(AttachmentError):
        read_documents([tmp_path / "x.bin"])
    write(tmp_path, a_md="a" * 50, b_md="b" * 60)
    monkeypatch.setattr(documents, "MAX_TEXT_CHARACTERS", 100)
    with pytest.raises(PreparationError, match="too much"):
        read_documents([tmp_path])
    monkeypatch.setattr(documents, "MAX_FILES", 2)
    with pytest.raises(PreparationError, match="more than 2 files"):
        read_documents([tmp_path])
