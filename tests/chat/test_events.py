import asyncio
from typing import Any

from kvchat.chat.events import Event, EventBus, Notice

NEWS = Notice("News")


class Breaks(Exception):
    pass


def broken(event: Event) -> None:
    raise Breaks


async def test_failing_listener_is_reported_and_others_are_called() -> None:
    bus, heard, reports = EventBus(), list[Event](), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    bus.subscribe(broken)
    stop = bus.subscribe(heard.append)
    bus.publish(NEWS)
    assert heard == [NEWS]
    assert [type(report["exception"]) for report in reports] == [Breaks]
    assert "Notice" in reports[0]["message"]
    stop()
    bus.publish(NEWS)
    assert heard == [NEWS]
