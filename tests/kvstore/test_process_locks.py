"""Which processes are still there is told by the locks they hold, not by their ids."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvchat.kvstore import disk, process_locks
from tests.kvstore.true_files import Bench

REPOSITORY = Path(__file__).parents[2]
STAGES = """
import sys
from pathlib import Path
from tests.kvstore.true_files import Bench
bench = Bench(Path(sys.argv[1]))
bench.take("thesis", tuple(range(1, 100)))
print("taken", flush=True)
sys.stdin.read()
"""


@contextmanager
def another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has a slot file staged; killed at the end if not before."""
    command, pipe = [sys.executable, "-c", STAGES, str(folder)], subprocess.PIPE
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "taken\n"
            yield process
        finally:
            process.kill()


def staged(bench: Bench) -> list[Path]:
    """What other processes have staged."""
    return [path for path in (bench.folder / "staging").glob("*/*.slot") if path.parent != bench.slots.parent]


@pytest.mark.parametrize("taken_again", [True, False])
def test_a_process_is_gone_when_its_lock_is_whoever_has_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_again: bool
) -> None:
    """In containers that share a folder every run may have the same process id, or one nobody has here."""
    monkeypatch.setattr("psutil.pid_exists", lambda pid: taken_again)
    folder = tmp_path / "store"
    with another(folder) as process:
        bench = Bench(folder)
        assert len(staged(bench)) == 1
        assert bench.store.usage().save_points == 1
        process.kill()
        process.wait()
        bench.reopen()
        assert staged(bench) == []
        assert bench.store.usage().save_points == 0
        bench.store.close()
    assert list((folder / "staging").iterdir()) == []


def test_what_earlier_versions_left_is_swept_by_their_process_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.pid_exists", lambda pid: pid == 71)
    for pid in (70, 71):
        (tmp_path / f"{pid}-0123abcd-0123abcd").mkdir()
        (tmp_path / f"kvchat-{pid}-0123abcd-0123abcd.slot").touch()
    (tmp_path / "of-the-user").touch()
    disk.remove_stale_for_engine(tmp_path)
    assert not (tmp_path / "kvchat-70-0123abcd-0123abcd.slot").exists()
    assert (tmp_path / "70-0123abcd-0123abcd").exists(), "no name that was given for an engine"
    disk.remove_stale(tmp_path, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"71-0123abcd-0123abcd", "kvchat-71-0123abcd-0123abcd.slot", "of-the-user"}


def test_two_parts_of_one_process_hold_one_lock(tmp_path: Path) -> None:
    process_locks.hold(tmp_path)
    process_locks.hold(tmp_path)
    process_locks.let_go(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    process_locks.let_go(tmp_path)
    process_locks.let_go(tmp_path)
    assert list(tmp_path.iterdir()) == []
