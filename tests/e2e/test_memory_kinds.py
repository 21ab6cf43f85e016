"""Every kind of model memory is warm after a restart: chats, shared beginnings, prepared documents, other builds.

`pytest -s` shows the measured table.
"""

from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.attachments import document_from_text
from kvchat.chat.events import Notice
from kvchat.chat.prepared.documents import PreparedSet
from kvchat.chat.record.messages import Message
from kvchat.runtime import Runtime
from kvchat.session.proof import Source
from kvchat.text.reasons import Reason, ReasonCode
from tests.bench.shared_prompt import TEMPLATE
from tests.bench.tools import Towns
from tests.e2e.home import Home, engine_arguments, notes
from tests.e2e.restarts import GREEDY, SYSTEM, App, receipt
from tests.models import tiny_model
from tests.store_contents import StoreContents

pytestmark = pytest.mark.e2e

SLIDING = ("gemma3", "gpt-oss", "cohere2", "olmo2", "gemma2", "exaone4")
OTHERS = ("qwen35", "qwen3next", "lfm2", "mamba", "deepseek2")  # hybrids, recurrent, latent attention
BY_LLAMA_SERVER = (*SLIDING, "qwen35", "mamba")  # an older engine than the embedded one, and another file format
OLD, NEW = "llama-server", "embedded"  # b11434 and b11549
QUESTION = "Which is the longest bridge?"
DOCUMENT = document_from_text("river.md", "\n".join(f"{n}. The river bends at stone {n * 7 % 101}." for n in range(60)))
WINDOWS = {"gpt-oss": 128, "gemma3": 1024, "lfm2": 0}  # as in published models; the others: see tiny_model


@pytest.mark.parametrize(
    ("architecture", "engine"),
    [(architecture, "embedded") for architecture in (*SLIDING, *OTHERS)]
    + [(architecture, "llama-server") for architecture in BY_LLAMA_SERVER],
)
def test_every_next_step_is_warm_after_a_restart(tmp_path, architecture, engine):
    figures = measure(tmp_path, architecture, WINDOWS.get(architecture), engine)
    assert [step["name"] for step in figures["steps"]] == ["next turn", "regenerate", "edit", "branch"]
    for step in figures["steps"]:
        assert step["source"] == "disk", step
        assert share(step) >= 0.98, step
    assert figures["outputs_agree"], "greedy replies after restores equal the hot one"


@pytest.mark.parametrize(("architecture", "tokens"), [("smallthinker", 4400), ("llama4", 8600)])
def test_a_chat_longer_than_a_long_window_is_restored_by_an_older_engine(tmp_path, architecture, tokens):
    """llama.cpp gives these models windows of 4,096 and chunks of 8,192 tokens, whatever their files say."""
    figures = measure(tmp_path, architecture, None, "llama-server", tokens)
    assert figures["steps"][0]["source"] == "disk"
    assert share(figures["steps"][0]) >= 0.98, figures["steps"][0]


async def test_nothing_is_saved_that_the_engine_cannot_restore(tmp_path):
    """llama-server b11434 restores no chat shorter than the model's sliding window."""
    app = App(tmp_path / "home", tiny_model("gemma3", 1024), "llama-server")
    chat = await app.new_chat("Answer from these notes alone.\n" + notes(8))
    notices: list[str] = []
    save_points: list[int] = []

    async def ask(runtime: Runtime) -> Message:
        runtime.events.subscribe(lambda event: notices.append(event.title) if isinstance(event, Notice) else None)
        reply = await runtime.chat.send(chat, "Which is the longest?", GREEDY)
        await runtime.chat.wait_until_idle()
        save_points.append((await runtime.save_points.usage()).save_points)
        return reply

    replies = [receipt(await app.run_turn(ask)) for _ in range(2)]
    assert [reply.source for reply in replies] == [Source.COLD, Source.COLD]
    assert replies[1].miss_reason == Reason(ReasonCode.TOO_SHORT)
    assert save_points == [0, 0]
    assert notices == ["Chat memory does not work for short chats with this engine"]


def test_windows_with_recurrent_state_are_restored_as_far_as_when_hot(tmp_path):
    """The engine goes back to its checkpoint, about 512 tokens before the end, even in its own slot."""
    figures = measure(tmp_path, "lfm2", 32, "embedded")
    assert share(figures["hot"]) < 0.98, "the engine has improved: so must the restore"
    for step in figures["steps"]:
        assert share(step) >= share(figures["hot"]) - 0.02, step
    assert figures["outputs_agree"]


def measure(folder: Path, architecture: str, window: int | None, engine: str, tokens: int = 1500) -> dict[str, Any]:
    """Run `python -m tests.bench after-restart` with a tiny model and print a row of the table."""
    model = tiny_model(architecture, window, heeds=True)
    arguments = ("--tokens", str(tokens), "--model", str(model), *engine_arguments(engine))
    figures = Home(folder).bench("after-restart", *arguments)
    shares = "".join(f"{share(step):9.1%}" for step in (*figures["steps"], figures["hot"]))
    print(f"\n{architecture:<11}{window or '':>5} {engine:<13}{shares}  next, regenerate, edit, branch; next hot")
    return figures


def share(step: dict[str, Any]) -> float:
    return float(step["cached_tokens"] / step["prompt_tokens"])


@pytest.mark.parametrize(
    ("architecture", "engine", "tools"),
    [
        ("qwen35", "embedded", 0),
        ("qwen35", "llama-server", 20),
        ("mamba", "llama-server", 0),
        ("gemma3", "llama-server", 0),
    ],
)
async def test_the_second_chat_with_the_same_beginning_starts_warm(tmp_path, architecture, engine, tools):
    """Where states cannot be cut, the first chat saves where the beginning ends, however fast it was processed."""
    (template := tmp_path / "template.jinja").write_text(TEMPLATE, "utf-8")
    chosen, arguments = (await Towns(tools).tools(), f"--chat-template-file {template}") if tools else ((), "")

    async def answer(home: str, question: str) -> Message:
        app = App(tmp_path / home, tiny_model(architecture), engine, arguments)
        chat = await app.new_chat("" if tools else SYSTEM)

        async def ask(runtime: Runtime) -> Message:
            await runtime.chat.options.change_tools(chat, chosen)
            return await runtime.chat.send(chat, question, GREEDY)

        return await app.run_turn(ask)

    first = await answer("home", "Which is the longest bridge?")
    shared = min(len(point.tokens) for point in StoreContents(tmp_path / "home").save_points())
    second, cold = [await answer(home, "And the shortest?") for home in ("home", "cold")]
    assert (receipt(first).source, receipt(first).cached_tokens) == (Source.COLD, 0)
    assert receipt(first).prefill_ms <= receipt(first).ttft_ms, "including what was processed before the save"
    assert (receipt(second).source, receipt(second).cached_tokens) == (Source.DISK, shared)
    assert shared > 0.9 * receipt(second).prompt_tokens
    assert second.content == cold.content


async def test_the_same_document_is_warm_in_another_chat(tmp_path, smollm2):
    app = App(tmp_path / "home", smollm2, "llama-server")
    cold = App(tmp_path / "cold", smollm2, "llama-server")
    replies = []
    for app_used, question in (
        (app, "How many bends?"),
        (app, "Which stone is first?"),
        (cold, "Which stone is first?"),
    ):
        chat = await app_used.new_chat()
        replies.append(
            await app_used.run_turn(
                lambda runtime, c=chat, q=question: runtime.chat.send(c, q, GREEDY, attachments=(DOCUMENT,))
            )
        )
    first, second, alone = (receipt(reply) for reply in replies)
    assert (first.source, second.source, alone.source) == (Source.COLD, Source.DISK, Source.COLD)
    assert second.cached_tokens >= 0.95 * second.prompt_tokens, second
    assert replies[1].content == replies[2].content


@pytest.mark.parametrize("architecture", ["llama", "deepseek2"])
async def test_plain_attention_can_be_restored_by_another_build(tmp_path, architecture):
    model = tiny_model(architecture)
    old, new = App(tmp_path / "home", model, OLD), App(tmp_path / "home", model, NEW)
    chat = await old.new_chat(SYSTEM)
    await old.run_turn(lambda runtime: runtime.chat.send(chat, "Which is the longest bridge?", GREEDY))
    second = await new.run_turn(lambda runtime: runtime.chat.send(chat, "And the shortest?", GREEDY))
    third = await old.run_turn(
        lambda runtime: runtime.chat.send(chat, "Thank you.", GREEDY)
    )  # from the save point of the new one
    again = await new.run_turn(lambda runtime: runtime.chat.retry(chat, GREEDY))
    for reply in (second, third, again):
        assert receipt(reply).source is Source.DISK, receipt(reply)
        assert receipt(reply).cached_tokens >= 0.98 * receipt(reply).prompt_tokens, receipt(reply)
    assert again.content == third.content


async def test_recurrent_state_is_not_restored_by_another_build(tmp_path):
    model = tiny_model("qwen35")
    old, new = App(tmp_path / "home", model, OLD), App(tmp_path / "home", model, NEW)
    chat = await old.new_chat(SYSTEM)
    await old.run_turn(lambda runtime: runtime.chat.send(chat, "Which is the longest bridge?", GREEDY))
    second = receipt(await new.run_turn(lambda runtime: runtime.chat.send(chat, "And the shortest?", GREEDY)))
    assert (second.source, second.cached_tokens) == (Source.COLD, 0)
    assert second.miss_reason == Reason(ReasonCode.OTHER_SETTINGS, {"settings": (Reason(ReasonCode.BUILD),)})
    back = receipt(await old.run_turn(lambda runtime: runtime.chat.retry(chat, GREEDY)))
    assert back.source is Source.DISK


async def prepare(app: App, folder: Path, *, read: bool = True) -> PreparedSet:
    async with app.opened() as runtime:
        made = await runtime.chat.library.add([folder], "Bridges")
        return await runtime.chat.library.process(made) if read else made


async def first_reply(app: App, documents: PreparedSet) -> tuple[str, int, int, Source]:
    """Return the first reply in a new chat after a restart, cached and prompt tokens, and the source."""

    async def ask(runtime: Runtime) -> object:
        chat = await runtime.chat.create(await runtime.chat.library.new_chat(documents))
        return await runtime.chat.send(chat.id, QUESTION, GREEDY)

    reply = await app.run_turn(ask)
    counts = receipt(reply)
    return reply.content, counts.cached_tokens, counts.prompt_tokens, counts.source


@pytest.mark.parametrize(
    ("architecture", "window"), [("llama", None), ("gemma3", 1024), ("gemma3", 64), ("qwen35", None)]
)
async def test_a_first_question_on_documents_is_warm_and_gets_a_cold_engines_reply(tmp_path, architecture, window):
    folder = tmp_path / "bridges"
    folder.mkdir()
    (folder / "a.md").write_text(notes(60))
    (folder / "b.md").write_text(notes(60, start=60))
    model = tiny_model(architecture, window, heeds=True)
    app, cold = App(tmp_path / "home", model, "embedded"), App(tmp_path / "cold", model, "embedded")
    documents = await prepare(app, folder)
    reply, cached, prompt, source = await first_reply(app, documents)
    assert source is Source.DISK
    assert documents.tokens - 1 <= cached < prompt
    assert cached >= 0.98 * documents.tokens
    unread = await prepare(cold, folder, read=False)
    cold_reply, _, cold_prompt, cold_source = await first_reply(cold, unread)
    assert cold_source is Source.COLD
    assert (cold_reply, cold_prompt) == (reply, prompt)

    (folder / "b.md").write_text(notes(60, start=300))
    async with app.opened() as runtime:
        now = await runtime.chat.library.process(documents)
    _, cached, _, source = await first_reply(app, now)
    assert source is Source.DISK
    assert cached >= now.tokens - 1
