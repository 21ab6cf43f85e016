"""What is left of each wait when the next message is prepared while a person looks and types.

Times to the first token, each beside the same in the same round with the chat hot. A part of it can be run alone:
`switch`, a chat of N tokens that is left and opened again; `paste`, long texts in a chat; `documents`, chats on
prepared documents of N tokens; `busy`, how far off what is told beforehand is while something else uses all cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from kvchat.chat.record.messages import Receipt
from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import BenchHome, bench_home
from kvchat.cli.terminal import columns, remark
from kvchat.words.wording import duration, size
from tests.bench.documents import Documents, documents
from tests.bench.sending import Sender, Steps, question

PARTS = ("switch", "paste", "documents", "busy")
ROUNDS = 3
PASTE = 2000  # tokens
BUSY_MESSAGES = (60, 300, 30, 150, 400, 90, 200, 120)  # their tokens
REPLY_TOKENS = 12


@dataclass(frozen=True)
class Switch:
    """A chat that is left for another one, kvchat started again in between. Medians of all rounds."""

    prompt_tokens: int  # of the chat
    hot_ttft_ms: float
    switch_ttft_ms: float  # another chat was in the slot, the save point is on disk; written for two seconds
    switch_ratio: float  # median of the rounds' own ratios to the hot one
    at_once_ttft_ms: float  # the same, sent at once
    at_once_restore_ms: float  # of that
    at_once_ratio: float  # to restore and hot together


@dataclass(frozen=True)
class Paste:
    paste_tokens: int
    paste_unread_ttft_ms: float  # sent at once
    paste_ttft_ms: float  # the same after it was read ahead
    paste_ratio: float
    interrupted_ttft_ms: float  # another message, sent in the middle of reading a paste ahead; median of all rounds
    interrupted_wait_ms: float  # more than the next one, hot; median of the rounds' own
    longest_step_ms: float  # of all that was read ahead


@dataclass(frozen=True)
class Person:
    """One run's figures. Times in ms, sizes in bytes. `--json` prints these names. None: it was not asked for."""

    switch: Switch | None
    paste: Paste | None
    documents: Documents | None
    prediction_error: float | None  # median of what was told before Send, off by this share; None: nothing was told
    busy_prediction_error: float | None  # the same while something else keeps all cores busy


async def measure(options: BenchOptions, parts: Sequence[str] = PARTS) -> Person:
    """Build the chats, then go from one to the other and write. Raises KvchatError."""
    async with bench_home(options, reply_tokens=REPLY_TOKENS) as home:
        sender = Sender(home)
        switched = await _switch(home, sender, options.tokens) if "switch" in parts else None
        pasted = await _paste(home, sender) if "paste" in parts else None
        read = await documents(home, sender, options.tokens) if "documents" in parts else None
        quiet, sender.errors = sender.errors, []
        if "busy" in parts:
            await _busy(home, sender)
        told, busy = [median(errors) if errors else None for errors in (quiet, sender.errors)]
        return Person(switched, pasted, read, told, busy)


async def _switch(home: BenchHome, sender: Sender, tokens: int) -> Switch:
    chat = (await home.runtime.chat.new_conversation(await home.notes(tokens))).id
    other = (await home.runtime.chat.new_conversation()).id
    remark(f"Building a chat of about {tokens:,} tokens …")
    await home.ask(chat, question(0))
    await home.ask(other, question(1))
    hot, switched, at_once = list[Receipt](), list[Receipt](), list[Receipt]()
    for number in range(2, 2 + 4 * ROUNDS, 4):
        remark(f"Round {len(hot) + 1} of {ROUNDS}: hot, after a switch, and after one at once …")
        home.runtime.chat.select(chat)
        await home.runtime.chat.idle()
        hot.append(await sender.write(chat, question(number)))
        await home.restart()
        await home.ask(other, question(number + 1))
        switched.append(await sender.write(chat, question(number + 2)))
        await home.restart()
        await home.ask(other, question(number + 1))
        at_once.append(await sender.ask(chat, question(number + 3)))
    return Switch(
        prompt_tokens=hot[-1].prompt_tokens,
        hot_ttft_ms=median(one.ttft_ms for one in hot),
        switch_ttft_ms=median(one.ttft_ms for one in switched),
        switch_ratio=median(one.ttft_ms / other.ttft_ms for one, other in zip(switched, hot, strict=True)),
        at_once_ttft_ms=median(one.ttft_ms for one in at_once),
        at_once_restore_ms=median(one.restore_ms for one in at_once),
        at_once_ratio=median(
            one.ttft_ms / (one.restore_ms + other.ttft_ms) for one, other in zip(at_once, hot, strict=True)
        ),
    )


async def _paste(home: BenchHome, sender: Sender) -> Paste:
    steps = Steps()
    home.runtime.events.subscribe(steps.hear)
    remark(f"A paste of {PASTE:,} tokens: sent at once, after it was read ahead, and in the middle of that …")
    chat = (await home.runtime.chat.new_conversation()).id
    await home.ask(chat, question(0))
    home.runtime.chat.select(chat)
    await home.runtime.chat.idle()
    unread = await sender.ask(chat, await home.notes(PASTE, 10_000))
    pasted = await home.notes(PASTE, 20_000)
    home.runtime.chat.prepare(chat, pasted)
    await home.runtime.chat.idle()
    read = await sender.ask(chat, pasted)
    interrupted, beside = list[Receipt](), list[Receipt]()
    for number in range(1, 2 * ROUNDS, 2):
        steps.begun.clear()
        home.runtime.chat.prepare(chat, await home.notes(PASTE, 30_000 + 1000 * number))
        await steps.begun.wait()
        interrupted.append(await sender.ask(chat, question(number)))
        beside.append(await sender.ask(chat, question(number + 1)))
    return Paste(
        paste_tokens=unread.prompt_tokens - unread.cached_tokens,
        paste_unread_ttft_ms=unread.ttft_ms,
        paste_ttft_ms=read.ttft_ms,
        paste_ratio=read.ttft_ms / unread.ttft_ms,
        interrupted_ttft_ms=median(one.ttft_ms for one in interrupted),
        interrupted_wait_ms=median(
            max(0.0, one.ttft_ms - other.ttft_ms) for one, other in zip(interrupted, beside, strict=True)
        ),
        longest_step_ms=steps.longest_ms,
    )


async def _busy(home: BenchHome, sender: Sender) -> None:
    """What is told beforehand counts from when something else has begun, with what was learned before that."""
    remark("What is told beforehand, while something else keeps all cores busy …")
    chat = (await home.runtime.chat.new_conversation()).id
    for number, tokens in enumerate(BUSY_MESSAGES[:3]):
        await home.ask(chat, await home.notes(tokens, 50_000 + 1000 * number))
    with _all_cores_busy():
        await asyncio.sleep(1.0)
        for number, tokens in enumerate(BUSY_MESSAGES):
            await sender.ask(chat, await home.notes(tokens, 60_000 + 1000 * number))


@contextlib.contextmanager
def _all_cores_busy() -> Iterator[None]:
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def lines(result: Person) -> list[str]:
    rows: list[tuple[str, str]] = []
    if one := result.switch:
        at_once = f"{duration(one.at_once_ttft_ms)}   ({one.at_once_ratio:.2f} times restore and hot together)"
        rows += [
            (f"First token in a chat of {one.prompt_tokens:,} tokens, hot", duration(one.hot_ttft_ms)),
            ("  after a switch", f"{duration(one.switch_ttft_ms)}   ({one.switch_ratio:.2f} times hot)"),
            ("  the same, sent at once", at_once),
        ]
    if two := result.paste:
        waited = f"{duration(two.interrupted_ttft_ms)}   ({duration(two.interrupted_wait_ms)} more than hot)"
        rows += [
            (f"First token with {two.paste_tokens:,} tokens pasted", duration(two.paste_unread_ttft_ms)),
            ("  processed ahead", f"{duration(two.paste_ttft_ms)}   ({two.paste_ratio:.3f} times that)"),
            ("  another message, sent in the middle of that", waited),
            ("Longest step of reading ahead", duration(two.longest_step_ms)),
        ]
    if three := result.documents:
        first = f"{duration(three.first_ttft_ms)}   ({three.first_ratio:.2f} times hot)"
        disk = f"{size(three.disk_bytes)}   ({three.disk_ratio:.3f} times the rows, each counted once)"
        rows += [
            (f"Documents of {three.tokens:,} tokens, read in", duration(three.read_ms)),
            ("First question on them in a new chat, hot", duration(three.hot_ttft_ms)),
            ("  after a restart", first),
            (f"{three.chats} chats on them, on disk", disk),
        ]
    for words, error in (
        ("Told beforehand, off by", result.prediction_error),
        ("  while all cores are busy", result.busy_prediction_error),
    ):
        if error is not None:
            rows.append((words, f"{error:.0%}"))
    return ["With two seconds of writing before Send:", *columns(rows)]
