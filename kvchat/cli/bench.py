"""`kvchat bench`: what save points bring on the user's own model and machine, all ratios from one run.

One conversation of about N tokens is answered four times from the very same prompt: with its prefix in the slot (hot),
after the engine was restarted, from memory (warm), after all of kvchat was restarted, from disk (restored), and after
the save points were deleted (cold). With `--turns` or `--plot` it is another measurement: see `growth`.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from kvchat.chat.messages import Source
from kvchat.cli import growth
from kvchat.cli.bench_home import BenchFailed, BenchHome, Reply, bench_home, say
from kvchat.cli.options import BenchOptions
from kvchat.cli.session import run_until_interrupted
from kvchat.engine.wire import Sampling
from kvchat.kvstore.savepoint import StoreUsage
from kvchat.wording import duration, size

REPLY_TOKENS = 32
GREEDY = Sampling(max_tokens=REPLY_TOKENS, temperature=0.0, seed=1)
QUESTION = "Which of these notes was the first? Answer in one sentence."


@dataclass(frozen=True)
class BenchResult:
    """One run's figures. Times in ms, sizes in bytes. `--json` prints these names as keys."""

    cold_ttft_ms: float
    hot_ttft_ms: float
    warm_ttft_ms: float | None  # restore included; None where nothing can stay warm in memory
    restored_ttft_ms: float  # from disk, restore included
    restore_ms: float
    save_ms: float
    prompt_tokens: int
    cached_tokens: int  # of the restored run
    disk_bytes: int
    disk_ratio: float  # disk_bytes by the bytes of the KV rows kept, each counted once
    last_reply_bytes_written: int
    new_rows_bytes_last_reply: int  # of the KV rows of the last turn's own tokens
    write_ratio: float  # the last but one by the last
    outputs_agree: bool  # the greedy replies after the restores are the hot one: restoring changed nothing
    # And so is the cold one; not always: tokens read in a batch round otherwise than written ones.
    cold_output_agrees: bool


@dataclass(frozen=True)
class _Replies:
    """The same question answered four times."""

    hot: Reply
    warm: Reply
    restored: Reply
    cold: Reply


@dataclass(frozen=True)
class _LastTurn:
    """What keeping the last turn took."""

    save_ms: float
    bytes_written: int
    new_rows_bytes: int


def run(options: BenchOptions) -> int:
    """Measure and print; progress goes to standard error. Returns the exit code. Raises KvchatError."""
    if options.turns or options.plot:
        return run_until_interrupted(growth.run(options))
    return run_until_interrupted(_bench(options))


async def _bench(options: BenchOptions) -> int:
    async with bench_home(options) as home:
        result = await _measure(home, options.tokens)
    print(json.dumps(dataclasses.asdict(result)) if options.as_json else table(result))
    return 0


async def _measure(home: BenchHome, tokens: int) -> BenchResult:
    """Build the conversation, then answer its last question hot, warm, restored and cold."""
    say(f"Building a conversation of about {tokens:,} tokens …")
    chat_id = (await home.runtime.chat.new_conversation()).id
    await home.ask(chat_id, await home.notes(tokens - 2 * REPLY_TOKENS), GREEDY)

    say("Hot: the conversation is in the slot …")
    hot = await home.ask(chat_id, QUESTION, GREEDY, keep=False)

    say("Warm: after a restart of the engine …")
    await home.restart_engine()
    warm = await home.ask(chat_id, None, GREEDY, keep=False)

    say("Restored: after a restart of everything …")
    await home.restart()
    before = await home.runtime.store_usage()
    restored = await home.ask(chat_id, None, GREEDY)
    usage = await home.runtime.store_usage()
    last = await _last_turn(home, before, usage)

    say("Cold: after a restart, without save points …")
    await home.runtime.delete_save_points(chat_id)
    await home.restart_engine()
    cold = await home.ask(chat_id, None, GREEDY, keep=False)
    return _result(_Replies(hot, warm, restored, cold), last, usage)


async def _last_turn(home: BenchHome, before: StoreUsage, after: StoreUsage) -> _LastTurn:
    """What lies between the two. Raises BenchFailed if a turn was not saved."""
    if len(home.saved) != 2:
        raise BenchFailed("The conversation could not be saved", "", "See `kvchat doctor` for the free disk space.")
    first, second = home.saved
    row = (await home.runtime.room.ready()).kv_bytes_per_token
    written = after.bytes_written - before.bytes_written  # slot files too, where there is no memory to stage them in
    return _LastTurn(second.ms, written, int((second.tokens - first.tokens) * row))


def _result(replies: _Replies, last: _LastTurn, usage: StoreUsage) -> BenchResult:
    hot, warm, restored = replies.hot, replies.warm, replies.restored
    return BenchResult(
        cold_ttft_ms=replies.cold.receipt.ttft_ms,
        hot_ttft_ms=hot.receipt.ttft_ms,
        warm_ttft_ms=warm.receipt.ttft_ms if warm.receipt.source is Source.WARM else None,
        restored_ttft_ms=restored.receipt.ttft_ms,
        restore_ms=restored.receipt.restore_ms,
        save_ms=last.save_ms,
        prompt_tokens=restored.receipt.prompt_tokens,
        cached_tokens=restored.receipt.cached_tokens,
        disk_bytes=usage.physical_bytes,
        disk_ratio=usage.physical_bytes / max(1, usage.unique_rows_bytes),
        last_reply_bytes_written=last.bytes_written,
        new_rows_bytes_last_reply=last.new_rows_bytes,
        write_ratio=last.bytes_written / max(1, last.new_rows_bytes),
        outputs_agree=hot.text == warm.text == restored.text,
        cold_output_agrees=hot.text == replies.cold.text,
    )


def table(result: BenchResult) -> str:
    """The figures for a reader."""
    times_faster = result.cold_ttft_ms / result.restored_ttft_ms
    restored = f"{duration(result.restored_ttft_ms)}   (cold takes {times_faster:.0f} times as long)"
    warm = "nothing stays in memory here" if result.warm_ttft_ms is None else duration(result.warm_ttft_ms)
    written = f"{size(result.last_reply_bytes_written)}   ({result.write_ratio:.2f} times its new rows)"
    rows = [
        ("Time to first token, cold", duration(result.cold_ttft_ms)),
        ("Time to first token, hot", duration(result.hot_ttft_ms)),
        ("Time to first token, from memory", warm),
        ("Time to first token after a restart", restored),
        ("  of which restore", duration(result.restore_ms)),
        ("Tokens taken from the save point", f"{result.cached_tokens:,} of {result.prompt_tokens:,}"),
        ("Saving after the reply", duration(result.save_ms)),
        ("Written for the last reply", written),
        ("Disk used by the conversation", f"{size(result.disk_bytes)}   ({result.disk_ratio:.2f} times its rows)"),
        ("Same greedy reply restored as hot", "yes" if result.outputs_agree else "NO"),
        ("Same greedy reply cold as hot", "yes" if result.cold_output_agrees else "no (the engine rounds otherwise)"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
