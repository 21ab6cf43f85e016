"""Audiences: the state of somebody else is not found, whatever the prompt."""

from __future__ import annotations

import pytest

from kvchat.kvstore.savepoint import Miss, imported_audience
from tests.kvstore.store_bench import Bench, token_range

AGENT, EDITOR, DOCUMENTS = "program/claude-cli", "program/zed", "prepared:3f2a"
OWNERS = ("thesis", "letter", AGENT, EDITOR, DOCUMENTS)


def reused_tokens(bench: Bench, owner: str) -> int:
    plan = bench.find(token_range(310), conversation=owner)
    return 0 if isinstance(plan, Miss) else plan.tokens_used


@pytest.mark.parametrize(
    ("owner", "readers"), [("letter", {"thesis", "letter"}), (AGENT, {AGENT}), (DOCUMENTS, set(OWNERS))]
)
@pytest.mark.parametrize("absorbed", [True, False])
def test_a_state_is_found_by_its_audience_alone(bench: Bench, owner: str, readers: set[str], absorbed: bool) -> None:
    (bench.save if absorbed else bench.add)(owner, token_range(300))
    assert {reader for reader in OWNERS if reused_tokens(bench, reader)} == readers


def test_imported_memory_and_what_extends_it_serve_its_chat_alone(bench: Bench) -> None:
    bench.save("letter", token_range(300), audience=imported_audience("letter"))
    bench.save("letter", token_range(305), audience=imported_audience("letter"))
    assert [reused_tokens(bench, owner) for owner in OWNERS] == [0, 305, 0, 0, 0]
    bench.inventory.delete_conversation("letter")
    assert reused_tokens(bench, "letter") == 0


def test_the_longest_readable_prefix_is_found(bench: Bench) -> None:
    for owner, length in ((DOCUMENTS, 200), ("letter", 300), (AGENT, 150)):
        bench.save(owner, token_range(length))
    assert [reused_tokens(bench, owner) for owner in ("thesis", AGENT, EDITOR)] == [300, 200, 200]
    assert bench.plan(token_range(310), conversation=AGENT, can_cut=False).tokens_used == 200


def test_a_deleted_chat_hands_nothing_over_to_a_program(bench: Bench) -> None:
    bench.save("letter", token_range(300))
    bench.save(AGENT, token_range(310))
    bench.inventory.delete_conversation("letter")
    assert bench.save_points() == {AGENT: 1}
