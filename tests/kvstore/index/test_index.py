"""The index itself: damage, loss, concurrency and size."""

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Barrier

import pytest

from kvchat.kvstore import disk
from kvchat.kvstore.index.index import Index, IndexLost
from kvchat.kvstore.index.schema import CorruptIndex
from kvchat.kvstore.savepoint import RestoreMiss, StoreRefused
from kvchat.text.reasons import Reason, ReasonCode
from tests.kvstore.store_bench import Bench, Model, token_range
from tests.store_contents import flip_a_byte
from tests.systems import deletes_open_files

ADD_CHAT, CHATS = "INSERT INTO conversations (name) VALUES (?)", "SELECT name FROM conversations"


def open_files(path: Path) -> list[str]:
    """Return this process's open files of the index, including deleted ones. Windows could not delete them."""
    links = []
    for link in Path("/proc/self/fd").glob("*"):  # no such folder on other systems
        with suppress(OSError):
            links.append(str(link.readlink()))
    return [link for link in links if link.startswith(str(path))]


@pytest.mark.parametrize("method", ["read", "write"])
def test_a_damaged_index_is_replaced_once_all_connections_are_closed(tmp_path: Path, method: str) -> None:
    path = tmp_path / "index.db"
    losses: list[list[str]] = []
    index, barrier = Index(path, lambda: losses.append(open_files(path))), Barrier(2)
    with index.write() as db:
        db.executemany(ADD_CHAT, [(f"{number:0500}",) for number in range(1000)])
    index.shrink()
    with path.open("r+b") as file:
        file.write(os.urandom(10_000))

    def query(open_transaction: Callable[[], AbstractContextManager[sqlite3.Connection]]) -> None:
        def find_damage(db: sqlite3.Connection) -> None:
            unfinished = db.execute("SELECT 1 UNION ALL SELECT 2")  # keeps the file open until it is freed
            assert unfinished.fetchone() == (1,)
            db.execute(CHATS).fetchall()
            raise CorruptIndex  # the writer still has undamaged pages in its cache

        with open_transaction() as db:
            barrier.wait()
            find_damage(db)

    with ThreadPoolExecutor(2) as pool:
        queries = [pool.submit(query, transaction) for transaction in (index.read, getattr(index, method))]
    assert [type(future.exception()) for future in queries] == [IndexLost, IndexLost]
    with index.write() as db:
        db.execute(ADD_CHAT, ("after",))
    with index.read() as db:
        assert db.execute(CHATS).fetchall() == [("after",)]
    index.close()
    assert losses == [[]]
    path.write_bytes(os.urandom(10_000))
    Index(path, lambda: losses.append(open_files(path))).close()
    assert losses == [[], []], "damage found when the file is opened"


@deletes_open_files
def test_an_index_is_recreated_when_the_cache_is_emptied(tmp_path: Path) -> None:
    index = Index(tmp_path / "cache" / "index.db")
    with index.read() as db:
        assert db.execute(CHATS).fetchall() == []
    shutil.rmtree(tmp_path / "cache")
    with index.write() as db:
        db.execute(ADD_CHAT, ("after",))
    with index.read() as db:
        assert db.execute(CHATS).fetchall() == [("after",)]
    assert index.is_fresh
    index.close()


def test_the_space_of_deleted_rows_is_freed(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.db")
    with index.write() as db:
        db.execute("INSERT INTO conversations (name) VALUES (hex(zeroblob(500000)))")
    with index.write() as db:
        db.execute("DELETE FROM conversations")
    assert disk.tree_size(tmp_path) > 1_000_000
    index.shrink()
    assert disk.tree_size(tmp_path) < 350_000  # empty, it takes some 30 pages
    index.close()


def test_readers_do_not_wait_for_a_writer(bench: Bench) -> None:
    bench.save("thesis", token_range(299))
    (saved,) = bench.inventory.usage().conversations
    with bench.inventory.index.write(), ThreadPoolExecutor() as pool:
        plan = pool.submit(bench.plan, token_range(319)).result()
        pool.submit(bench.stage, plan).result()
    before = bench.clock.now
    (usage,) = bench.inventory.usage().conversations
    assert saved.last_used_at < usage.last_used_at <= before, "the time of the restore is recorded later"


@pytest.mark.parametrize(("damage", "memory"), [("block", 0), ("recipe", 0), ("block", 10**9)])
def test_damage_found_by_a_restore_is_deleted_and_reported(tmp_path: Path, damage: str, memory: int) -> None:
    bench = Bench(tmp_path / "store", memory=memory)
    point = bench.save("thesis", token_range(299))
    bench.reopen()
    bench.restorer.limit_memory(10**9)  # with memory, a file with mapped pages is overwritten
    bench.restorer.preallocate_file().result()
    if damage == "block":
        flip_a_byte(max(bench.block_files(), key=lambda path: path.stat().st_size))  # a block of rows
    else:
        with bench.inventory.index.write() as db:
            db.execute("UPDATE links SET skip = skip + 1")
    miss = bench.restorer.stage(bench.plan(token_range(319)), bench.slots)
    assert isinstance(miss, RestoreMiss)
    assert miss.reason.code is ReasonCode.SET_ASIDE
    assert list(bench.slots.iterdir()) == []
    assert [loss.conversation_id for loss in bench.inventory.take_losses()] == [point.conversation_id]
    assert bench.find(token_range(319)) == miss
    assert bench.inventory.verify().is_clean


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_a_deleted_or_damaged_index_is_replaced_and_reported_once(bench: Bench, seed: int | None) -> None:
    assert bench.find(token_range(299)) == RestoreMiss(Reason(ReasonCode.NOTHING_SAVED)), (
        "a new folder has lost nothing"
    )
    for length in (99, 299, 699, 899):
        bench.save("thesis", token_range(length))
    bench.store.close()
    path, dice = bench.folder / "index.db", random.Random(seed)
    data = bytearray(path.read_bytes())
    if seed is None:
        path.unlink()
    else:
        for _ in range(200):
            data[dice.randrange(4096, len(data))] = dice.randrange(256)
        path.write_bytes(data)
    bench.use(bench.open())
    for query in (bench.inventory.verify, bench.inventory.usage) if seed is not None else ():
        with suppress(StoreRefused):
            query()
    assert bench.block_files() == [] or seed is not None, "nothing refers to them"
    miss = bench.find(token_range(999))
    assert isinstance(miss, RestoreMiss)
    assert miss.reason.code is ReasonCode.INDEX_LOST_ON
    assert len([loss for loss in bench.inventory.take_losses() if not loss.conversation_id]) == 1
    bench.reopen()
    assert bench.inventory.take_losses() == ()
    bench.save("thesis", token_range(299))
    assert bench.restore(token_range(319)) == bench.model.slot_file(token_range(299))


@pytest.mark.parametrize("stored", ["its memory was set aside: a block was damaged", '{"code": "newer", "places": {}}'])
def test_a_loss_recorded_by_another_version_has_a_general_reason(bench: Bench, stored: str) -> None:
    bench.inventory.delete_unusable(bench.save("thesis", token_range(399)).id, Reason(ReasonCode.FAILED_OVER_USE))
    with bench.inventory.index.write() as db:
        db.execute("UPDATE losses SET reason = ?", (stored,))
    assert bench.find(token_range(499)) == RestoreMiss(Reason(ReasonCode.SET_ASIDE))


@pytest.mark.slow
def test_links_shared_by_turns_are_stored_once(tmp_path: Path) -> None:
    """Stored for each turn, they grew with the square of the turns."""
    bench, turns = Bench(tmp_path / "store", Model(layers=1, row_size=8)), 60
    for turn in range(turns):
        bench.save("thesis", token_range(39 + 9 * turn))
    with bench.inventory.index.read() as db:
        (count,) = db.execute("SELECT count(*) FROM links").fetchone()
    assert count < 4 * turns
    assert bench.inventory.verify().is_clean
    bench.inventory.delete_messages("thesis", [])  # those without a message: all
    with bench.inventory.index.read() as db:
        assert db.execute("SELECT count(*) FROM links").fetchone() == (0,)


BIG_TABLES = ("save_points", "nodes", "links", "losses", "conversations", "written")  # blocks are added up
SMALL_INDEXES = ("save_points_staged", "save_points_by_use")  # of few rows, or for the first


def test_no_query_for_a_turn_scans_a_whole_table(bench: Bench) -> None:
    for number in range(3):
        bench.save("thesis", token_range(299 + 100 * number), message=f"{number}")
    bench.save("letter", (*range(1, 200), *range(900, 999)))
    queries: list[str] = []
    index = bench.inventory.index
    with index.read() as reader, index.write() as writer:
        reader.set_trace_callback(queries.append)
        writer.set_trace_callback(queries.append)
    for can_cut in (True, False):
        bench.restore((*token_range(349), 7), can_cut=can_cut)
        bench.find((9, 9, 9), can_cut=can_cut)
    bench.store.absorb_pending()
    bench.save("thesis", token_range(699), message="3")
    bench.inventory.occupied_bytes()
    bench.inventory.mark_checked("it", bench.inventory.find_unchecked("it"))
    bench.inventory.find_unchecked("it")
    hollow = Reason(ReasonCode.HOLLOW_RESTORE, {"accepted": 799, "reused": 0})
    bench.inventory.delete_unusable(bench.save("thesis", token_range(799), message="4").id, hollow)
    bench.inventory.delete_messages("thesis", ["2"])
    bench.inventory.delete_conversation("letter")
    with index.read() as db:
        db.set_trace_callback(None)
        plans = {
            f"{step[3]}: {query}"
            for query in queries
            if query.split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT", "WITH") and " EXISTS" not in query[:6]
            for step in db.execute(f"EXPLAIN QUERY PLAN {query}")
        }
    scans = [plan for plan in plans if plan.startswith("SCAN ") and not any(name in plan for name in SMALL_INDEXES)]
    assert not [plan for plan in scans if plan.split()[1].rstrip(":") in BIG_TABLES], scans
    assert len(queries) > 100
