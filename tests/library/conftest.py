"""Fake Hugging Face for this folder's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.library import fake_hub
from tests.library.fake_hub import FakeHub


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A fake Hub; the user's own token and caches are hidden."""
    with fake_hub.serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield hub
