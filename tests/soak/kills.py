"""Kill -9 at random moments, the app, the engine or both, and a look at everything after each."""

from __future__ import annotations

import json
import os
import queue
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.kept import Kept

WORD_S = 180.0  # a living kvchat says something within so long, on the slowest machine
GONE_S = 60.0  # and a process that was killed is gone within that
LONGEST_LIFE_S = 6.0  # after its first turn; and one in four is killed before that


@dataclass
class Told:
    """What the lives so far have said, which must hold whatever killed them."""

    asked: dict[str, str] = field(default_factory=dict)  # chat by words on disk
    replies: dict[str, tuple[str, int]] = field(default_factory=dict)  # chat and length by message
    sources: Counter[str] = field(default_factory=Counter)  # of the first turn after a kill
    reasons: Counter[str] = field(default_factory=Counter)  # why it was cold

    def forget(self, chat: str) -> None:
        """The user deletes a chat."""
        self.asked = {words: where for words, where in self.asked.items() if where != chat}
        self.replies = {reply: found for reply, found in self.replies.items() if found[0] != chat}


class Broken(AssertionError):
    """Something was lost, left or wrong."""


def run(folder: Path, model: Path, rounds: int, seed: int, tell: Callable[[str], None] = print) -> Told:
    """So many lives on one home. Raises Broken with what was found."""
    dice, told = random.Random(seed), Told()
    home = folder / "home"
    for number in range(rounds):
        _live_and_die(home, model, seed * 100_000 + number, dice, told)
        _look_over(home, told)
        if (number + 1) % 10 == 0 or number + 1 == rounds:
            tell(f"{number + 1} kills: first turns {dict(told.sources)}, cold because {dict(told.reasons)}")
    return told


def _live_and_die(home: Path, model: Path, seed: int, dice: random.Random, told: Told) -> None:
    """One life, and how it ends."""
    command = [sys.executable, "-m", "tests.soak.life", str(home), str(model), str(seed)]
    with (home.parent / "life.err").open("ab") as errors:
        life = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=os.environ | {"KVCHAT_HOME": str(home)}
        )
    lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(life, lines), daemon=True)
    reader.start()
    try:
        if dice.random() < 0.25:
            time.sleep(dice.random() * 3)  # at any moment of the start
        else:
            _hear(lines, told, until="begun")
            how_long = time.monotonic() + LONGEST_LIFE_S * dice.random()
            if dice.random() < 0.4:
                time.sleep(max(0.0, how_long - time.monotonic()) / 2)
                for engine in _engines(life.pid):
                    engine.kill()  # it must go on with another
            time.sleep(max(0.0, how_long - time.monotonic()))
        engines = _engines(life.pid)
        if dice.random() < 0.3:
            for engine in engines:
                engine.kill()
        if life.poll() is not None:
            raise Broken(f"kvchat ended by itself with {life.returncode}: see {home.parent / 'life.err'}")
    finally:
        life.kill()
        life.wait()
        reader.join()
        assert life.stdout is not None
        life.stdout.close()
    _hear(lines, told, until=None)
    _, alive = psutil.wait_procs(engines, timeout=GONE_S)
    if alive:
        raise Broken(f"an engine outlived kvchat: {alive}")


def _engines(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _read(life: subprocess.Popen[bytes], lines: queue.Queue[dict[str, Any] | None]) -> None:
    assert life.stdout is not None
    for line in life.stdout:
        if line.endswith(b"\n"):
            lines.put(json.loads(line))
    lines.put(None)


def _hear(lines: queue.Queue[dict[str, Any] | None], told: Told, until: str | None) -> None:
    """Take in what was said, up to a word, or to the end."""
    first = True
    while True:
        try:
            line = lines.get(timeout=WORD_S)
        except queue.Empty:
            raise Broken("kvchat said nothing for minutes") from None
        if line is None:
            if until is None:
                return
            raise Broken("kvchat ended before it had begun")
        if "asked" in line:
            told.asked[line["asked"]] = line["chat"]
        elif "replied" in line:
            told.replies[line["replied"]] = (line["chat"], line["length"])
            if first and until is not None:
                _judge(line, told)
                first = False
        elif "deleting" in line:
            told.forget(line["deleting"])
        if until is not None and until in line:
            return


def _judge(line: dict[str, Any], told: Told) -> None:
    """The first turn after a kill: warm, or honestly cold."""
    told.sources[line["source"]] += 1
    if line["source"] == "cold":
        if not line["why"]:
            raise Broken(f"cold without a reason: {line}")
        told.reasons[line["why"]] += 1
    elif line["share"] < 0.5:
        raise Broken(f"called {line['source']}, and read again: {line}")


def _look_over(home: Path, told: Told) -> None:
    """After a kill: the database whole, nothing said lost, the store clean, no file or block nobody knows."""
    database = home / "data" / "conversations.db"
    if not database.exists():  # killed before it was made
        return
    connection = sqlite3.connect(database)
    try:
        verdict = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != "ok":
            raise Broken(f"the database is damaged: {verdict}")
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchone():
            return
        there = {row[0]: row[1] for row in connection.execute("SELECT id, content FROM messages")}
    finally:
        connection.close()
    words = set(there.values())
    if lost := [asked for asked in told.asked if asked not in words]:
        raise Broken(f"lost questions: {lost}")
    for reply, (_, length) in told.replies.items():
        if len(there.get(reply, "")) < length:
            raise Broken(f"a reply of {length} characters has {len(there.get(reply, ''))} left")
    _verify(home)


def _verify(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvchat", "store", "verify", "--json"],
        env=os.environ | {"KVCHAT_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Broken(f"store verify: {done.stdout} {done.stderr}")
    kept = Kept(home)
    index = kept.folder / "index.db"
    if not index.exists():
        return
    connection = sqlite3.connect(f"file:{index}?mode=ro", uri=True)
    try:
        known = {row[0].hex() for row in connection.execute("SELECT name FROM blocks")}
    finally:
        connection.close()
    files = {path.name for path in kept.block_files()}
    if files != known:
        raise Broken(f"{len(files - known)} blocks that nobody knows, {len(known - files)} that are missing")
