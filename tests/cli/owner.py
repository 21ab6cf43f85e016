"""A kvchat that owns the data folder and has its runtime open, in a thread of this process."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from kvchat.cli.owned import CommandRunner
from kvchat.runtime import Runtime
from kvchat.settings import load_settings
from kvchat.system.owner import InstanceLock
from kvchat.system.paths import Paths


@contextlib.contextmanager
def running_owner(paths: Paths, name: str = "kvchat serve") -> Iterator[Runtime]:
    runtimes: list[Runtime] = []
    started, stop = threading.Event(), threading.Event()

    async def run() -> None:
        ownership = InstanceLock(paths.data, name)
        assert ownership.claim()
        runner = CommandRunner(paths, name)
        runtimes.append(await runner.runtime(load_settings(paths.settings_file)))
        ownership.listen(runner.serve_connection)
        started.set()
        await asyncio.to_thread(stop.wait)
        ownership.stop_listening()
        await runner.close()
        await runtimes[0].close()
        ownership.release()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    started.wait()
    try:
        yield runtimes[0]
    finally:
        stop.set()
        thread.join()
