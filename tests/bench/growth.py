"""Many short turns: what they take on disk, beside whole slot files."""

from __future__ import annotations

from dataclasses import dataclass

from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import PEOPLE, THINGS, bench_home
from kvchat.cli.terminal import columns, remark
from kvchat.words.wording import size

REPLY_TOKENS = 24


@dataclass(frozen=True)
class Growth:
    """Bytes after each turn. Whole files are the slot files that were saved, had each been kept as it was."""

    system_tokens: int  # about
    disk_bytes: tuple[int, ...]  # used by the store: every turn's save point, and the index
    bytes_written: tuple[int, ...]  # by the store so far
    whole_files_bytes: tuple[int, ...]  # of all of them so far: what writing them takes, and keeping every turn
    last_file_bytes: tuple[int, ...]  # what keeping the last turn alone takes


async def measure(options: BenchOptions, turns: int) -> Growth:
    """A system prompt of about so many tokens, then short turns. Raises BenchFailed where one was not saved."""
    async with bench_home(options, reply_tokens=REPLY_TOKENS) as home:
        chat = await home.runtime.chat.new_conversation(await home.notes(options.tokens))
        disk: list[int] = []
        written: list[int] = []
        for turn in range(1, turns + 1):
            remark(f"Turn {turn} of {turns} …")
            who, what = PEOPLE[turn % len(PEOPLE)], THINGS[turn % len(THINGS)]
            await home.ask(chat.id, f"What did {who} do with the {what} on day {turn * 3}?")
            home.check_saved(turn)
            usage = await home.runtime.save_points.usage()
            disk.append(usage.physical_bytes)
            written.append(usage.bytes_written)
        files = [saved.bytes for saved in home.saved]
    whole = tuple(sum(files[: turn + 1]) for turn in range(turns))
    return Growth(options.tokens, tuple(disk), tuple(written), whole, tuple(files))


def lines(growth: Growth) -> list[str]:
    turns, written, whole = len(growth.disk_bytes), growth.bytes_written[-1], growth.whole_files_bytes[-1]
    rows = [
        ("Written", f"{size(written)}; whole files: {size(whole)}, {whole / max(1, written):.1f} times as much"),
        ("On disk, every turn kept", f"{size(growth.disk_bytes[-1])}; whole files: {size(whole)}"),
        ("The last turn as a file", size(growth.last_file_bytes[-1])),
    ]
    first = f"After {turns:,} short turns on a system prompt of about {growth.system_tokens:,} tokens:"
    return [first, *columns(rows)]
