"""Without other options: how fast an answer comes, and what is written for it.

A conversation of about N tokens goes on for some short turns. Each is answered three times from the very same prompt:
with its prefix in the slot (hot), after the engine was restarted, from memory (warm), and after all of kvchat was
restarted, from disk (restored). The last one is answered once more after the save points were deleted (cold).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from kvchat.cli.bench.home import REPLY_TOKENS, BenchHome, Reply, bench_home, say, ttft, ttft_ratio
from kvchat.cli.options import BenchOptions
from kvchat.cli.terminal import columns
from kvchat.kvstore.savepoint import StoreUsage
from kvchat.session.proof import Source
from kvchat.words.wording import duration, size

QUESTIONS = (  # one for each round
    "Which of these notes was the first? Answer in one sentence.",
    "Which of these notes was the last? Answer in one sentence.",
    "Who of them left the most things? Answer in one sentence.",
)


@dataclass(frozen=True)
class BenchResult:
    """One run's figures. Times in ms, medians of all rounds; sizes in bytes. `--json` prints these names as keys."""

    cold_ttft_ms: float  # measured once
    hot_ttft_ms: float
    warm_ttft_ms: float | None  # restore included; None where nothing can stay warm in memory
    warm_ratio: float | None  # to the hot one, median of the rounds' own ratios
    restored_ttft_ms: float  # from disk, restore included
    restored_ratio: float  # to the hot one, as above
    restore_ms: float
    save_ms: float
    prompt_tokens: int  # of the last restored run
    cached_tokens: int
    disk_bytes: int
    disk_ratio: float  # disk_bytes by the bytes of the conversation's KV rows, each counted once
    last_reply_bytes_written: int
    new_rows_bytes_last_reply: int  # of the KV rows of the last turn's own tokens
    write_ratio: float  # bytes written by new rows, of all the short turns together
    rebuild_ratio: float | None  # speed of putting the slot file together from its blocks, by that of a plain copy
    outputs_agree: bool  # the greedy replies after the restores are the hot ones: restoring changed nothing
    # And so is the cold one; not always: tokens read in a batch round otherwise than written ones.
    cold_output_agrees: bool


@dataclass(frozen=True)
class _Round:
    """One question answered hot, warm and restored, and how the store stood before and after the last, kept, reply."""

    hot: Reply
    warm: Reply
    restored: Reply
    before: StoreUsage
    after: StoreUsage

    @property
    def written(self) -> int:
        """Bytes the kept reply wrote; slot files too, where there is no memory to stage them in."""
        return self.after.bytes_written - self.before.bytes_written

    @property
    def agrees(self) -> bool:
        return self.hot.text == self.warm.text == self.restored.text


async def measure(options: BenchOptions) -> BenchResult:
    """Build the conversation, then answer short questions hot, warm and restored, and the last one cold as well.

    Raises KvchatError.
    """
    async with bench_home(options) as home:
        return await _measure(home, options.tokens)


async def _measure(home: BenchHome, tokens: int) -> BenchResult:
    say(f"Building a chat of about {tokens:,} tokens …")
    chat_id = (await home.runtime.chat.new_conversation()).id
    await home.ask(chat_id, await home.notes(tokens - 2 * len(QUESTIONS) * REPLY_TOKENS))
    rounds = [await _round(home, chat_id, number) for number in range(len(QUESTIONS))]
    home.check_saved(1 + len(QUESTIONS))

    rebuild = await home.runtime.save_points.measure_rebuild()

    say("Cold: after a restart, without save points …")
    await home.runtime.save_points.delete(chat_id)
    await home.restart_engine()
    cold = await home.ask(chat_id, None, keep=False)
    row = (await home.runtime.engine.ready()).kv_bytes_per_token
    return _result(home, rounds, cold, row, rebuild.ratio if rebuild else None)


async def _round(home: BenchHome, chat_id: str, number: int) -> _Round:
    """Ask one question three times. The slot holds the turn boundary before it at first, the one after it at last."""
    say(f"Round {number + 1} of {len(QUESTIONS)}: hot, then after a restart of the engine, then of everything …")
    hot = await home.ask(chat_id, QUESTIONS[number], keep=False)
    await home.restart_engine()
    warm = await home.ask(chat_id, None, keep=False)
    await home.restart()
    before = await home.runtime.save_points.usage()
    restored = await home.ask(chat_id, None)
    return _Round(hot, warm, restored, before, await home.runtime.save_points.usage())


def _result(home: BenchHome, rounds: list[_Round], cold: Reply, row: float, rebuild_ratio: float | None) -> BenchResult:
    last = rounds[-1]
    hot, warm, restored = [[getattr(one, name) for one in rounds] for name in ("hot", "warm", "restored")]
    stays_warm = all(reply.receipt.source is Source.WARM for reply in warm)
    new_rows = [int((after.tokens - before.tokens) * row) for before, after in pairwise(home.saved)]
    return BenchResult(
        cold_ttft_ms=cold.receipt.ttft_ms,
        hot_ttft_ms=ttft(hot),
        warm_ttft_ms=ttft(warm) if stays_warm else None,
        warm_ratio=ttft_ratio(warm, hot) if stays_warm else None,
        restored_ttft_ms=ttft(restored),
        restored_ratio=ttft_ratio(restored, hot),
        restore_ms=median(reply.receipt.restore_ms for reply in restored),
        save_ms=median(saved.ms for saved in home.saved[1:]),
        prompt_tokens=last.restored.receipt.prompt_tokens,
        cached_tokens=last.restored.receipt.cached_tokens,
        disk_bytes=last.after.physical_bytes,
        disk_ratio=last.after.physical_bytes / max(1.0, home.saved[-1].tokens * row),
        last_reply_bytes_written=last.written,
        new_rows_bytes_last_reply=new_rows[-1],
        write_ratio=sum(one.written for one in rounds) / max(1, sum(new_rows)),
        rebuild_ratio=rebuild_ratio,
        outputs_agree=all(one.agrees for one in rounds),
        cold_output_agrees=last.hot.text == cold.text,
    )


def lines(result: BenchResult) -> list[str]:
    """The figures for a reader."""
    times_faster = result.cold_ttft_ms / result.restored_ttft_ms
    restored = (
        f"{duration(result.restored_ttft_ms)}   ({result.restored_ratio:.2f} times hot;"
        f" cold takes {times_faster:.0f} times as long)"
    )
    warm = "nothing stays in memory here"
    if result.warm_ttft_ms is not None:
        warm = f"{duration(result.warm_ttft_ms)}   ({result.warm_ratio:.2f} times hot)"
    written = f"{size(result.last_reply_bytes_written)}   ({result.write_ratio:.2f} times its new rows)"
    restore = duration(result.restore_ms)
    if result.rebuild_ratio is not None:
        restore += f"   (put together at {result.rebuild_ratio:.2f} of the speed of a plain copy)"
    rows = [
        ("Time to first token, cold", duration(result.cold_ttft_ms)),
        ("Time to first token, hot", duration(result.hot_ttft_ms)),
        ("Time to first token, from memory", warm),
        ("Time to first token after a restart", restored),
        ("  of which restore", restore),
        ("Tokens taken from the save point", f"{result.cached_tokens:,} of {result.prompt_tokens:,}"),
        ("Saving after the reply", duration(result.save_ms)),
        ("Written for the last reply", written),
        ("Disk used by the chat", f"{size(result.disk_bytes)}   ({result.disk_ratio:.2f} times its rows)"),
        ("Same greedy reply restored as hot", "yes" if result.outputs_agree else "NO"),
        ("Same greedy reply cold as hot", "yes" if result.cold_output_agrees else "no (the engine rounds otherwise)"),
    ]
    return columns(rows)
