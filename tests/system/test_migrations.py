"""Bringing a database to the newest format."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.system.migrations import migrate, schema_version


def test_failed_step_is_reported_after_sqlites_own_rollback(tmp_path: Path) -> None:
    """SQLite rolls back by itself on a full disk."""
    step = "ROLLBACK; SELECT nonsense FROM nowhere"
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="nowhere"):
            migrate(connection, tmp_path / "a.db", [step], "too new")
        assert schema_version(connection) == 0
