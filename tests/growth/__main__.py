"""`python -m tests.growth [--turns N] [--tokens N] [--plot FILE.svg]`: many short turns, against saving whole files."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import PEOPLE, THINGS, BenchHome, bench_home
from kvchat.cli.terminal import remark
from kvchat.words.wording import size
from tests.growth.plot import Line, Panel, draw

REPLY_TOKENS = 24
STORE_COLOUR, WHOLE_COLOUR, LAST_COLOUR = "#1f9683", "#d07a1f", "#8a7fd0"


@dataclass(frozen=True)
class Growth:
    """Bytes after each turn. Whole files are the slot files that were saved, had each been kept as it was."""

    system_tokens: int  # about
    disk_bytes: tuple[int, ...]  # used by the store: every turn's save point, and the index
    bytes_written: tuple[int, ...]  # by the store so far
    whole_files_bytes: tuple[int, ...]  # of all of them so far: what writing them takes, and keeping every turn
    last_file_bytes: tuple[int, ...]  # what keeping the last turn alone takes


def main() -> None:
    """Measure, print and draw. Raises KvchatError."""
    parser = argparse.ArgumentParser(prog="python -m tests.growth", description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=1000, help="about how long the system prompt is")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--engine", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    growth = asyncio.run(_grow(BenchOptions(model=asked.model, engine=asked.engine), asked.tokens, asked.turns))
    if asked.plot:
        asked.plot.write_text(plot(growth), "utf-8")
    print(json.dumps(vars(growth)) if asked.json else summary(growth))


async def _grow(options: BenchOptions, tokens: int, turns: int) -> Growth:
    async with bench_home(options, reply_tokens=REPLY_TOKENS) as home:
        return await _measure(home, tokens, turns)


async def _measure(home: BenchHome, system_tokens: int, turns: int) -> Growth:
    """A system prompt of about so many tokens, then short turns. Raises BenchFailed where one was not saved."""
    chat = await home.runtime.chat.new_conversation(await home.notes(system_tokens))
    disk: list[int] = []
    written: list[int] = []
    for turn in range(1, turns + 1):
        remark(f"Turn {turn} of {turns} …")
        await home.ask(chat.id, _question(turn))
        home.check_saved(turn)
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


if __name__ == "__main__":
    main()
