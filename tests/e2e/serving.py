"""`kvchat serve` in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.home import Home


@dataclass
class Serving:
    """One that answers."""

    process: subprocess.Popen[str]
    url: str
    errors: Path

    def end(self, number: int = signal.SIGTERM) -> int:
        """Tell it to end; its exit code."""
        self.process.send_signal(number)
        return self.process.wait()


@contextlib.contextmanager
def serving(home: Home, *arguments: str, port: int) -> Iterator[Serving]:
    """Ended at the latest when the block ends, as systemd ends it."""
    home.folder.mkdir(parents=True, exist_ok=True)
    errors = home.folder / "serve.errors"
    with (
        errors.open("ab") as told,
        subprocess.Popen(
            [*home.prefix, sys.executable, "-m", "kvchat", "serve", "--port", str(port), *arguments],
            env=os.environ | {"KVCHAT_HOME": str(home.folder)},
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("ready http://"), errors.read_text("utf-8")
            yield Serving(process, first.split()[1], errors)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
