"""How long quitting will take, as long as nothing is measured and as soon as something is."""

from __future__ import annotations

import os
from pathlib import Path

from kvchat.session.slots import Finishing


def test_it_is_said_of_the_first_save_too_and_goes_by_what_is_written(tmp_path: Path) -> None:
    finishing, file = Finishing(), tmp_path / "1.slot"
    with finishing.saving(20_000_000_000, file):
        begun = finishing.left()
        assert begun.words.startswith("20 GB, about ")
        file.touch()
        os.truncate(file, 15_000_000_000)
        going = finishing.left()
        assert going.seconds < begun.seconds
    saved = finishing.left()
    assert saved.bytes == 20_000_000_000
    with finishing.absorbing():
        assert finishing.left() is not None
    assert finishing.left() is None
    first, second = finishing.saving(1000, tmp_path / "1.slot"), finishing.saving(1000, tmp_path / "2.slot")
    first.__enter__()
    second.__enter__()
    assert finishing.left().bytes == 2000
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    with finishing.absorbing():
        assert finishing.left() is not None
    assert finishing.left() is None, "of two at a time the first to end is not told of afterwards"


def test_what_is_read_before_it_is_saved_counts_and_is_no_standstill() -> None:
    finishing = Finishing()
    with finishing.reading(20_000_000_000) as tell:
        left = finishing.left()
        assert left.words.startswith("20 GB, about ")
        before = finishing.progress()
        assert finishing.progress() == before, "an engine that hangs is not waited for"
        tell("half of it")
        assert finishing.progress() != before
    assert finishing.left() is None
