"""`kvchat bench --turns N --plot FILE.svg`: what many short turns cost on disk, against saving whole files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kvchat.cli.bench.home import PEOPLE, THINGS, BenchFailed, BenchHome, bench_home, say
from kvchat.cli.bench.plot import Line, Panel, draw
from kvchat.cli.grammar.options import BenchOptions
from kvchat.engine.speaking.wire import Sampling
from kvchat.system.whole_file import whole_file
from kvchat.words.wording import size

DEFAULT_TURNS = 40
SHORT = Sampling(max_tokens=24, temperature=0.0, seed=1)
STORE_COLOUR, WHOLE_COLOUR, LAST_COLOUR = "#1f9683", "#d07a1f", "#8a7fd0"


@dataclass(frozen=True)
class Growth:
    """Bytes after each turn. Whole files are the slot files that were saved, had each been kept as it was."""

    system_tokens: int  # about
    disk_bytes: tuple[int, ...]  # used by the store: every turn's save point, and the index
    bytes_written: tuple[int, ...]  # by the store so far
    whole_files_bytes: tuple[int, ...]  # of all of them so far: what writing them takes, and keeping every turn
    last_file_bytes: tuple[int, ...]  # what keeping the last turn alone takes


async def run(options: BenchOptions) -> int:
    """Measure, print and draw. Returns the exit code. Raises KvchatError."""
    turns = options.turns or DEFAULT_TURNS
    async with bench_home(options) as home:
        growth = await _measure(home, options.tokens, turns)
    if options.plot:
        _write(options.plot, plot(growth))
    print(json.dumps(vars(growth)) if options.as_json else summary(growth))
    return 0


async def _measure(home: BenchHome, system_tokens: int, turns: int) -> Growth:
    """A system prompt of about so many tokens, then short turns. Raises BenchFailed where one was not saved."""
    chat = await home.runtime.chat.new_conversation(await home.notes(system_tokens))
    disk: list[int] = []
    written: list[int] = []
    for turn in range(1, turns + 1):
        say(f"Turn {turn} of {turns} …")
        await home.ask(chat.id, _question(turn), SHORT)
        if len(home.saved) != turn:
            raise BenchFailed("A turn could not be saved", "", "See `kvchat doctor` for the free disk space.")
        usage = await home.runtime.save_points.usage()
        disk.append(usage.physical_bytes)
        written.append(usage.bytes_written)
    files = [saved.bytes for saved in home.saved]
    whole = tuple(sum(files[: turn + 1]) for turn in range(turns))
    return Growth(system_tokens, tuple(disk), tuple(written), whole, tuple(files))


def _question(turn: int) -> str:
    return f"What did {PEOPLE[turn % len(PEOPLE)]} do with the {THINGS[turn % len(THINGS)]} on day {turn * 3}?"


def summary(growth: Growth) -> str:
    """The end of it for a reader."""
    turns, written, whole = len(growth.disk_bytes), growth.bytes_written[-1], growth.whole_files_bytes[-1]
    first = f"After {turns:,} short turns on a system prompt of about {growth.system_tokens:,} tokens:"
    rows = [
        ("Written", f"{size(written)}; whole files: {size(whole)}, {whole / max(1, written):.1f} times as much"),
        ("On disk, every turn kept", f"{size(growth.disk_bytes[-1])}; whole files: {size(whole)}"),
        ("The last turn as a file", size(growth.last_file_bytes[-1])),
    ]
    return "\n".join([first, *(f"  {name:<26}{value}" for name, value in rows)])


def plot(growth: Growth) -> str:
    """The picture, SVG."""
    whole = Line("whole files, one a turn", growth.whole_files_bytes, WHOLE_COLOUR)
    last = Line("one whole file, the last turn only", growth.last_file_bytes, LAST_COLOUR, dashed=True)
    disk = Line("kvchat, every turn kept", growth.disk_bytes, STORE_COLOUR)
    written = Line("kvchat, every turn kept", growth.bytes_written, STORE_COLOUR)
    title = f"Disk used and bytes written over {len(growth.disk_bytes)} turns"
    return draw(title, (Panel("Disk used", (whole, disk, last)), Panel("Written so far", (whole, written))), "turns")


def _write(path: Path, text: str) -> None:
    try:
        with whole_file(path) as new:
            new.write_text(text, "utf-8")
    except OSError as error:
        raise BenchFailed("The plot could not be written", f"{path}: {error.strerror}.") from error
