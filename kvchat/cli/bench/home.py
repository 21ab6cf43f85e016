"""Where `bench` measures: a kvchat in a temporary folder of its own, with the user's model, engine and settings."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kvchat.chat.events import Event, QuestionNotStored, TurnFailed
from kvchat.chat.record.messages import Message, Receipt
from kvchat.cli.command_runtime import NoModelForCommand, show_starter, with_options
from kvchat.cli.options import BenchOptions
from kvchat.engine.speaking.wire import ChatMessage, Sampling
from kvchat.errors import KvchatError
from kvchat.library.remote.starter import fetch_starter
from kvchat.runtime import Runtime, open_runtime
from kvchat.session.events import Saved
from kvchat.settings import Settings, load_settings
from kvchat.system.paths import Paths, resolve_paths

PEOPLE = ("Ada", "Bram", "Chen", "Dana", "Elif", "Femi", "Goro", "Hana", "Ivan", "Juno", "Kofi", "Lena", "Mina")
THINGS = ("river", "lamp", "garden", "letter", "bridge", "violin", "harbour", "engine", "orchard", "mirror")
SAMPLE = 40  # notes whose tokens are counted
REPLY_TOKENS = 32


class BenchFailed(KvchatError):
    """The benchmark could not be finished."""


@dataclass(frozen=True)
class Reply:
    """What the model said, and what it cost."""

    text: str
    receipt: Receipt


class BenchHome:
    """A running kvchat that can be restarted, whose replies are greedy. Made by `bench_home`."""

    def __init__(self, paths: Paths, settings: Settings, runtime: Runtime, reply_tokens: int) -> None:
        self._paths, self._settings = paths, settings
        self._greedy = Sampling(reply_tokens, temperature=0.0, seed=1)
        self._error: KvchatError | None = None
        self.runtime = self._heard(runtime)
        self.saved: list[Saved] = []  # by every turn so far

    async def ask(self, chat_id: str, text: str | None, *, keep: bool = True) -> Reply:
        """Send a message, or the last one again; wait until what came of it is saved and absorbed.

        Raises what went wrong.
        """
        chat = self.runtime.chat
        if text is None:
            return await self._reply(chat.retry(chat_id, self._greedy, keep=keep))
        return await self._reply(chat.send(chat_id, text, self._greedy, keep=keep))

    async def edit(self, question: Message, text: str) -> Reply:
        """Ask something else in a question's place, and wait as `ask` does."""
        return await self._reply(self.runtime.chat.edit(question, text, self._greedy))

    def check_saved(self, times: int) -> None:
        """Raises BenchFailed unless so many turns were saved."""
        if len(self.saved) != times:
            raise BenchFailed("A chat could not be saved", "", "See `kvchat doctor` for the free disk space.")

    async def _reply(self, answering: asyncio.Future[Message | None]) -> Reply:
        message = await answering
        await self.runtime.chat.idle()
        if message is None or message.receipt is None:
            raise self._error or BenchFailed("The model gave no reply", "", "Try it with another model.")
        return Reply(message.content, message.receipt)

    async def notes(self, tokens: int, first: int = 1) -> str:
        """A text of about `tokens` tokens in this model's vocabulary, its notes numbered from `first`."""
        engine = (await self.runtime.engine.ready()).engine
        per_note = len(await engine.prompt_tokens([ChatMessage("user", _numbered_notes(SAMPLE, first))])) / SAMPLE
        return _numbered_notes(max(1, round(tokens / per_note)), first)

    async def restart_engine(self) -> None:
        """Another engine process; what is warm stays warm."""
        await self.runtime.stop_engine()
        await self.runtime.engine.ready()

    async def restart(self, slots: int | None = None) -> None:
        """All of it anew, as after quitting: only what is on disk is left. `slots`: so many from now on."""
        await self.runtime.close()
        if slots is not None:
            self._settings = dataclasses.replace(self._settings, slots=slots)
        self.runtime = self._heard(await open_runtime(self._paths, self._settings))
        await self.runtime.engine.ready()

    def _heard(self, runtime: Runtime) -> Runtime:
        runtime.events.subscribe(self._hear)
        return runtime

    def _hear(self, event: Event) -> None:
        match event:
            case Saved():
                self.saved.append(event)
            case TurnFailed(error=error) | QuestionNotStored(error=error):
                self._error = error


@asynccontextmanager
async def bench_home(
    options: BenchOptions, context_size: int | None = None, reply_tokens: int = REPLY_TOKENS
) -> AsyncIterator[BenchHome]:
    """A kvchat on the disk the real save points are on; nothing of it is left afterwards. Raises KvchatError.

    `context_size`: in tokens; None: as the settings say.
    """
    paths = resolve_paths()
    settings = with_options(load_settings(paths.settings_file), options.model, options.engine)
    if not (settings.model_path or settings.engine_url):
        if not options.starter:
            raise NoModelForCommand
        settings = with_options(settings, await fetch_starter(paths.ensure().models, show_starter), None)
    size = context_size or settings.context_size  # one slot: what is measured is how a chat comes back into it
    settings = dataclasses.replace(settings, context_size=size, read_ahead="always", slots=1)
    paths.ensure()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=paths.cache) as folder:
        own = Paths(*(Path(folder) / name for name in ("config", "data", "cache", "state")))
        home = BenchHome(own, settings, await open_runtime(own, settings), reply_tokens)
        try:
            yield home
        finally:
            await home.runtime.close()


def ttft(replies: Sequence[Reply]) -> float:
    """Their median time to the first token, in ms."""
    return median(reply.receipt.ttft_ms for reply in replies)


def ttft_ratio(replies: Sequence[Reply], hot: Sequence[Reply]) -> float:
    """The median of the rounds' own ratios."""
    pairs = zip(replies, hot, strict=True)
    return median(one.receipt.ttft_ms / other.receipt.ttft_ms for one, other in pairs)


def say(text: str) -> None:
    """Tell how far it is, on standard error."""
    print(text, file=sys.stderr, flush=True)


def _numbered_notes(count: int, first: int) -> str:
    """Deterministic prose that no two lines of which are alike."""
    lines = [
        f"Note {i}: on day {i * 7 % 365}, {PEOPLE[i % 13]} left the {THINGS[i % 10]} by the {THINGS[(i * 3 + 1) % 10]}"
        f" and wrote down the number {i * 7919 % 10007}."
        for i in range(first, first + count)
    ]
    return "Read these notes.\n" + "\n".join(lines)
