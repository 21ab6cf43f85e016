import asyncio

from kvchat.ui.base.tasks import TaskRunner


def test_a_wish_may_start_while_the_loop_does_not_run() -> None:
    """Qt delivers timers and clicks between two runs of the loop, too."""

    async def make() -> TaskRunner:
        return TaskRunner(lambda error: None, lambda bug: None)

    async def run() -> None:
        granted.append(True)

    granted: list[bool] = []
    with asyncio.Runner() as runner:
        tasks = runner.run(make())
        tasks.start(run())
        runner.run(asyncio.sleep(0))
    assert granted == [True]
