"""Texts of the storage window."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from kvchat.kvstore.savepoint import ConversationUsage, PrunedConversation, PrunePlan, StoreUsage
from kvchat.text.formatting import TimeRange
from kvchat.text.language import set_language
from kvchat.ui.storage.usage_summary import (
    describe_expiry,
    describe_limits,
    describe_loss,
    describe_plan,
    describe_sharing,
    describe_split,
    describe_use,
)

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
USAGE = ConversationUsage(
    "a", 100_000_000, 3, NOW - timedelta(minutes=5), 80_000_000, 20_000_000, reprocessing=TimeRange(34, 34)
)
STORE = StoreUsage((USAGE,), 10**9, 10**9, 10**9, 3, 40_000_000, 10_000_000)


def test_other_programs_are_told_in_words_of_their_own() -> None:
    program = replace(USAGE, conversation_id="program/zed")
    assert describe_use(program, NOW) == "3 prompts saved · used 5 min ago · reprocessing: about 34 s"
    store = replace(STORE, conversations=(program,), programs_quota_bytes=5 * 10**8)
    limits = describe_limits(store, None)
    assert "is deleted before the memory of chats. It is limited to 500 MB, and so is the memory of each dev" in limits
    assert "apps" not in describe_limits(STORE, None)
    assert describe_expiry(store, 1, NOW + timedelta(days=9)).startswith("No chat would have to be reprocessed")
    lost = PrunedConversation("program/zed", 2, 5_000_000, 1)
    assert describe_loss(lost) == "would delete 2 prompts (5 MB)"
    plan = PrunePlan(("1", "2"), 5_000_000, (lost,), 10)
    assert describe_plan(plan, 10) == "Frees 5 MB: 2 prompts from apps."


@pytest.mark.usefixtures("catalogues")
def test_in_japanese_no_space_and_no_narrow_mark_stands_between_the_parts() -> None:
    lost = PrunedConversation("a", 2, 5_000_000, 0)
    set_language("ja")
    try:
        told = describe_plan(PrunePlan(("1", "2"), 5_000_000, (lost, replace(lost, save_points_left=1)), 10), 100)
        told += describe_limits(replace(STORE, conversations=(USAGE,)), 30)
    finally:
        set_language("en")
    assert "；" in told
    assert "; " not in told
    assert "。 " not in told


def test_sharing() -> None:
    assert describe_split(USAGE) == "80 MB not shared, 20 MB shared"
    assert describe_split(replace(USAGE, shared_bytes=0)) == "nothing shared"
    assert describe_split(replace(USAGE, bytes=0)) == "nothing saved"
    assert describe_sharing(replace(STORE, logical_bytes=9_000_000)).startswith("Chats share some chat memory")
    assert describe_sharing(STORE) == "30 MB saved by deduplication (75%). Without it: 40 MB."
    assert "(more than 99%)" in describe_sharing(replace(STORE, logical_bytes=10**12))
    alone = replace(USAGE, exclusive_bytes=100_000_000, shared_bytes=0)
    assert "No chat memory" in describe_sharing(replace(STORE, conversations=(alone,), logical_bytes=9_000_000))
    assert describe_sharing(replace(STORE, save_points=0)) == ""


def test_a_plan() -> None:
    thinned = PrunedConversation("a", 1, 5_000_000, 2)
    cold = PrunedConversation("b", 3, 7_000_000, 0, TimeRange(40, 90))
    plan = PrunePlan(("1", "2", "3", "4"), 12_000_000, (thinned, cold, replace(cold, conversation_id="c")), 9)
    assert describe_plan(plan, 10) == (
        "Frees 12 MB: 1 old turn of 1 chat; 2 chats must be reprocessed; reprocessing everything would take 1 to 3 min."
    )
    assert describe_plan(replace(plan, bytes_left=19_000_000), 70_000_000).endswith(
        " This leaves 19 MB, because the memory of a reply can only be deleted as a whole."
    )
    assert describe_loss(thinned) == "would delete 1 old turn (5 MB)"
    assert describe_loss(cold) == "reprocessing would take 1 to 2 min"
    assert describe_loss(replace(cold, reprocessing=None)) == "would have to be reprocessed"
    nothing = PrunePlan((), 0, (), 5_000_000)
    assert describe_plan(nothing, 5_000_000) == "Nothing would be deleted."
    assert describe_plan(nothing, 1).startswith("Nothing would be deleted. At least 5 MB must remain: chat memory")


def test_what_a_maximum_age_takes() -> None:
    old = replace(USAGE, conversation_id="b", last_used_at=NOW - timedelta(days=40))
    store = replace(STORE, conversations=(USAGE, old, replace(old, conversation_id="c", pinned=True)))
    assert describe_expiry(store, 30, NOW) == (
        "1 chat must be reprocessed; reprocessing everything would take about 34 s. Memory of old turns in "
        "other chats may also be deleted. Messages are not deleted."
    )
    assert describe_expiry(store, 50, NOW) == (
        "No chat would have to be reprocessed now, but old turns may be deleted. Messages are not deleted."
    )
