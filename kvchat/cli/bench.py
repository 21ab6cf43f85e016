"""`kvchat bench`: what save points bring on the user's own model and machine, all ratios from one run.

One conversation of about N tokens is answered three times from the very same prompt: with its prefix in the slot (hot),
after the engine was restarted (restored), and after the engine was restarted and the save points deleted (cold).
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kvchat.chat.events import Event, Saved, TurnFailed
from kvchat.chat.messages import Message, Receipt
from kvchat.cli.options import BenchOptions
from kvchat.cli.session import chosen_settings, run_until_interrupted
from kvchat.engine.wire import ChatMessage, Sampling
from kvchat.errors import KvchatError
from kvchat.paths import Paths, resolve_paths
from kvchat.runtime import Runtime, open_runtime
from kvchat.wording import duration, size

REPLY_TOKENS = 32
GREEDY = Sampling(max_tokens=REPLY_TOKENS, temperature=0.0, seed=1)
QUESTION = "Which of these notes was the first? Answer in one sentence."


@dataclass(frozen=True)
class BenchResult:
    """One run's figures. Times in ms, sizes in bytes. The first line of `--json` output holds these names as keys."""

    cold_ttft_ms: float
    hot_ttft_ms: float
    restored_ttft_ms: float  # restore included
    restore_ms: float
    save_ms: float
    prompt_tokens: int
    cached_tokens: int  # of the restored run
    disk_bytes: int
    last_reply_bytes_written: int
    outputs_agree: bool  # the greedy reply after the restore is the hot one: restoring changed nothing
    cold_output_agrees: (
        bool  # and so is the cold one; not always: tokens read in a batch round otherwise than written ones
    )


class BenchFailed(KvchatError):
    """The benchmark could not be finished."""


def run(options: BenchOptions) -> int:
    """Measure and print; progress goes to standard error. Returns the exit code. Raises KvchatError."""
    return run_until_interrupted(_bench(options))


async def _bench(options: BenchOptions) -> int:
    paths = resolve_paths()
    settings = await chosen_settings(paths, options.model, options.engine)
    paths.ensure()
    # On the disk the real save points are on, in a folder of its own: the user's conversations are not touched.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=paths.cache) as folder:
        home = Path(folder)
        runtime = await open_runtime(Paths(*(home / name for name in ("config", "data", "cache", "state"))), settings)
        try:
            result = await _Bench(runtime).measure(options.tokens)
        finally:
            await runtime.close()
    print(json.dumps(dataclasses.asdict(result)) if options.as_json else table(result))
    return 0


class _Bench:
    """The steps of one run."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._saved: Saved | None = None
        self._error: KvchatError | None = None
        runtime.events.subscribe(self._hear)

    async def measure(self, tokens: int) -> BenchResult:
        """Build the conversation, then answer its last question hot, restored and cold."""
        chat = self._runtime.chat
        _say(f"Building a conversation of about {tokens:,} tokens …")
        chat_id = (await chat.new_conversation()).id
        self._checked(await chat.send(chat_id, await self._notes(tokens), GREEDY))
        await chat.idle()

        _say("Hot: the conversation is in the slot …")
        hot = self._checked(await chat.send(chat_id, QUESTION, GREEDY, keep=False))
        await chat.idle()

        _say("Restored: after a restart of the engine …")
        await self._restart()
        self._saved = None
        restored = self._checked(await chat.retry(chat_id, GREEDY))
        await chat.idle()
        saved = self._saved
        usage = await self._runtime.store_usage()

        _say("Cold: after a restart, without save points …")
        await self._runtime.delete_save_points(chat_id)
        await self._restart()
        cold = self._checked(await chat.retry(chat_id, GREEDY, keep=False))
        await chat.idle()
        return _result(hot, restored, cold, saved, usage.total_bytes)

    async def _notes(self, tokens: int) -> str:
        """A text that makes a prompt of about `tokens` tokens in this model's vocabulary."""
        engine = (await self._runtime.room.ready()).engine
        sample = 40
        per_note = len(await engine.prompt_tokens([ChatMessage("user", _numbered_notes(sample))])) / sample
        return _numbered_notes(max(1, round((tokens - 2 * REPLY_TOKENS) / per_note)))

    async def _restart(self) -> None:
        await self._runtime.stop_engine()
        await self._runtime.room.ready()

    def _hear(self, event: Event) -> None:
        match event:
            case Saved():
                self._saved = event
            case TurnFailed(error=error):
                self._error = error

    def _checked(self, message: Message | None) -> tuple[str, Receipt]:
        """The reply's text and receipt. Raises what went wrong."""
        if message is None or message.receipt is None:
            raise self._error or BenchFailed("The model gave no reply", "", "Try it with another model.")
        return message.content, message.receipt


def _numbered_notes(count: int) -> str:
    """Deterministic prose that no two lines of which are alike."""
    things = (
        "river",
        "lamp",
        "garden",
        "letter",
        "bridge",
        "violin",
        "harbour",
        "engine",
        "orchard",
        "mirror",
        "clock",
    )
    people = ("Ada", "Bram", "Chen", "Dana", "Elif", "Femi", "Goro", "Hana", "Ivan", "Juno", "Kofi", "Lena", "Mina")
    lines = [
        f"Note {i}: on day {i * 7 % 365}, {people[i % 13]} left the {things[i % 10]} by the {things[(i * 3 + 1) % 10]}"
        f" and wrote down the number {i * 7919 % 10007}."
        for i in range(1, count + 1)
    ]
    return "Read these notes.\n" + "\n".join(lines)


def _result(
    hot: tuple[str, Receipt], restored: tuple[str, Receipt], cold: tuple[str, Receipt], saved: Saved | None, disk: int
) -> BenchResult:
    return BenchResult(
        cold_ttft_ms=cold[1].ttft_ms,
        hot_ttft_ms=hot[1].ttft_ms,
        restored_ttft_ms=restored[1].ttft_ms,
        restore_ms=restored[1].restore_ms,
        save_ms=saved.ms if saved else 0.0,
        prompt_tokens=restored[1].prompt_tokens,
        cached_tokens=restored[1].cached_tokens,
        disk_bytes=disk,
        last_reply_bytes_written=saved.bytes if saved else 0,
        outputs_agree=hot[0] == restored[0],
        cold_output_agrees=hot[0] == cold[0],
    )


def table(result: BenchResult) -> str:
    """The figures for a reader."""
    times_faster = result.cold_ttft_ms / result.restored_ttft_ms
    restored = f"{duration(result.restored_ttft_ms)}   (cold takes {times_faster:.0f} times as long)"
    rows = [
        ("Time to first token, cold", duration(result.cold_ttft_ms)),
        ("Time to first token, hot", duration(result.hot_ttft_ms)),
        (
            "Time to first token after a restart",
            restored,
        ),
        ("  of which restore", duration(result.restore_ms)),
        ("Tokens taken from the save point", f"{result.cached_tokens:,} of {result.prompt_tokens:,}"),
        ("Saving after the reply", duration(result.save_ms)),
        ("Written for the last reply", size(result.last_reply_bytes_written)),
        ("Disk used by the conversation", size(result.disk_bytes)),
        ("Same greedy reply restored as hot", "yes" if result.outputs_agree else "NO"),
        ("Same greedy reply cold as hot", "yes" if result.cold_output_agrees else "no (the engine rounds otherwise)"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
