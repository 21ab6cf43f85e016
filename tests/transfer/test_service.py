"""Transfers run beside the chats and change nothing if cancelled."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from kvchat.chat.events import EventBus
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import MessageState, Role
from kvchat.system.concurrency import OnProgress, Worker
from kvchat.system.paths import resolve_paths
from kvchat.transfer.backup import make_backup
from kvchat.transfer.exporting import ExportForm, export_file
from kvchat.transfer.service import TransferService
from tests.transfer.library import everything, made_conversation, open_library

OPERATIONS = ("export", "import", "back up", "stage restore")


@dataclass
class Bench:
    """A service, three chats, and three more in files to import or restore."""

    folder: Path
    database: Database
    worker: Worker
    service: TransferService
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def work(self, operation: str, progress: OnProgress) -> Awaitable[object]:
        ids = [conversation.id for conversation in self.database.conversations()]
        return {
            "export": lambda: self.service.export(ids, self.folder / "out" / "chats.json", progress),
            "import": lambda: self.service.import_files([self.folder / "theirs.json"], progress),
            "back up": lambda: self.service.back_up(self.folder / "out" / "backup.zip", progress),
            "stage restore": lambda: self.service.stage_restore(self.folder / "theirs.zip", progress),
        }[operation]()

    def snapshot(self) -> list[object]:
        files = sorted(path for path in self.folder.rglob("*") if "conversations.db" not in path.name)
        return [everything(self.database), [(path, path.is_file() and path.read_bytes()) for path in files]]

    def meanwhile(self, what: Callable[[], Awaitable[object]]) -> None:
        async def do() -> object:
            return await what()

        asyncio.run_coroutine_threadsafe(do(), self.loop).result(30)


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    theirs = resolve_paths({"KVCHAT_HOME": str(tmp_path / "theirs")})
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")})
    for each in (theirs, paths):
        each.ensure()
    other = open_library(theirs.data)
    ids = [made_conversation(other).id for _ in range(3)]
    export_file(other, ids, ExportForm.JSON, tmp_path / "theirs.json")
    other.close()
    make_backup(theirs, tmp_path / "theirs.zip")
    (tmp_path / "out").mkdir()
    for name in ("chats.json", "backup.zip"):
        (tmp_path / "out" / name).write_text("an older one", "utf-8")
    worker, database = Worker("test"), Database(paths.database)
    for _ in range(3):
        made_conversation(database)
    yield Bench(tmp_path, database, worker, TransferService(paths, database, worker, EventBus()))
    worker.close()
    database.close()


@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_database_stays_available_during_transfers(bench: Bench, operation: str, cancelled: bool) -> None:
    """A cancelled transfer changes nothing."""
    before, reports = bench.snapshot(), []

    def progress(done: int, total: int) -> None:
        reports.append(done)
        meanwhile = partial(bench.worker.run, bench.database.create_conversation, "Meanwhile")
        bench.meanwhile(partial(cancel, task) if cancelled else meanwhile)

    task = asyncio.ensure_future(bench.work(operation, progress))
    if cancelled:
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(reports) == 1
        assert bench.snapshot() == before
    else:
        await task
        titles = [conversation.title for conversation in bench.database.conversations()]
        assert titles.count("Meanwhile") == len(reports) > 1


async def test_continued_chat_survives_a_cancelled_import(bench: Bench) -> None:
    before = {conversation.id for conversation in bench.database.conversations()}
    continued: list[str] = []

    async def continue_chat() -> None:
        continued.append(next(c.id for c in bench.database.conversations() if c.id not in before))
        await bench.worker.run(
            bench.database.append, continued[0], None, Role.USER, "Do not lose this", MessageState.COMPLETE
        )
        await cancel(task)

    def progress(done: int, total: int) -> None:
        if done == 2:
            bench.meanwhile(continue_chat)

    task = asyncio.ensure_future(bench.work("import", progress))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert {conversation.id for conversation in bench.database.conversations()} - before == set(continued)


async def cancel(task: asyncio.Future[object]) -> None:
    """Cancel, and let the task run until it notices."""
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
