"""Kill -9 of the app, the engine or both at random moments, and a check of everything after each."""

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
from tests.soak.moments import MOMENTS, Kill

REPORT_TIMEOUT_S = 180.0  # between two reports, on the slowest machine
EXIT_TIMEOUT_S = 60.0  # of a killed process
MAX_RUN_S = 3.0  # after its first turn, if no operation was chosen
LOST_S, LATE_S = 1.0, 2.0  # a kill may lose this much of a streaming reply, plus delays of the machine


@dataclass(frozen=True)
class Kind:
    name: str
    engine: str
    model: Path


@dataclass
class Journal:
    """Reports of the runs in one home; they must stay true whatever killed a run."""

    asked: dict[str, str] = field(default_factory=dict)  # chat by stored text
    replies: dict[str, tuple[str, int]] = field(default_factory=dict)  # chat and length by message
    streamed: dict[str, tuple[str, int]] = field(default_factory=dict)  # the same while streaming
    deleted: set[str] = field(default_factory=set)  # chats
    swept: set[str] = field(default_factory=set)  # those of them that a later run had time to sweep

    def forget(self, chat: str) -> None:
        self.asked = {text: owner for text, owner in self.asked.items() if owner != chat}
        for lengths in (self.replies, self.streamed):
            for message in [message for message, (owner, _) in lengths.items() if owner == chat]:
                del lengths[message]


@dataclass
class Tally:
    moments: Counter[str] = field(default_factory=Counter)  # operation and victim of each kill
    sources: Counter[str] = field(default_factory=Counter)  # of the first turn after a kill
    reasons: Counter[str] = field(default_factory=Counter)  # of cold ones
    notices: Counter[str] = field(default_factory=Counter)  # and failed turns

    def __str__(self) -> str:
        lines = (f"{name}: {dict(counts.most_common())}" for name, counts in vars(self).items() if counts)
        return "\n  ".join(lines)


class Broken(AssertionError):
    """Something was lost, left or wrong."""


def run(folder: Path, kinds: Sequence[Kind], rounds: int, seed: int, report: Callable[[str], None] = print) -> Tally:
    """Run and kill kvchat in a home of each kind. Raises Broken."""
    tally, journals = Tally(), [Journal() for _ in kinds]
    for number in range(rounds):
        index = number % len(kinds)
        home = Home(folder / kinds[index].name)
        if not home.folder.exists():
            home.write_settings(
                model_path=str(kinds[index].model),
                engine_path=kinds[index].engine,
                engine_arguments=""
                if kinds[index].engine == "embedded"
                else "--threads 1",  # two would wait for each other
                context_size=8192,
                free_floor_bytes=0,
            )
        process = _Process(home, seed * 100_000 + number, journals[index], tally)
        try:
            process.run()
            _check_home(home, journals[index])
        except Broken as broken:
            raise Broken(f"round {number} of seed {seed} ({kinds[index].name}, {process.plan}): {broken}") from broken
        if (number + 1) % 10 == 0 or number + 1 == rounds:
            report(f"{number + 1} kills\n  {tally}")
    return tally


class _Process:
    def __init__(self, home: Home, seed: int, journal: Journal, tally: Tally) -> None:
        self._home, self._seed, self._journal, self._tally = home, seed, journal, tally
        self._dice = random.Random(seed)
        self.plan: Kill | None = None  # None: killed from outside at any time
        if self._dice.random() >= 0.25:
            moment = self._dice.choice([*MOMENTS, "saving", "absorbing", "restoring"])
            victim = self._dice.choice(("app", "app", "engine", "both"))
            by_steps = moment not in ("starting", "saving", "restoring") and self._dice.random() < 0.6
            ms = self._dice.choice((2, 10, 40, 150)) * self._dice.random()  # mostly short, like the operations
            self.plan = Kill(moment, victim, self._dice.randrange(40) if by_steps else None, None if by_steps else ms)
        self._open: list[str] = []  # operations in progress
        self._reports: set[str] = set()
        self._struck_in, self._killed_engine = "", False
        self._streamed: list[dict[str, Any]] = []
        self._deleting: set[str] = set()  # chats
        self._quit = False
        self._died_at = 0.0

    def run(self) -> None:
        """Start it, kill it, and record its reports. Raises Broken."""
        command = [sys.executable, "-m", "tests.soak.life", str(self._home.folder), str(self._seed)]
        errors_file = self._home.folder.with_suffix(".err")
        environment = {"KVCHAT_HOME": str(self._home.folder), "QT_QPA_PLATFORM": "offscreen"}
        with errors_file.open("ab") as errors:
            process = subprocess.Popen(
                [*command, *([self.plan.to_json()] if self.plan else [])],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | environment,
            )
        lines: queue.Queue[dict[str, Any] | None] = queue.Queue()

        def read() -> None:
            for line in process.stdout:
                if line.endswith(b"\n"):
                    lines.put(json.loads(line))
            lines.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            ended = self._wait_for_kill_time(lines)
        finally:
            self._died_at = time.time()
            process.kill()
            process.wait()
            reader.join()
            process.stdout.close()
        while not ended:
            ended = self._receive(lines) is None
        if process.returncode not in (0, -9) or (process.returncode == 0 and not self._quit):
            raise Broken(f"kvchat ended by itself with {process.returncode}: see {errors_file}")
        operation = self._struck_in or next(iter(self._open), "idle" if "begun" in self._reports else "starting")
        self._tally.moments[f"{operation} {self.plan.victim if self._struck_in and self.plan else 'app'}"] += 1
        for line in self._streamed:
            if line["when"] < self._died_at - LOST_S - LATE_S and line["chat"] not in self._deleting:
                self._journal.streamed[line["streamed"]] = (line["chat"], line["length"])
        _, alive = psutil.wait_procs(left_behind(self._home), timeout=EXIT_TIMEOUT_S)
        if alive:
            raise Broken(f"outlived kvchat: {[process.cmdline() for process in alive]}")

    def _wait_for_kill_time(self, lines: queue.Queue[dict[str, Any] | None]) -> bool:
        """Receive reports until it is time to kill the process; True if it ended before."""
        if self.plan is None and self._dice.random() < 0.4:
            time.sleep(self._dice.random() * 4)  # at any time of the startup
            return False
        while True:
            line = self._receive(lines)
            if line is None:
                return True
            if "begun" in line and self.plan is None:
                time.sleep(MAX_RUN_S * self._dice.random())
                return False
            if "spent" in line or "recovered" in line:
                time.sleep(self._dice.random())
                return False

    def _receive(self, lines: queue.Queue[dict[str, Any] | None]) -> dict[str, Any] | None:
        try:
            line = lines.get(timeout=REPORT_TIMEOUT_S)
        except queue.Empty:
            raise Broken("kvchat reported nothing for minutes") from None
        self._reports |= set(line or ())
        match line:
            case {"asked": text, "chat": chat}:
                self._journal.asked[text] = chat
            case {"replied": reply, "chat": chat, "length": length}:
                self._journal.replies[reply] = chat, length
            case {"streamed": _}:
                self._streamed.append(line)
            case {"deleting": chat}:
                self._journal.forget(chat)
                self._deleting.add(chat)
            case {"deleted": chat}:
                self._journal.deleted.add(chat)
            case {"begun": _}:
                self._journal.swept |= self._journal.deleted
            case {"first": _}:
                self._check_first_turn(line)
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
                self._tally.notices[title] += 1
            case {"bug": traceback}:
                raise Broken(traceback)
        return line

    def _check_first_turn(self, line: dict[str, Any]) -> None:
        source, kept, cached = line["source"], line["kept"], line["cached"]
        self._tally.sources[source] += 1
        if source == "cold":
            self._tally.reasons[line["why"] or "no reason"] += 1
            if not line["why"]:
                raise Broken(f"cold without a reason: {line}")
            acceptable = {ReasonCode.NOT_WORTH_IT, *([ReasonCode.DIED_OVER_RESTORE] if self._killed_engine else ())}
            if kept >= MIN_TOKENS and line["why"] not in acceptable:
                raise Broken(f"cold in spite of a save point: {line}")
        elif cached < PROVED_SHARE * kept and not line["why"]:
            raise Broken(f"reported as {source} but reprocessed: {line}")


def _check_home(home: Home, journal: Journal) -> None:
    """Check after a kill: database intact, no reported text lost, store clean, no unknown file or block."""
    database = home.folder / "data" / "conversations.db"
    if not database.exists():  # killed before it was created
        return
    connection = sqlite3.connect(database)
    try:
        for check in ("integrity_check", "foreign_key_check"):
            if (problems := connection.execute(f"PRAGMA {check}").fetchall()) not in ([], [("ok",)]):
                raise Broken(f"the database is damaged: {problems[:3]}")
        contents: dict[str, str] = dict(connection.execute("SELECT id, content FROM messages"))
        chats = {row[0] for row in connection.execute("SELECT id FROM conversations")}
    finally:
        connection.close()
    texts = set(contents.values())
    if lost := [text for text in journal.asked if text not in texts]:
        raise Broken(f"lost questions: {lost}")
    for reply, (_, length) in (journal.replies | journal.streamed).items():
        if len(contents.get(reply, "")) < length:
            left = len(contents[reply]) if reply in contents else "none, nor the reply itself"
            raise Broken(f"of a reply of {length} characters there are {left}")
    if restored := journal.deleted & chats:
        raise Broken(f"deleted chats are back: {restored}")
    _check_store(home, journal)


def _check_store(home: Home, journal: Journal) -> None:
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
        raise Broken(f"{len(files - known)} unknown blocks, {len(known - files)} missing ones")
    if left := journal.swept & {point.conversation_id for point in kept.save_points()}:
        raise Broken(f"save points of deleted chats: {left}")
    for begun in home.folder.rglob(".*.new*"):
        os.utime(begun, (0, 0))  # much later the next file is written there
        with atomic_write(begun.with_name("next")):
            pass
        begun.with_name("next").unlink()
    in_memory = private_folder_in(MEMORY_FOLDER, kept.folder / STAGING)
    folders = [home.folder, *([in_memory] if in_memory else [])]
    unfinished, temporary = (".new", ".part", ".slot"), {STAGING, "temporary"}
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    if strange := [
        str(path)
        for path in paths
        if path.suffix in unfinished or temporary & set(path.parts) or MEMORY_FOLDER in path.parents
    ]:
        raise Broken(f"left behind: {strange}")
