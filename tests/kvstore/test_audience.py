"""Who may reuse a save point: a state that is somebody else's cannot be found, whatever the prompt."""

from __future__ import annotations

import pytest

from kvchat.kvstore.savepoint import Miss, RestorePlan, imported_audience
from tests.kvstore.slot_files import line as text
from tests.kvstore.true_files import Bench

AGENT, EDITOR, DOCUMENTS = "program/claude-cli", "program/zed", "prepared:3f2a"


def reused(bench: Bench, by: str) -> int:
    plan = bench.find(text(310), conversation=by)
    return 0 if isinstance(plan, Miss) else plan.tokens_used


@pytest.mark.parametrize(
    ("owner", "readers"),
    [("letter", {"thesis", "letter"}), (AGENT, {AGENT}), (DOCUMENTS, {"thesis", "letter", AGENT, EDITOR, DOCUMENTS})],
)
@pytest.mark.parametrize("absorbed", [True, False])
def test_a_state_is_found_by_its_audience_alone(bench: Bench, owner: str, readers: set[str], absorbed: bool) -> None:
    (bench.save if absorbed else bench.take)(owner, text(300))
    everybody = ("thesis", "letter", AGENT, EDITOR, DOCUMENTS)
    assert {one for one in everybody if reused(bench, one)} == readers


def test_imported_memory_serves_its_chat_alone_and_what_grows_from_it_too(bench: Bench) -> None:
    bench.save("letter", text(300), audience=imported_audience("letter"))
    bench.save("letter", text(305), audience=imported_audience("letter"))
    assert reused(bench, "letter") == 305
    for stranger in ("thesis", AGENT, DOCUMENTS):
        assert reused(bench, stranger) == 0
    bench.inventory.delete_conversation("letter")
    assert reused(bench, "letter") == 0


def test_the_longest_wins_whoever_it_belongs_to(bench: Bench) -> None:
    bench.save(DOCUMENTS, text(200))
    bench.save("letter", text(300))
    bench.save(AGENT, text(150))
    assert (reused(bench, "thesis"), reused(bench, AGENT), reused(bench, EDITOR)) == (300, 200, 200)
    whole = bench.find(text(310), conversation=AGENT, can_cut=False)
    assert isinstance(whole, RestorePlan)
    assert whole.tokens_used == 200


def test_a_deleted_chat_leaves_nothing_to_a_program(bench: Bench) -> None:
    """That begins with the same words: its memory went to whoever went on from there."""
    bench.save("letter", text(300))
    bench.save(AGENT, text(310))
    bench.inventory.delete_conversation("letter")
    assert [(one.conversation_id, one.save_points) for one in bench.inventory.usage().conversations] == [(AGENT, 1)]
