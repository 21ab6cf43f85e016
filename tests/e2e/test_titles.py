"""A title by the model on real engines: the next turn is as warm as without it, and says what a cold engine says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.chat.record.prompt import prompt_messages
from kvchat.chat.turn.titles import is_due
from kvchat.engine.speaking.client import LlamaServerClient
from kvchat.engine.speaking.wire import Sampling
from tests.e2e.restarts import SYSTEM, receipt
from tests.e2e.test_steering import DIFFERS, GREEDY, opened, said_by, verdict
from tests.kept import Kept
from tests.models import starter_model, tiny_model

pytestmark = pytest.mark.e2e

ENDS = Sampling(temperature=0.0, grammar='root ::= "The bridge over the river is the longest."')


@pytest.mark.parametrize(
    ("architecture", "engine"),
    [
        ("starter", "embedded"),  # full attention
        ("qwen35", "embedded"),  # hybrid
        ("gemma3", "llama-server"),  # sliding windows
    ],
)
async def test_the_next_turn_is_as_warm_as_without_and_says_the_same(
    tmp_path: Path, architecture: str, engine: str
) -> None:
    model = starter_model() if architecture == "starter" else tiny_model(architecture)
    async with opened(tmp_path, model, engine) as runtime:
        chat = runtime.chat
        talk = (await chat.new_conversation(SYSTEM)).id
        assert await chat.send(talk, "Which is the longest bridge?", ENDS)
        await chat.idle()
        boundary = Kept(tmp_path).save_points()[-1].n_tokens

        chat.titles.begin(lambda: True)
        chat.titles.come()
        await chat.idle()
        assert not await runtime._worker.run(is_due, runtime._database, talk), "the model was asked"
        reply = await chat.send(talk, "And the shortest?", GREEDY)
        await chat.idle()
        assert reply is not None
        print(f"{architecture:<9}{engine:<13}{receipt(reply).cached_tokens} of {receipt(reply).prompt_tokens}")
        assert receipt(reply).cached_tokens >= boundary
        assert receipt(reply).cached_tokens >= 0.98 * receipt(reply).prompt_tokens

        cold = (await runtime.host.ready()).engine
        assert isinstance(cold, LlamaServerClient)
        said = await said_by(cold, prompt_messages((await chat.messages(talk))[:-1]))
        assert verdict(reply.content, said) != DIFFERS, (reply.content, said)
