"""Every kind of model memory comes back warm after a restart, as measured; pytest -s shows the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.events import Notice
from kvchat.chat.record.messages import Message
from kvchat.engine.speaking.wire import Sampling
from kvchat.kvstore.memory_files import MEMORY_FOLDER
from kvchat.runtime import Runtime
from kvchat.session.proof import Source
from kvchat.words.reasons import Reason, ReasonCode
from tests.e2e.home import Home, engine_arguments, notes
from tests.e2e.restarts import GREEDY, SYSTEM, App, receipt
from tests.models import tiny_model

pytestmark = pytest.mark.e2e

FEW_WORDS = Sampling(max_tokens=12, temperature=0.0, seed=1)
SLIDING = ("gemma3", "gpt-oss", "cohere2", "olmo2", "gemma2", "exaone4")
OTHERS = ("qwen35", "qwen3next", "lfm2", "mamba", "deepseek2")  # hybrids, recurrent, latent attention
TELLING = ("gemma3", "cohere2", "gemma2", "exaone4")
BY_LLAMA_SERVER = (*SLIDING, "qwen35", "mamba")  # an older engine than the embedded one, and another file format
WINDOWS = {"gpt-oss": 128, "gemma3": 1024, "lfm2": 0}  # as in published models; the others: see tiny_model


@pytest.mark.parametrize(
    ("architecture", "engine"),
    [(one, "embedded") for one in (*SLIDING, *OTHERS)] + [(one, "llama-server") for one in BY_LLAMA_SERVER],
)
def test_whatever_comes_next_is_warm_after_a_restart(tmp_path: Path, architecture: str, engine: str) -> None:
    figures = measured(tmp_path, architecture, WINDOWS.get(architecture), engine)
    assert [step["name"] for step in figures["steps"]] == ["next turn", "regenerate", "edit", "branch"]
    for step in figures["steps"]:
        assert step["source"] == "disk", step
        assert share(step) >= 0.98, step
    assert figures["outputs_agree"], "the greedy replies after restores are the hot one"


@pytest.mark.parametrize("architecture", TELLING)
async def test_equal_replies_say_something(tmp_path: Path, architecture: str) -> None:
    """The reply of such a model depends on what it read long before: equal ones after a restore are no accident."""
    app = App(tmp_path / "home", tiny_model(architecture, WINDOWS.get(architecture), heeds=True), "embedded")
    chats = [await app.new(SYSTEM), await app.new("Answer from these notes alone.\n" + notes(60, start=500))]
    replies = [
        await app.once(lambda runtime, c=chat: runtime.chat.send(c, "Which is the longest?", FEW_WORDS, keep=False))
        for chat in chats
    ]
    assert replies[0].content != replies[1].content


@pytest.mark.parametrize(("architecture", "tokens"), [("smallthinker", 4400), ("llama4", 8600)])
def test_a_chat_longer_than_a_long_window_comes_back_from_an_older_engine(
    tmp_path: Path, architecture: str, tokens: int
) -> None:
    """llama.cpp gives these windows of 4,096 and of chunks of 8,192 tokens, whatever their files say."""
    figures = measured(tmp_path, architecture, None, "llama-server", tokens)
    assert figures["steps"][0]["source"] == "disk"
    assert share(figures["steps"][0]) >= 0.98, figures["steps"][0]


async def test_of_a_chat_that_the_engine_cannot_restore_nothing_is_saved(tmp_path: Path) -> None:
    """llama-server b11434 restores no chat shorter than the model's sliding window."""
    app = App(tmp_path / "home", tiny_model("gemma3", 1024), "llama-server")
    chat = await app.new("Answer from these notes alone.\n" + notes(8))
    notices: list[str] = []
    save_points: list[int] = []

    async def ask(runtime: Runtime) -> Message:
        runtime.events.subscribe(lambda event: notices.append(event.title) if isinstance(event, Notice) else None)
        reply = await runtime.chat.send(chat, "Which is the longest?", GREEDY)
        await runtime.chat.idle()
        save_points.append((await runtime.save_points.usage()).save_points)
        return reply

    replies = [receipt(await app.once(ask)) for _ in range(2)]
    assert [reply.source for reply in replies] == [Source.COLD, Source.COLD]
    assert replies[1].miss_reason == Reason(ReasonCode.TOO_SHORT)
    assert save_points == [0, 0]
    assert notices == ["Short chats cannot be remembered here"]


def test_windows_beside_recurrent_state_come_back_as_far_as_they_are_hot(tmp_path: Path) -> None:
    """The engine goes back to a checkpoint of its own, about 512 tokens before the end, even from its own slot."""
    figures = measured(tmp_path, "lfm2", 32, "embedded")
    assert share(figures["hot"]) < 0.98, "the engine has learnt to do better: then so must the restore"
    for step in figures["steps"]:
        assert share(step) >= share(figures["hot"]) - 0.02, step
    assert figures["outputs_agree"]


async def test_a_sliding_window_is_restored_from_memory_when_the_engine_was_restarted(tmp_path: Path) -> None:
    if not MEMORY_FOLDER.is_dir():
        pytest.skip("no file system in memory here")
    app = App(tmp_path / "home", tiny_model("gemma3"), "embedded")
    chat = await app.new(SYSTEM)

    async def twice(runtime: Runtime) -> Message:
        await runtime.chat.send(chat, "Which is the longest bridge?", GREEDY)
        await runtime.chat.idle()
        await runtime.restart_engine()
        return await runtime.chat.send(chat, "And the shortest?", GREEDY)

    second = receipt(await app.once(twice))
    assert second.source is Source.WARM
    assert second.cached_tokens >= 0.98 * second.prompt_tokens, second


def measured(folder: Path, architecture: str, window: int | None, engine: str, tokens: int = 1500) -> dict[str, Any]:
    """What `python -m tests.bench after-restart` says of a tiny model; a row of the table is printed."""
    model = tiny_model(architecture, window, heeds=True)
    arguments = ("--json", "--tokens", str(tokens), "--model", str(model), *engine_arguments(engine))
    done = Home(folder).bench("after-restart", *arguments)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    shares = "".join(f"{share(step):9.1%}" for step in (*figures["steps"], figures["hot"]))
    print(f"\n{architecture:<11}{window or '':>5} {engine:<13}{shares}  next, regenerate, edit, branch; next hot")
    return figures


def share(step: dict[str, Any]) -> float:
    return float(step["cached_tokens"] / step["prompt_tokens"])
