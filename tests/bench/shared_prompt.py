"""Many chats on one system prompt: their disk use and how soon one more answers."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median

from kvchat.chat.record.messages import Role
from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import PEOPLE, REPLY_TOKENS, THINGS, BenchHome, Reply, bench_home, ttft, ttft_ratio
from kvchat.cli.terminal import columns, remark
from kvchat.engine.speaking.wire import ChatMessage
from kvchat.kvstore.savepoint import common_prefix
from kvchat.words.wording import duration, size

OWN_TOKENS = 200  # of each chat: its question and its reply
ROUNDS = 5  # of one new chat after a restart and one while the prompt is hot, in turn


@dataclass(frozen=True)
class SharedPrompt:
    """One run's figures. Times in ms, medians of all rounds; sizes in bytes. `--json` prints these names as keys."""

    chats: int
    system_tokens: int  # what all their prompts begin with
    own_tokens: float  # of each chat beside that, on average
    disk_bytes: int
    # The system prompt's rows once and each chat's own, counted from its tokens. Recurrent states and sliding windows
    # are no part of it: of such models the store keeps more.
    unique_rows_bytes: int
    disk_ratio: float  # the last but one by the last
    whole_files_bytes: int  # of all slot files, had each been kept as it was saved
    hot_ttft_ms: float  # of a new chat while the slot holds the system prompt
    restored_ttft_ms: float  # of a new chat after a restart of everything, sent at once: restore included
    restored_ratio: float  # median of the rounds' own ratios to the hot one
    restore_ms: float  # of that
    ahead_ttft_ms: float  # the same, but looked at before Send as in the window: restored while the user writes
    ahead_ratio: float  # median of the rounds' own ratios to the hot one
    cold_ttft_ms: float  # of a new chat without save points, once
    prompt_tokens: int
    cached_tokens: int  # after the restart, the least of all rounds


async def measure(options: BenchOptions, chats: int) -> SharedPrompt:
    """Many chats, then a new one after a restart, hot and cold. Raises KvchatError."""
    async with bench_home(options) as home:
        return await _measure(home, options.tokens, chats)


async def _measure(home: BenchHome, tokens: int, chats: int) -> SharedPrompt:
    system = await home.notes(tokens)
    for number in range(1, chats + 1):
        remark(f"Chat {number} of {chats} …")
        text = await home.notes(OWN_TOKENS - REPLY_TOKENS, 1000 * number)
        await _new_chat(home, system, f"{number}. {text}", keep=True)
        home.check_saved(number)
    usage, kept = await home.runtime.save_points.usage(), tuple(home.saved)

    hot, restored, ahead = [], [], []
    for number in range(ROUNDS):
        remark(f"New chats, round {number + 1} of {ROUNDS}: after a restart, looked at after a restart, hot …")
        await home.restart()
        restored.append(await _new_chat(home, system, _question(3 * number), keep=False))
        await home.restart()
        ahead.append(await _new_chat(home, system, _question(3 * number + 1), keep=False, look=True))
        hot.append(await _new_chat(home, system, _question(3 * number + 2), keep=False))

    remark("A new chat without save points …")
    await home.runtime.save_points.delete(None)
    await home.restart()
    cold = await _new_chat(home, system, _question(3 * ROUNDS), keep=False)

    shared = await _shared_tokens(home, system)
    own = [saved.tokens - shared for saved in kept]
    row = (await home.runtime.engine.ready()).kv_bytes_per_token
    unique = round((shared + sum(own)) * row)
    return SharedPrompt(
        chats=chats,
        system_tokens=shared,
        own_tokens=mean(own),
        disk_bytes=usage.physical_bytes,
        unique_rows_bytes=unique,
        disk_ratio=usage.physical_bytes / max(1, unique),
        whole_files_bytes=sum(saved.bytes for saved in kept),
        hot_ttft_ms=ttft(hot),
        restored_ttft_ms=ttft(restored),
        restored_ratio=ttft_ratio(restored, hot),
        restore_ms=median(reply.receipt.restore_ms for reply in restored),
        ahead_ttft_ms=ttft(ahead),
        ahead_ratio=ttft_ratio(ahead, hot),
        cold_ttft_ms=cold.receipt.ttft_ms,
        prompt_tokens=restored[0].receipt.prompt_tokens,
        cached_tokens=min(reply.receipt.cached_tokens for reply in (*restored, *ahead)),
    )


async def _new_chat(home: BenchHome, system: str, text: str, *, keep: bool, look: bool = False) -> Reply:
    """The reply in a new chat; with `look` the user looks at it until it is restored, and then sends."""
    chat = await home.runtime.chat.new_conversation(system)
    if look:
        home.runtime.chat.select(chat.id)
        await home.runtime.chat.idle()
    return await home.ask(chat.id, text, keep=keep)


async def _shared_tokens(home: BenchHome, system: str) -> int:
    engine = (await home.runtime.engine.ready()).engine
    one, other = [
        await engine.prompt_tokens([ChatMessage(Role.SYSTEM.value, system), ChatMessage(Role.USER.value, _question(n))])
        for n in range(2)
    ]
    return common_prefix(one, other)


def _question(number: int) -> str:
    """Each begins with another word: no more than the system prompt is shared."""
    return f"{PEOPLE[number % len(PEOPLE)]} and the {THINGS[number % len(THINGS)]}: on which day was that?"


def lines(result: SharedPrompt) -> list[str]:
    first = (
        f"{result.chats:,} chats on one system prompt of {result.system_tokens:,} tokens,"
        f" each with {result.own_tokens:,.0f} of its own:"
    )
    rows = [
        ("On disk", f"{size(result.disk_bytes)}   ({result.disk_ratio:.2f} times the rows, each counted once)"),
        ("Without sharing", size(result.whole_files_bytes)),
        ("A new chat's first token, hot", duration(result.hot_ttft_ms)),
        ("  after a restart", f"{duration(result.restored_ttft_ms)}   ({result.restored_ratio:.2f} times hot)"),
        ("    of which restore", duration(result.restore_ms)),
        ("  restored as it was opened", f"{duration(result.ahead_ttft_ms)}   ({result.ahead_ratio:.2f} times hot)"),
        ("  cold", duration(result.cold_ttft_ms)),
        ("Tokens taken from the save point", f"{result.cached_tokens:,} of {result.prompt_tokens:,}"),
    ]
    return [first, *columns(rows)]
