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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kvchat.kvstore.disk import STAGING
from kvchat.kvstore.memory_files import MEMORY_FOLDER, private_folder_in
from kvchat.session.proof import MIN_TOKENS, PROVED_SHARE
from kvchat.system.files import atomic_write
from kvchat.text.reasons import ReasonCode
from tests.e2e.home import Home
from tests.e2e.window import left_behind
from tests.soak.moments import MOMENTS, Fate

WORD_S = 180.0  # a living kvchat says something within so long, on the slowest machine
GONE_S = 60.0  # and a process that was killed is gone within that
LONGEST_LIFE_S = 3.0  # after its first turn, where no moment was chosen
LOST_S = 1.0  # of a reply that is streaming a kill may cost so much, and what the machine was late
LATE_S = 2.0


@dataclass(frozen=True)
class Kind:
    name: str
    engine: str
    model: Path


@dataclass
class Told:
    """What the lives so far in one home have said, which must hold whatever killed them."""

    asked: dict[str, str] = field(default_factory=dict)  # chat by words on disk
    replies: dict[str, tuple[str, int]] = field(default_factory=dict)  # chat and length by message
    streamed: dict[str, tuple[str, int]] = field(default_factory=dict)  # and of what was streaming
    deleted: set[str] = field(default_factory=set)  # chats
    swept: set[str] = field(default_factory=set)  # of these, those that a later life had time to forget

    def forget(self, chat: str) -> None:
        self.asked = {words: where for words, where in self.asked.items() if where != chat}
        for told in (self.replies, self.streamed):
            for message in [message for message, (where, _) in told.items() if where == chat]:
                del told[message]


@dataclass
class Tally:
    moments: Counter[str] = field(default_factory=Counter)  # what went on when a kill came, and who was killed
    sources: Counter[str] = field(default_factory=Counter)  # of the first turn after a kill
    reasons: Counter[str] = field(default_factory=Counter)  # why it was cold
    said: Counter[str] = field(default_factory=Counter)  # notices and failed turns

    def __str__(self) -> str:
        lines = (f"{name}: {dict(found.most_common())}" for name, found in vars(self).items() if found)
        return "\n  ".join(lines)


class Broken(AssertionError):
    """Something was lost, left or wrong."""


def run(folder: Path, kinds: Sequence[Kind], rounds: int, seed: int, tell: Callable[[str], None] = print) -> Tally:
    """So many lives, in a home for each kind. Raises Broken with what was found."""
    tally, told = Tally(), [Told() for _ in kinds]
    for number in range(rounds):
        at = number % len(kinds)
        home = Home(folder / kinds[at].name)
        if not home.folder.exists():
            home.write_settings(
                model_path=str(kinds[at].model),
                engine_path=kinds[at].engine,
                engine_arguments="" if kinds[at].engine == "embedded" else "--threads 1",  # two wait for each other
                context_size=8192,
                free_floor_bytes=0,
            )
        life = _Life(home, seed * 100_000 + number, told[at], tally)
        try:
            life.live()
            _look_over(home, told[at])
        except Broken as broken:
            raise Broken(f"round {number} of seed {seed} ({kinds[at].name}, {life.fate}): {broken}") from broken
        if (number + 1) % 10 == 0 or number + 1 == rounds:
            tell(f"{number + 1} kills\n  {tally}")
    return tally


class _Life:
    def __init__(self, home: Home, seed: int, told: Told, tally: Tally) -> None:
        self._home, self._seed, self._told, self._tally = home, seed, told, tally
        self._dice = random.Random(seed)
        self.fate: Fate | None = None  # killed from outside, at any moment
        if self._dice.random() >= 0.25:
            moment = self._dice.choice([*MOMENTS, "saving", "absorbing", "restoring"])
            victim = self._dice.choice(("app", "app", "engine", "both"))
            by_steps = moment not in ("starting", "saving", "restoring") and self._dice.random() < 0.6
            ms = self._dice.choice((2, 10, 40, 150)) * self._dice.random()  # mostly few: the moments are short
            self.fate = Fate(moment, victim, self._dice.randrange(40) if by_steps else None, None if by_steps else ms)
        self._open: list[str] = []  # moments that have begun and not ended
        self._said: set[str] = set()
        self._struck_in, self._killed_engine = "", False
        self._streamed: list[dict[str, Any]] = []
        self._going: set[str] = set()  # chats that are deleted, be it while they are answered
        self._quit = False
        self._died_at = 0.0

    def live(self) -> None:
        """Start it, kill it, and take in what it said. Raises Broken."""
        command = [sys.executable, "-m", "tests.soak.life", str(self._home.folder), str(self._seed)]
        errors_file = self._home.folder.with_suffix(".err")
        environment = {"KVCHAT_HOME": str(self._home.folder), "QT_QPA_PLATFORM": "offscreen"}
        with errors_file.open("ab") as errors:
            life = subprocess.Popen(
                [*command, *([self.fate.in_words()] if self.fate else [])],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | environment,
            )
        lines: queue.Queue[dict[str, Any] | None] = queue.Queue()

        def read() -> None:
            for line in life.stdout:
                if line.endswith(b"\n"):
                    lines.put(json.loads(line))
            lines.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            ended = self._until_its_time(life, lines)
        finally:
            self._died_at = time.time()
            life.kill()
            life.wait()
            reader.join()
            life.stdout.close()
        while not ended:
            ended = self._hear(lines) is None
        if life.returncode not in (0, -9) or (life.returncode == 0 and not self._quit):
            raise Broken(f"kvchat ended by itself with {life.returncode}: see {errors_file}")
        going_on = self._struck_in or next(iter(self._open), "idle" if "begun" in self._said else "starting")
        self._tally.moments[f"{going_on} {self.fate.victim if self._struck_in and self.fate else 'app'}"] += 1
        for line in self._streamed:
            if line["when"] < self._died_at - LOST_S - LATE_S and line["chat"] not in self._going:
                self._told.streamed[line["streamed"]] = (line["chat"], line["length"])
        _, alive = psutil.wait_procs(left_behind(self._home), timeout=GONE_S)
        if alive:
            raise Broken(f"outlived kvchat: {[process.cmdline() for process in alive]}")

    def _until_its_time(self, life: subprocess.Popen[bytes], lines: queue.Queue[dict[str, Any] | None]) -> bool:
        """Hear it until it is to be killed from outside; whether it has ended before."""
        if self.fate is None and self._dice.random() < 0.4:
            time.sleep(self._dice.random() * 4)  # at any moment of the start
            return False
        while True:
            line = self._hear(lines)
            if line is None:
                return True
            if "begun" in line and self.fate is None:
                time.sleep(LONGEST_LIFE_S * self._dice.random())
                return False
            if "spent" in line or "recovered" in line:
                time.sleep(self._dice.random())
                return False

    def _hear(self, lines: queue.Queue[dict[str, Any] | None]) -> dict[str, Any] | None:
        try:
            line = lines.get(timeout=WORD_S)
        except queue.Empty:
            raise Broken("kvchat said nothing for minutes") from None
        self._said |= set(line or ())
        match line:
            case {"asked": words, "chat": chat}:
                self._told.asked[words] = chat
            case {"replied": reply, "chat": chat, "length": length}:
                self._told.replies[reply] = chat, length
            case {"streamed": _}:
                self._streamed.append(line)
            case {"deleting": chat}:
                self._told.forget(chat)
                self._going.add(chat)
            case {"deleted": chat}:
                self._told.deleted.add(chat)
            case {"begun": _}:
                self._told.swept |= self._told.deleted
            case {"first": _}:
                self._judge(line)
            case {"at": moment}:
                self._open.append(moment)
                self._quit = self._quit or moment == "quitting"
            case {"past": moment}:
                self._open.remove(moment)
            case {"killed": _, "moment": moment}:
                self._killed_engine, self._struck_in = True, moment
            case {"dying": when, "moment": moment}:
                self._died_at, self._struck_in = when, moment
            case {"notice": title} | {"failed": title}:
                self._tally.said[title] += 1
            case {"bug": words}:
                raise Broken(words)
        return line

    def _judge(self, line: dict[str, Any]) -> None:
        source, kept, cached = line["source"], line["kept"], line["cached"]
        self._tally.sources[source] += 1
        if source == "cold":
            self._tally.reasons[line["why"] or "no reason"] += 1
            if not line["why"]:
                raise Broken(f"cold without a reason: {line}")
            honest = {ReasonCode.NOT_WORTH_IT, *([ReasonCode.DIED_OVER_RESTORE] if self._killed_engine else ())}
            if kept >= MIN_TOKENS and line["why"] not in honest:
                raise Broken(f"cold, though there was something: {line}")
        elif cached < PROVED_SHARE * kept and not line["why"]:
            raise Broken(f"called {source}, and read again: {line}")


def _look_over(home: Home, told: Told) -> None:
    """After a kill: the database whole, nothing said lost, the store clean, no file or block nobody knows."""
    database = home.folder / "data" / "conversations.db"
    if not database.exists():  # killed before it was made
        return
    connection = sqlite3.connect(database)
    try:
        for check in ("integrity_check", "foreign_key_check"):
            if (found := connection.execute(f"PRAGMA {check}").fetchall()) not in ([], [("ok",)]):
                raise Broken(f"the database is damaged: {found[:3]}")
        there: dict[str, str] = dict(connection.execute("SELECT id, content FROM messages"))
        chats = {row[0] for row in connection.execute("SELECT id FROM conversations")}
    finally:
        connection.close()
    words = set(there.values())
    if lost := [asked for asked in told.asked if asked not in words]:
        raise Broken(f"lost questions: {lost}")
    for reply, (_, length) in (told.replies | told.streamed).items():
        if len(there.get(reply, "")) < length:
            left = len(there[reply]) if reply in there else "none, nor the reply itself"
            raise Broken(f"of a reply of {length} characters there are {left}")
    if back := told.deleted & chats:
        raise Broken(f"deleted chats are back: {back}")
    _look_over_store(home, told)


def _look_over_store(home: Home, told: Told) -> None:
    done = home.run("store", "verify", "--json")
    if done.returncode:
        raise Broken(f"store verify: {done.stdout} {done.stderr}")
    kept = home.kept
    if not kept.folder.exists():
        return
    with sqlite3.connect(f"file:{kept.folder / 'index.db'}?mode=ro", uri=True) as index:
        known = {row[0].hex() for row in index.execute("SELECT name FROM blocks")}
    index.close()
    files = {path.name for path in kept.block_files()}
    if files != known:
        raise Broken(f"{len(files - known)} blocks that nobody knows, {len(known - files)} that are missing")
    if left := told.swept & {point.conversation_id for point in kept.save_points()}:
        raise Broken(f"save points of chats that were deleted: {left}")
    for begun in home.folder.rglob(".*.new*"):
        os.utime(begun, (0, 0))  # long after, the next file is written there
        with atomic_write(begun.with_name("next")):
            pass
        begun.with_name("next").unlink()
    in_memory = private_folder_in(MEMORY_FOLDER, kept.folder / STAGING)
    folders = [home.folder, *([in_memory] if in_memory else [])]
    begun, passing = (".new", ".part", ".slot"), {STAGING, "temporary"}  # being written, or staged for somebody
    left = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    if strange := [
        str(path) for path in left if path.suffix in begun or passing & set(path.parts) or MEMORY_FOLDER in path.parents
    ]:
        raise Broken(f"left behind: {strange}")
