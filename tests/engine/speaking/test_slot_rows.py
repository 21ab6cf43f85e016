"""What is known of the rows a slot keeps: never more than the engine has said."""

from __future__ import annotations

import contextlib

import httpx2
import pytest

from kvchat.engine.speaking.client import LlamaServerClient
from kvchat.engine.speaking.errors import EngineError


def answering(*events: str) -> LlamaServerClient:
    """A client of a server that streams these events."""
    body = "".join(f"data: {event}\n\n" for event in events)
    answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=body)
    return LlamaServerClient("http://engine", "key", transport=httpx2.MockTransport(lambda _: answer))


def timings(cached: int) -> str:
    numbers = f'"cache_n": {cached}, "prompt_n": 1, "prompt_ms": 1.0, "predicted_n": 0, "predicted_ms": 0.0'
    return f'{{"content": "", "stop": true, "timings": {{{numbers}}}}}'


@pytest.mark.parametrize(("cached", "kept"), [(100, 100), (150, 100), (40, 40), (0, 0)])
async def test_rows_are_kept_as_far_as_the_engine_reused_them(cached: int, kept: int) -> None:
    async with contextlib.aclosing(answering(timings(cached))) as client:
        client.rows.count_as_saved(100)
        await client.with_template({"thinking": True}).prefill([1, 2, 3])
        assert client.rows.kept == kept


async def test_of_a_request_that_broke_off_nothing_is_known() -> None:
    async with contextlib.aclosing(answering("{}")) as client:
        client.rows.count_as_saved(100)
        with pytest.raises(EngineError):
            await client.prefill([1, 2, 3])
        assert client.rows.kept == 0


async def test_a_slot_that_was_filled_or_emptied_is_known_only_when_that_is_said() -> None:
    async with contextlib.aclosing(
        LlamaServerClient("http://engine", "key", transport=httpx2.MockTransport(lambda _: httpx2.Response(500)))
    ) as client:
        for change in (client.erase_slot(), client.restore_slot("a.slot")):
            client.rows.count_as_saved(100)
            with pytest.raises(EngineError):
                await change
            assert client.rows.kept == 0


async def test_where_others_ask_too_nothing_is_ever_known() -> None:
    async with contextlib.aclosing(answering(timings(100))) as client:
        client.rows.alone = False
        client.rows.count_as_saved(100)
        assert client.rows.kept == 0
