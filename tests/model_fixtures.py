"""Fixtures: models for tests, made or fetched once per machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import models


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real starter model. Not to be written to."""
    return models.starter_model()


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Path]:
    """Makes a tiny model of an architecture: tiny_model("qwen35")."""
    return models.tiny_model
