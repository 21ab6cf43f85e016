"""Waiting times if the next message is prepared while a person reads and types.

Times to the first token, each compared with a hot chat in the same round. Parts: `switch`, a chat of N tokens left and
opened again; `models`, two chats of N tokens in turns, each with its own model; `paste`, long texts; `documents`, chats
on prepared documents of N tokens; `busy`, the error of the forecasts while other programs use all cores.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from kvchat.chat.events import Event, ReadAheadProgress
from kvchat.chat.record.messages import Receipt
from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import PEOPLE, THINGS, BenchFailed, BenchSetup, bench_home
from kvchat.cli.terminal import print_err

PARTS = ("switch", "models", "paste", "documents", "busy")
ROUNDS = 3
CHATS, OWN_TOKENS = 20, 100  # on the prepared documents
PASTE = 2000  # tokens
BUSY_MESSAGES = (60, 300, 30, 150, 400, 90, 200, 120)  # their tokens
REPLY_TOKENS = 12
TYPING_S = 2.0  # before Send


class Sender:
    """Sends messages and compares each forecast with the actual time."""

    def __init__(self, home: BenchSetup) -> None:
        self._home = home
        self.errors: list[float] = []  # relative errors of the forecasts

    async def ask(self, chat: str, text: str) -> Receipt:
        forecast = await self._home.runtime.chat.forecasts.forecast_message(chat, text)
        self._home.runtime.chat.prepare(chat, "")
        receipt = (await self._home.ask(chat, text)).receipt
        if forecast is not None and forecast.wait is not None:
            least, most = 1000 * forecast.wait.minimum, 1000 * forecast.wait.maximum
            self.errors.append(max(least - receipt.ttft_ms, receipt.ttft_ms - most, 0.0) / receipt.ttft_ms)
        return receipt

    async def write(self, chat: str, text: str) -> Receipt:
        """Open the chat, type the text for two seconds, and send it."""
        self._home.runtime.chat.select(chat)
        words = text.split()
        for count in range(1, len(words) + 1):
            self._home.runtime.chat.prepare(chat, " ".join(words[:count]))
            await asyncio.sleep(TYPING_S / len(words))
        return await self.ask(chat, text)


def question(number: int) -> str:
    who, what = PEOPLE[number % len(PEOPLE)], THINGS[number % len(THINGS)]
    return f"In note {number} and after it: on which day did {who} leave the {what} behind, and what was written there?"


def median_ttft(receipts: Sequence[Receipt]) -> float:
    return median(receipt.ttft_ms for receipt in receipts)


def median_of_rounds(
    compare: Callable[[Receipt, Receipt], float], receipts: list[Receipt], others: list[Receipt]
) -> float:
    """Return the median of `compare` over the rounds."""
    return median(map(compare, receipts, others))


async def measure(options: BenchOptions, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Measure these parts; None for the others. Raises KvchatError."""
    async with bench_home(options, reply_tokens=REPLY_TOKENS) as home:
        sender, figures = Sender(home), dict[str, Any]()
        figures["switch"] = await _switch(home, sender, options.tokens) if "switch" in parts else None
        figures["models"] = await _models(home, options.tokens) if "models" in parts else None
        figures["paste"] = await _paste(home, sender) if "paste" in parts else None
        figures["documents"] = await _documents(home, sender, options.tokens) if "documents" in parts else None
        figures["prediction_error"] = median(sender.errors) if sender.errors else None
        sender.errors = []
        if "busy" in parts:
            await _busy(home, sender)
        figures["busy_prediction_error"] = median(sender.errors) if sender.errors else None
        return figures


async def _switch(home: BenchSetup, sender: Sender, tokens: int) -> dict[str, Any]:
    """Leave a chat for another one with a restart in between, and return to it."""
    chat = (await home.runtime.chat.new_conversation(await home.make_notes(tokens))).id
    other = (await home.runtime.chat.new_conversation()).id
    print_err(f"Creating a chat of about {tokens:,} tokens…")
    await home.ask(chat, question(0))
    await home.ask(other, question(1))
    hot, switched, at_once = list[Receipt](), list[Receipt](), list[Receipt]()
    for number in range(2, 2 + 4 * ROUNDS, 4):
        print_err(f"Round {len(hot) + 1} of {ROUNDS}: hot, after a switch, and after one at once …")
        home.runtime.chat.select(chat)
        await home.runtime.chat.wait_until_idle()
        hot.append(await sender.write(chat, question(number)))
        await home.restart()
        await home.ask(other, question(number + 1))
        switched.append(await sender.write(chat, question(number + 2)))
        await home.restart()
        await home.ask(other, question(number + 1))
        at_once.append(await sender.ask(chat, question(number + 3)))
    return {
        "prompt_tokens": hot[-1].prompt_tokens,
        "hot_ttft_ms": median_ttft(hot),
        "switch_ttft_ms": median_ttft(switched),
        "switch_ratio": median_of_rounds(lambda receipt, other: receipt.ttft_ms / other.ttft_ms, switched, hot),
        "at_once_ttft_ms": median_ttft(at_once),
        "at_once_restore_ms": median(receipt.restore_ms for receipt in at_once),
        "at_once_ratio": median_of_rounds(  # to restore and hot together
            lambda receipt, other: receipt.ttft_ms / (receipt.restore_ms + other.ttft_ms), at_once, hot
        ),
    }


async def _models(home: BenchSetup, tokens: int) -> dict[str, Any]:
    """Switch between two models: a file, and a copy with one more byte."""
    print_err(f"Two chats of about {tokens:,} tokens, each with its own model …")
    model = Path(home.settings.model_path or "")
    other = home.paths.data / "other.gguf"
    shutil.copyfile(model, other)
    with other.open("ab") as file:
        file.write(b"\0")
    chats = list[str]()
    for first, path in ((1, model), (5000, other)):
        chats.append((await home.runtime.chat.new_conversation(await home.make_notes(tokens, first))).id)
        await home.runtime.chat.use_model(chats[-1], str(path))
        await home.ask(chats[-1], question(0))
    hot, switched, started_ms = list[Receipt](), list[Receipt](), list[float]()
    for number in range(1, 4 * ROUNDS, 2):
        for receipts, asked in ((switched, number), (hot, number + 1)):
            receipts.append((await home.ask(chats[len(hot) % 2], question(asked))).receipt)
        log = "\n".join(home.runtime.engine.log.since_start)
        if not (ready_at := re.search(r"^(\d+)\.(\d+)\.(\d+)\.(\d+) .*listening on", log, re.MULTILINE)):
            raise BenchFailed("The engine's log does not tell when it was ready", "", "Use a newer llama-server.")
        minutes, seconds, ms, _us = map(int, ready_at.groups())
        started_ms.append(1000 * (60 * minutes + seconds) + ms)
    waits = [receipt.queue_wait_ms + receipt.engine_wait_ms + receipt.ttft_ms for receipt in switched]
    return {
        "prompt_tokens": hot[-1].prompt_tokens,
        "engine_start_ms": median(started_ms),  # by its own log
        "hot_ttft_ms": median_ttft(hot),
        "switch_ms": median(waits),  # from Send to the first token
        "switch_ratio": median(
            wait / (start + receipt.ttft_ms) for wait, start, receipt in zip(waits, started_ms, hot, strict=True)
        ),
    }


async def _paste(home: BenchSetup, sender: Sender) -> dict[str, Any]:
    times: list[float] = []
    longest_ms, begun = 0.0, asyncio.Event()  # a step of processing a draft is done

    def on_event(event: Event) -> None:
        nonlocal times, longest_ms
        if isinstance(event, ReadAheadProgress):
            now = time.perf_counter()
            times = [*times, now] if event.done_tokens else [now]
            longest_ms = max([longest_ms, *(1000 * (b - a) for a, b in pairwise(times))])
            if event.draft and 0 < event.done_tokens < event.total:
                begun.set()

    home.runtime.events.subscribe(on_event)
    print_err(f"A paste of {PASTE:,} tokens: sent at once, after it was read ahead, and in the middle of that …")
    chat = (await home.runtime.chat.new_conversation()).id
    await home.ask(chat, question(0))
    home.runtime.chat.select(chat)
    await home.runtime.chat.wait_until_idle()
    unread = await sender.ask(chat, await home.make_notes(PASTE, 10_000))
    pasted = await home.make_notes(PASTE, 20_000)
    home.runtime.chat.prepare(chat, pasted)
    await home.runtime.chat.wait_until_idle()
    read = await sender.ask(chat, pasted)
    interrupted, beside = list[Receipt](), list[Receipt]()
    for number in range(1, 2 * ROUNDS, 2):
        begun.clear()
        home.runtime.chat.prepare(chat, await home.make_notes(PASTE, 30_000 + 1000 * number))
        await begun.wait()
        interrupted.append(await sender.ask(chat, question(number)))
        beside.append(await sender.ask(chat, question(number + 1)))
    return {
        "paste_tokens": unread.prompt_tokens - unread.cached_tokens,
        "paste_unread_ttft_ms": unread.ttft_ms,
        "paste_ttft_ms": read.ttft_ms,
        "paste_ratio": read.ttft_ms / unread.ttft_ms,
        "interrupted_ttft_ms": median_ttft(interrupted),  # of another message, sent while a paste is processed
        "interrupted_wait_ms": median_of_rounds(  # more than the next one, hot
            lambda receipt, other: max(0.0, receipt.ttft_ms - other.ttft_ms), interrupted, beside
        ),
        "longest_step_ms": longest_ms,
    }


async def _documents(home: BenchSetup, sender: Sender, tokens: int) -> dict[str, Any]:
    """Prepare documents of this size, then start chats on them."""
    print_err(f"Reading documents of about {tokens:,} tokens …")
    before = await home.runtime.save_points.usage()
    with tempfile.TemporaryDirectory(prefix="kvchat-bench-") as folder:
        file = Path(folder) / "notes.md"
        file.write_text(await home.make_notes(tokens), "utf-8")
        library, began_at = home.runtime.chat.library, time.perf_counter()
        prepared = await library.process(await library.add([file], "Notes"))
        read_ms = 1000 * (time.perf_counter() - began_at)
        await home.runtime.chat.wait_until_idle()
        own = 0
        for number in range(CHATS):
            print_err(f"Chat {number + 1} of {CHATS} …")
            chat = await home.runtime.chat.create(await library.new_chat(prepared))
            await home.ask(chat.id, f"{number}. {await home.make_notes(OWN_TOKENS, 1000 * number)}")
            own += home.saves[-1].tokens - prepared.tokens
        after = await home.runtime.save_points.usage()
        hot, first = list[Receipt](), list[Receipt]()
        for number in range(ROUNDS):
            print_err(f"A new chat on them, round {number + 1} of {ROUNDS}: after a restart, hot …")
            await home.restart()
            for receipts, asked in ((first, 2 * number), (hot, 2 * number + 1)):
                chat = await home.runtime.chat.create(await home.runtime.chat.library.new_chat(prepared))
                receipts.append(await sender.write(chat.id, question(asked)))
    row = (await home.runtime.engine.ready()).kv_bytes_per_token
    disk, unique = after.physical_bytes - before.physical_bytes, round((prepared.tokens + own) * row)
    return {
        "tokens": prepared.tokens,
        "read_ms": read_ms,
        "chats": CHATS,
        "disk_bytes": disk,
        "unique_rows_bytes": unique,  # the documents' rows once and each chat's own
        "disk_ratio": disk / unique,
        "hot_ttft_ms": median_ttft(hot),
        "first_ttft_ms": median_ttft(first),
        "first_ratio": median_of_rounds(lambda receipt, other: receipt.ttft_ms / other.ttft_ms, first, hot),
    }


async def _busy(home: BenchSetup, sender: Sender) -> None:
    """Send messages beside programs that use all cores; the forecasts know earlier speeds."""
    print_err("Forecasts while other programs keep all cores busy …")
    chat = (await home.runtime.chat.new_conversation()).id
    for number, tokens in enumerate(BUSY_MESSAGES[:3]):
        await home.ask(chat, await home.make_notes(tokens, 50_000 + 1000 * number))
    busy = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(busy) for _ in range(os.cpu_count() or 1)]  # noqa: ASYNC220
    try:
        await asyncio.sleep(1.0)
        for number, tokens in enumerate(BUSY_MESSAGES):
            await sender.ask(chat, await home.make_notes(tokens, 60_000 + 1000 * number))
    finally:
        for program in programs:
            program.kill()
            program.wait()
