"""Which process has the engine, as others read it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kvchat.system.ownership import Ownership


def test_a_door_that_opens_while_the_claim_is_being_written_down_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window starts its engine and opens its door at once, and the disk may be busy."""
    window = Ownership(tmp_path, "the kvchat window", lasts=True)
    opening = threading.Thread(target=window.tell_door, args=("http://127.0.0.1:1", "key"))
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        opening.start()
        opening.join(0.2)  # it has been told by then, or waits for this
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    assert window.claim() is None
    opening.join()
    told = Ownership(tmp_path, "kvchat ask", lasts=False).other()
    assert told is not None
    assert told.door == "http://127.0.0.1:1"
    window.release()
