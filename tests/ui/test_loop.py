"""Assumptions about the event loop that the other UI tests rely on."""

import asyncio

import pytest_asyncio


async def _asks_for_the_loop() -> asyncio.AbstractEventLoop:
    await asyncio.sleep(0)
    return asyncio.get_running_loop()


@pytest_asyncio.fixture
async def begun() -> asyncio.Task[asyncio.AbstractEventLoop]:
    return asyncio.create_task(_asks_for_the_loop())


async def test_what_a_fixture_left_in_the_middle_goes_on_in_the_test(
    begun: asyncio.Task[asyncio.AbstractEventLoop],
) -> None:
    assert await begun is asyncio.get_running_loop()
