"""The index's own doings: formats, and the space it takes."""

from __future__ import annotations

import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import pytest

from kvchat.kvstore import disk
from kvchat.kvstore.index.index import Index, IndexLost
from kvchat.kvstore.savepoint import Miss, RestorePlan, StagedFile, StoreRefused
from kvchat.text.reasons import Reason, ReasonCode
from tests.kvstore.store_bench import Bench, Model


def scribble(path: Path, seed: int) -> None:
    """200 bytes after the first 4 KB are others."""
    data, dice = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(200):
        data[dice.randrange(4096, len(data))] = dice.randrange(256)
    path.write_bytes(data)


def test_two_threads_that_meet_a_damaged_index_replace_it_once(tmp_path: Path) -> None:
    lost: list[None] = []
    path, query = tmp_path / "index.db", "SELECT name FROM conversations"
    index, reads = Index(path, lambda: lost.append(None)), Barrier(2)
    with index.write() as db:
        db.execute("INSERT INTO conversations (name) VALUES ('before')")
    index.shrink()
    with path.open("r+b") as file:
        file.write(os.urandom(10_000))

    def look() -> None:
        with index.read() as db:
            reads.wait()
            db.execute(query).fetchall()

    with ThreadPoolExecutor(2) as pool:
        looks = [pool.submit(look) for _ in range(2)]
    assert [type(one.exception()) for one in looks] == [IndexLost, IndexLost]
    with index.write() as db:
        db.execute("INSERT INTO conversations (name) VALUES ('after')")
    with index.read() as db:
        assert db.execute(query).fetchall() == [("after",)]
    index.close()
    assert len(lost) == 1


def test_an_index_goes_on_when_somebody_empties_the_cache(tmp_path: Path) -> None:
    index = Index(tmp_path / "cache" / "index.db")
    with index.read() as db:
        assert db.execute("SELECT count(*) FROM conversations").fetchone() == (0,)
    shutil.rmtree(tmp_path / "cache")
    with index.write() as db:
        db.execute("INSERT INTO conversations (name) VALUES ('after')")
    with index.read() as db:
        assert db.execute("SELECT name FROM conversations").fetchall() == [("after",)]
    assert index.fresh
    index.close()


def test_who_looks_something_up_waits_for_nobody_who_writes(bench: Bench) -> None:
    bench.save("thesis", tuple(range(1, 300)))
    with bench.inventory.index.write(), ThreadPoolExecutor() as pool:
        plan = pool.submit(bench.find, tuple(range(1, 320))).result()
        assert isinstance(plan, RestorePlan)
        staged = pool.submit(bench.restorer.stage, plan, bench.slots).result()
        assert isinstance(staged, StagedFile)
    before = bench.clock.now
    (usage,) = bench.inventory.usage().conversations
    assert usage.last_used_at <= before, "and yet it was noted when it was used"
    assert usage.last_used_at > plan.save_point.last_used_at


@pytest.mark.parametrize("damage", ["block", "recipe"])
def test_what_a_restore_finds_bad_is_taken_out_of_use_and_told(bench: Bench, damage: str) -> None:
    point = bench.save("thesis", tuple(range(1, 300)))
    bench.reopen()
    if damage == "block":
        for block in bench.block_files():
            block.write_bytes(b"x" * block.stat().st_size)
    else:
        with bench.inventory.index.write() as db:
            db.execute("UPDATE links SET skip = skip + 1")
    plan = bench.find(tuple(range(1, 320)))
    assert isinstance(plan, RestorePlan)
    missed = bench.restorer.stage(plan, bench.slots)
    assert isinstance(missed, Miss)
    assert missed.reason.code is ReasonCode.SET_ASIDE
    assert list(bench.slots.iterdir()) == []
    assert [loss.conversation_id for loss in bench.inventory.losses()] == [point.conversation_id]
    assert bench.find(tuple(range(1, 320))) == missed
    assert bench.inventory.verify().is_clean


def test_an_index_that_was_taken_away_is_told_like_a_damaged_one(bench: Bench) -> None:
    nothing = bench.find(tuple(range(1, 300)))
    assert isinstance(nothing, Miss)
    assert nothing.reason == Reason(ReasonCode.NOTHING_SAVED), "a new folder has lost nothing"
    bench.save("thesis", tuple(range(1, 300)))
    bench.store.close()
    (bench.folder / "index.db").unlink()
    bench.use(bench.open())
    plan = bench.find(tuple(range(1, 320)))
    assert isinstance(plan, Miss)
    assert plan.reason.code is ReasonCode.INDEX_LOST_ON
    assert len([loss for loss in bench.inventory.losses() if not loss.conversation_id]) == 1
    bench.store.close()
    bench.use(bench.open())
    assert bench.inventory.losses() == ()


@pytest.mark.parametrize("seed", range(6))
def test_an_index_with_scribbles_is_begun_anew_and_that_is_told_once(bench: Bench, seed: int) -> None:
    for length in (100, 300, 700, 900):
        bench.save("thesis", tuple(range(1, length)))
    bench.store.close()
    scribble(bench.folder / "index.db", seed)
    bench.use(bench.open())
    bench.slots = bench.store.staging.slot_folder()
    with suppress(StoreRefused):
        bench.inventory.verify()
    with suppress(StoreRefused):
        bench.inventory.usage()
    plan = bench.find(tuple(range(1, 1000)))
    assert isinstance(plan, Miss)
    assert plan.reason.code is ReasonCode.INDEX_LOST_ON
    assert len([loss for loss in bench.inventory.losses() if not loss.conversation_id]) == 1
    assert bench.inventory.losses() == ()
    bench.save("thesis", tuple(range(1, 300)))
    assert bench.restore(tuple(range(1, 320))) == bench.model.slot_file(tuple(range(1, 300)))


@pytest.mark.slow
def test_what_turns_share_is_in_the_index_once(tmp_path: Path) -> None:
    """It was once for each turn: the rows grew with the square of the turns."""
    bench, turns = Bench(tmp_path / "store", Model(layers=1, row_size=8)), 60
    for turn in range(turns):
        bench.save("thesis", tuple(range(1, 40 + 9 * turn)))
    with bench.inventory.index.read() as db:
        (links,), (held,), (uses,) = (
            db.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("links", "held", "holdings")
        )
    assert max(links, held, uses) < 4 * turns
    assert bench.inventory.verify().is_clean
    bench.inventory.delete_messages("thesis", [])  # those of which no message is known: all
    with bench.inventory.index.read() as db:
        assert db.execute("SELECT count(*) FROM links").fetchone() == (0,)


BIG_TABLES = ("save_points", "nodes", "blocks", "links", "held", "holdings", "losses", "conversations", "written")
NO_SCANS = ("blocks_unused", "save_points_staged", "save_points_by_use")  # of few, or of the first row


def test_nothing_between_a_question_and_its_answer_goes_through_a_whole_table(bench: Bench) -> None:
    for number in range(3):
        bench.save("thesis", tuple(range(1, 300 + 100 * number)), message=f"{number}")
    bench.save("letter", (*range(1, 200), *range(900, 999)))
    asked: list[str] = []
    index = bench.inventory.index
    with index.read() as reads, index.write() as writes:
        reads.set_trace_callback(asked.append)
        writes.set_trace_callback(asked.append)
    for can_cut in (True, False):
        bench.restore((*range(1, 350), 7), can_cut=can_cut)
        bench.find((9, 9, 9), can_cut=can_cut)
    bench.store.absorb_pending()
    bench.save("thesis", tuple(range(1, 700)), message="3")
    bench.inventory.occupied()
    bench.inventory.mark_checked("it", bench.inventory.unchecked("it"))
    bench.inventory.unchecked("it")
    bench.inventory.set_aside(
        bench.save("thesis", tuple(range(1, 800)), message="4"),
        Reason(ReasonCode.HOLLOW, {"accepted": 799, "reused": 0}),
    )
    bench.inventory.delete_messages("thesis", ["2"])
    bench.inventory.delete_conversation("letter")
    with index.read() as db:
        db.set_trace_callback(None)
        plans = {
            f"{step[3]}: {query}"
            for query in asked
            if query.split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT", "WITH") and " EXISTS" not in query[:6]
            for step in db.execute(f"EXPLAIN QUERY PLAN {query}")
        }
    scans = [plan for plan in plans if plan.startswith("SCAN ") and not any(name in plan for name in NO_SCANS)]
    assert not [plan for plan in scans if plan.split()[1].rstrip(":") in BIG_TABLES], scans
    assert len(asked) > 100


def test_what_deleted_save_points_took_is_given_back(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.db")
    with index.write() as db:
        db.execute("INSERT INTO conversations (name) VALUES (hex(zeroblob(500000)))")
    with index.write() as db:
        db.execute("DELETE FROM conversations")
    assert disk.tree_size(tmp_path) > 1_000_000
    index.shrink()
    assert disk.tree_size(tmp_path) < 350_000  # empty, it takes some 30 pages
    index.close()


@pytest.mark.parametrize("stored", ["its memory was set aside: a block was damaged", '{"code": "newer", "places": {}}'])
def test_a_loss_in_another_versions_words_is_told_without_them(bench: Bench, stored: str) -> None:
    bench.inventory.set_aside(bench.save("thesis", tuple(range(1, 400))), Reason(ReasonCode.FAILED_OVER_USE))
    with bench.inventory.index.write() as db:
        db.execute("UPDATE losses SET reason = ?", (stored,))
    assert bench.find(tuple(range(1, 500))) == Miss(Reason(ReasonCode.SET_ASIDE))
