from pathlib import Path

import pytest

from tests.kvstore.store_bench import BIG, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


@pytest.fixture
def big(tmp_path: Path) -> Bench:
    """A store of a model with 8 KB of rows for each token."""
    return Bench(tmp_path / "store", BIG)


@pytest.fixture
def roomy(tmp_path: Path) -> Bench:
    """A store with room in memory."""
    return Bench(tmp_path / "store", memory=10**9)
