"""What is kept for other programs: within bounds of its own, never at the cost of a chat, and its best is kept."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from kvchat.chat.deletion import purge_orphans
from kvchat.chat.record.database import Database
from kvchat.kvstore.savepoint import Bounds, Miss, StoreRefused
from kvchat.text.reasons import Reason, ReasonCode
from tests.kvstore.slot_files import line as text
from tests.kvstore.true_files import FULL, HYBRID, Bench, Model

BIG = Model(layers=8, row_size=512)
AGENT, EDITOR = "program/claude-cli", "program/zed"


def left(bench: Bench) -> dict[str, int]:
    return {one.conversation_id: one.save_points for one in bench.inventory.usage().conversations}


def room_for(bench: Bench, tokens: int, programs: int) -> None:
    """Bounds within which so many tokens of a program fit, and twice as much of all."""
    a_token = bench.on_disk() / tokens
    bench.inventory.set_bounds(Bounds(2 * round(programs * a_token), 0))


def test_programs_keep_to_half_and_chats_lose_nothing_by_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", BIG)
    bench.save("chat", text(300))
    room_for(bench, 300, 700)
    for number in range(6):
        bench.save(AGENT, text(300, 1000 * (number + 1)))
    assert left(bench) == {"chat": 1, AGENT: 2}
    assert bench.inventory.usage().programs_quota_bytes == bench.inventory.usage().quota_bytes // 2
    gone = bench.find(text(300, 1000), conversation=AGENT)
    assert gone == Miss(Reason(ReasonCode.PRUNED))


def test_programs_go_before_chats_when_space_is_short(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", BIG)
    for number in range(3):
        bench.save(f"chat {number}", text(300, 1000 * number + 1))
    bench.clock.now += timedelta(days=7)  # what was used last is not what counts here
    for number in range(3):
        bench.save(EDITOR, text(300, 10_000 + 1000 * number))
    bench.inventory.set_bounds(Bounds(bench.besides() + 4 * bench.on_disk() // 6 + 20_000, 0))
    assert left(bench) == {"chat 0": 1, "chat 1": 1, "chat 2": 1, EDITOR: 1}


def test_of_a_program_s_threads_the_ends_and_what_they_begin_with_are_kept(tmp_path: Path) -> None:
    """One owner has many threads: were it one conversation, all but the newest would be older turns."""
    bench = Bench(tmp_path / "store", HYBRID)
    shared = text(400)
    threads = [shared + text(300, 1000 * (number + 1)) for number in range(3)]
    bench.save(AGENT, shared)
    for thread in threads:
        for length in (550, 600, 650, 700):
            bench.save(AGENT, thread[:length])
    assert left(bench) == {AGENT: 13}
    size = bench.inventory.usage().physical_bytes
    target = next(
        target for target in range(size, 0, -4096) if len(bench.inventory.plan_prune(target).save_point_ids) >= 9
    )
    bench.inventory.prune(bench.inventory.plan_prune(target))
    assert left(bench) == {AGENT: 4}
    for thread in threads:
        assert bench.restored((*thread, 5), can_cut=False, conversation=AGENT) == HYBRID.slot_file(thread)
    assert bench.restored((*shared, 7), can_cut=False, conversation=AGENT) == HYBRID.slot_file(shared)


def test_what_a_chat_keeps_as_well_does_not_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", BIG)
    for name in ("chat", AGENT):
        bench.save(name, text(600))
    room_for(bench, 600, 500)
    assert left(bench) == {"chat": 1, AGENT: 1}


def test_what_a_program_did_not_use_for_two_weeks_goes(bench: Bench) -> None:
    for name, start in (("chat", 1), (AGENT, 1000), (EDITOR, 2000)):
        bench.save(name, text(300, start))
    bench.clock.now += timedelta(days=10)
    assert bench.restored(text(310, 2000), conversation=EDITOR) == FULL.slot_file(text(300, 2000))
    bench.clock.now += timedelta(days=5)
    bench.save("new", text(300, 3000))
    assert left(bench) == {"chat": 1, EDITOR: 1, "new": 1}
    gone = bench.find(text(310, 1000), conversation=AGENT)
    assert gone == Miss(Reason(ReasonCode.EXPIRED))


def test_a_prompt_too_large_for_programs_is_not_kept(bench: Bench) -> None:
    size = len(FULL.slot_file(text(300)))
    bench.inventory.set_bounds(Bounds(3 * size // 2, 0))
    with pytest.raises(StoreRefused, match="limit"):
        bench.take(AGENT, text(300))


def test_a_start_does_not_take_programs_for_strangers(tmp_path: Path, bench: Bench) -> None:
    bench.save(AGENT, text(300), message="request 1")
    bench.save("gone", text(300, 1000), message="of nobody")
    with closing(Database(tmp_path / "chats.db")) as database:
        purge_orphans(bench.store, database)
    assert left(bench) == {AGENT: 1}


def test_a_program_can_be_deleted_and_takes_nothing_of_others_with_it(bench: Bench) -> None:
    bench.save(AGENT, text(300))
    bench.save(EDITOR, text(300) + text(200, 1000))
    bench.save(AGENT, text(300, 2000))
    bench.inventory.delete_conversation(AGENT)
    assert left(bench) == {EDITOR: 1}
    whole = bench.restored((*text(300), *text(210, 1000)), conversation=EDITOR)
    assert whole == FULL.slot_file(text(300) + text(200, 1000))
