"""A file is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.whole_file import whole_file


def test_what_was_written_takes_the_old_ones_place(tmp_path: Path) -> None:
    target = tmp_path / "晚.json"
    for words in ("old", "new"):
        with whole_file(target) as new:
            new.write_text(words, "utf-8")
            assert target.exists() == (words == "new")
        assert target.read_text("utf-8") == words
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("fault", [OSError, KeyboardInterrupt])
def test_what_is_cut_off_leaves_the_old_one_alone(tmp_path: Path, fault: type[BaseException]) -> None:
    target = tmp_path / "a.json"
    target.write_text("old", "utf-8")
    with pytest.raises(fault), whole_file(target) as new:
        cut_off(new, fault)
    assert target.read_text("utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_cannot_take_its_place_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "a folder"
    target.mkdir()
    with pytest.raises(OSError, match="a folder"), whole_file(target) as new:
        new.write_text("x", "utf-8")
    assert list(tmp_path.iterdir()) == [target]


def cut_off(new: Path, fault: type[BaseException]) -> None:
    new.write_text("ne", "utf-8")
    raise fault
