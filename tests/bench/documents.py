"""Documents that are prepared once: chats on them, their disk use and first tokens after a restart."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kvchat.chat.prepared.documents import Prepared
from kvchat.chat.record.messages import Receipt
from kvchat.cli.bench import BenchHome
from kvchat.cli.terminal import remark
from tests.bench.sending import Sender, question

CHATS, OWN_TOKENS, ROUNDS = 20, 100, 3


@dataclass(frozen=True)
class Documents:
    tokens: int
    read_ms: float  # all of it, once
    chats: int
    disk_bytes: int
    unique_rows_bytes: int  # the documents' rows once and each chat's own, counted from its tokens
    disk_ratio: float  # the last but one by the last
    hot_ttft_ms: float  # of the first question of a new chat, written for two seconds, while the slot holds them
    first_ttft_ms: float  # the same after a restart
    first_ratio: float  # median of the rounds' own ratios


async def documents(home: BenchHome, sender: Sender, tokens: int) -> Documents:
    """Prepare documents of so many tokens, then begin chats on them. Raises KvchatError."""
    remark(f"Reading documents of about {tokens:,} tokens …")
    before = await home.runtime.save_points.usage()
    with tempfile.TemporaryDirectory(prefix="kvchat-bench-") as folder:
        file = Path(folder) / "notes.md"
        file.write_text(await home.notes(tokens), "utf-8")
        library, began_at = home.runtime.chat.library, time.perf_counter()
        prepared = await library.read(await library.add([file], "Notes"))
        read_ms = 1000 * (time.perf_counter() - began_at)
        await home.runtime.chat.idle()
        own = 0
        for number in range(CHATS):
            remark(f"Chat {number + 1} of {CHATS} …")
            chat = await library.begin(prepared)
            await home.ask(chat.id, f"{number}. {await home.notes(OWN_TOKENS, 1000 * number)}")
            own += home.saved[-1].tokens - prepared.tokens
        after = await home.runtime.save_points.usage()
        hot, first = list[Receipt](), list[Receipt]()
        for number in range(ROUNDS):
            remark(f"A new chat on them, round {number + 1} of {ROUNDS}: after a restart, hot …")
            await home.restart()
            first.append(await _first(home, sender, prepared, 2 * number))
            hot.append(await _first(home, sender, prepared, 2 * number + 1))
    row = (await home.runtime.engine.ready()).kv_bytes_per_token
    disk, unique = after.physical_bytes - before.physical_bytes, round((prepared.tokens + own) * row)
    return Documents(
        tokens=prepared.tokens,
        read_ms=read_ms,
        chats=CHATS,
        disk_bytes=disk,
        unique_rows_bytes=unique,
        disk_ratio=disk / unique,
        hot_ttft_ms=median(one.ttft_ms for one in hot),
        first_ttft_ms=median(one.ttft_ms for one in first),
        first_ratio=median(one.ttft_ms / other.ttft_ms for one, other in zip(first, hot, strict=True)),
    )


async def _first(home: BenchHome, sender: Sender, prepared: Prepared, number: int) -> Receipt:
    return await sender.write((await home.runtime.chat.library.begin(prepared)).id, question(number))
