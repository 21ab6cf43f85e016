"""Save points of other programs: within limits of their own, never at the cost of a chat; and audiences."""

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from kvchat.chat.deletion import purge_orphans
from kvchat.chat.record.database import Database
from kvchat.kvstore.savepoint import Bounds, RestoreMiss, StoreRefused, imported_audience
from kvchat.text.reasons import Reason, ReasonCode
from tests.kvstore.store_bench import FULL, HYBRID, Bench, token_range

AGENT, EDITOR, DOCUMENTS = "program/claude-cli", "program/zed", "prepared:3f2a"
LAPTOP = "program/@laptop/chat"
DEVICES = (LAPTOP, "program/@laptop", "program/@laptop2/chat", "program/@phone/chat", "program/@phone")
OWNERS = ("thesis", "letter", AGENT, EDITOR, DOCUMENTS, *DEVICES)


def set_programs_quota(bench: Bench, tokens: int, *, of: int) -> None:
    """Leave room for so many tokens of programs; the store holds `of` tokens."""
    bench.inventory.set_bounds(Bounds(2 * round(tokens * bench.block_bytes() / of), 0))


def test_programs_get_half_of_the_quota_and_no_larger_prompt_is_saved(big: Bench) -> None:
    big.save("chat", token_range(300))
    set_programs_quota(big, 700, of=300)
    for number in range(6):
        big.save(AGENT, token_range(300, 1000 * (number + 1)))
    assert big.save_points() == {"chat": 1, AGENT: 2}
    assert big.inventory.usage().programs_quota_bytes == big.inventory.usage().quota_bytes // 2
    assert big.find(token_range(300, 1000), conversation=AGENT) == RestoreMiss(Reason(ReasonCode.PRUNED))
    with pytest.raises(StoreRefused, match="limit"):
        big.add(AGENT, token_range(900, 10_000))
    big.save("chat", token_range(900, 10_000))


def test_each_device_has_a_limit_of_its_own_and_keeps_its_chats_for_long(big: Bench) -> None:
    big.save("chat", token_range(300))
    set_programs_quota(big, 1000, of=300)
    big.save(AGENT, token_range(300, 1000))
    for number in range(4):
        big.save(f"program/@laptop/chat{number}", token_range(300, 20_000 + 1000 * number))
    big.save("program/@phone/chat", token_range(300, 40_000))
    kept = {"chat": 1, "program/@phone/chat": 1} | {f"program/@laptop/chat{number}": 1 for number in (1, 2, 3)}
    assert big.save_points() == kept | {AGENT: 1}
    big.clock.now += timedelta(days=60)
    big.save("new", token_range(300, 50_000))
    assert big.save_points() == kept | {"new": 1}


def kept(bench: Bench) -> set[str]:
    return {name for name, points in bench.save_points().items() if points}


def test_a_devices_pins_do_not_exempt_it_from_its_limit(big: Bench) -> None:
    names = [f"program/@laptop/chat{number}" for number in range(5)]
    for number, name in enumerate(names):
        big.save(name, token_range(300, 20_000 + 1000 * number))
        big.inventory.set_pinned(name, number != 4)
    set_programs_quota(big, 1000, of=1500)
    assert kept(big) == set(names[1:4]), "of equally old ones, those pinned stay"


def test_rows_shared_with_a_chat_do_not_count_for_programs(big: Bench) -> None:
    for name in ("chat", AGENT):
        big.save(name, token_range(600))
    set_programs_quota(big, 500, of=600)
    assert big.save_points() == {"chat": 1, AGENT: 1}


@pytest.mark.parametrize(("owner", "pinned"), [(f"{EDITOR}/{{}}", False), ("program/@phone/{}", True)])
def test_programs_and_devices_are_pruned_before_the_users_chats(big: Bench, owner: str, pinned: bool) -> None:
    for number in range(3):
        big.save(f"chat {number}", token_range(300, 1000 * number + 1))
    big.clock.now += timedelta(days=7)  # although they were used last
    for number in range(3):
        big.save(owner.format(number), token_range(300, 10_000 + 1000 * number))
        big.inventory.set_pinned(owner.format(number), pinned)
    big.inventory.set_bounds(Bounds(big.overhead_bytes() + 4 * big.block_bytes() // 6 + 20_000, 0))
    assert kept(big) == {"chat 0", "chat 1", "chat 2", owner.format(2)}


def test_the_ends_of_a_programs_threads_and_their_shared_start_are_kept(tmp_path: Path) -> None:
    """One owner has many threads. In a single conversation, all but the newest turn would count as older turns."""
    bench = Bench(tmp_path / "store", HYBRID)
    shared = token_range(400)
    threads = [shared + token_range(300, 1000 * (number + 1)) for number in range(3)]
    for tokens in (shared, *(thread[:length] for thread in threads for length in (550, 600, 650, 700))):
        bench.save(AGENT, tokens)
    assert bench.save_points() == {AGENT: 13}
    plans = map(bench.inventory.plan_prune, range(bench.inventory.usage().physical_bytes, 0, -4096))
    bench.inventory.prune(next(plan for plan in plans if len(plan.save_point_ids) >= 9))
    assert bench.save_points() == {AGENT: 4}
    for tokens in (*threads, shared):
        assert bench.restore((*tokens, 7), can_cut=False, conversation=AGENT) == HYBRID.slot_file(tokens)


def test_unused_save_points_of_programs_expire_after_two_weeks(bench: Bench) -> None:
    for name, start in (("chat", 1), (AGENT, 1000), (EDITOR, 2000)):
        bench.save(name, token_range(300, start))
    bench.clock.now += timedelta(days=10)
    assert bench.restore(token_range(310, 2000), conversation=EDITOR) == FULL.slot_file(token_range(300, 2000))
    bench.clock.now += timedelta(days=5)
    bench.save("new", token_range(300, 3000))
    assert bench.save_points() == {"chat": 1, EDITOR: 1, "new": 1}
    assert bench.find(token_range(310, 1000), conversation=AGENT) == RestoreMiss(Reason(ReasonCode.EXPIRED))


def test_programs_are_not_deleted_as_orphans(tmp_path: Path, bench: Bench) -> None:
    bench.save(AGENT, token_range(300), message="request 1")
    bench.save("gone", token_range(300, 1000), message="of nobody")
    with closing(Database(tmp_path / "chats.db")) as database:
        purge_orphans(bench.store, database)
    assert bench.save_points() == {AGENT: 1}


def test_deleting_a_program_leaves_the_others(bench: Bench) -> None:
    longer = token_range(300) + token_range(200, 1000)
    for owner, tokens in ((AGENT, token_range(300)), (EDITOR, longer), (AGENT, token_range(300, 2000))):
        bench.save(owner, tokens)
    bench.inventory.delete_conversation(AGENT)
    assert bench.save_points() == {EDITOR: 1}
    assert bench.restore((*longer, 7), conversation=EDITOR) == FULL.slot_file(longer)
    bench.save("letter", token_range(290))
    bench.inventory.delete_conversation("letter")
    assert bench.save_points() == {EDITOR: 1}, "a chat hands nothing over to a program"


def reused_tokens(bench: Bench, owner: str) -> int:
    plan = bench.find(token_range(310), conversation=owner)
    return 0 if isinstance(plan, RestoreMiss) else plan.tokens_used


@pytest.mark.parametrize(
    ("owner", "readers"),
    [
        ("letter", {"thesis", "letter"}),
        (AGENT, {AGENT}),
        (DOCUMENTS, {*OWNERS} - {*DEVICES}),
        (LAPTOP, {LAPTOP, "program/@laptop"}),
    ],
)
@pytest.mark.parametrize("absorbed", [True, False])
def test_a_state_is_found_by_its_audience_alone(bench: Bench, owner: str, readers: set[str], absorbed: bool) -> None:
    (bench.save if absorbed else bench.add)(owner, token_range(300))
    assert {reader for reader in OWNERS if reused_tokens(bench, reader)} == readers


def test_imported_memory_and_what_extends_it_serve_its_chat_alone(bench: Bench) -> None:
    bench.save("letter", token_range(300), audience=imported_audience("letter"))
    bench.save("letter", token_range(305), audience=imported_audience("letter"))
    assert {owner: found for owner in OWNERS if (found := reused_tokens(bench, owner))} == {"letter": 305}
    bench.inventory.delete_conversation("letter")
    assert reused_tokens(bench, "letter") == 0


def test_the_longest_readable_prefix_is_found(bench: Bench) -> None:
    for owner, length in ((DOCUMENTS, 200), ("letter", 300), (AGENT, 150)):
        bench.save(owner, token_range(length))
    assert [reused_tokens(bench, owner) for owner in ("thesis", AGENT, EDITOR)] == [300, 200, 200]
    assert bench.plan(token_range(310), conversation=AGENT, can_cut=False).tokens_used == 200


def test_the_chats_of_a_device_are_counted_once_and_deleted_together(bench: Bench) -> None:
    phone, laptop, start = "program/@1", "program/@12", token_range(300)
    for owner, question in ((f"{phone}/a", 1000), (f"{phone}/b", 2000), (laptop, 3000), (f"{laptop}/a", 4000)):
        bench.save(owner, start + token_range(300, question))
    bench.save("chat", start)
    bench.inventory.set_never_save(f"{phone}/c", True)
    used = {usage.conversation_id: usage for usage in bench.inventory.usage().conversations}
    whole = {usage.conversation_id: usage for usage in bench.inventory.usage().devices}
    assert whole.keys() == {phone, laptop}
    assert whole[phone].save_points == 2
    shared = used[f"{phone}/a"].bytes - used[f"{phone}/a"].exclusive_bytes
    assert shared > 0, "both chats have the same beginning"
    assert whole[phone].bytes == used[f"{phone}/a"].bytes + used[f"{phone}/b"].bytes - shared
    freed = bench.inventory.delete_program("@1")
    assert freed == whole[phone].exclusive_bytes
    assert bench.save_points() == {laptop: 1, f"{laptop}/a": 1, "chat": 1}
    assert f"{phone}/c" not in {usage.conversation_id for usage in bench.inventory.usage().conversations}
