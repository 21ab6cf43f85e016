"""Who may reuse a save point: a state that is somebody else's cannot be found, whatever the prompt."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.kvstore.audience import audience_of, imported, is_imported, readable_by
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import token_tree
from kvchat.kvstore.index.index import Index
from kvchat.kvstore.index.schema import MIGRATIONS
from kvchat.kvstore.savepoint import Miss, RestorePlan
from kvchat.system.migrations import migrate
from tests.kvstore.slot_files import FINGERPRINT
from tests.kvstore.slot_files import line as text
from tests.kvstore.true_files import Bench

AGENT, EDITOR, DOCUMENTS = "program/claude-cli", "program/zed", "prepared:3f2a"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


def reused(bench: Bench, by: str) -> int:
    plan = bench.find(text(310), conversation=by)
    return 0 if isinstance(plan, Miss) else plan.tokens_used


def test_each_program_has_its_own_and_chats_share_theirs() -> None:
    assert audience_of("3f2a") == audience_of("77ab") == "chats"
    assert audience_of(AGENT) == audience_of(f"{AGENT}#12") == AGENT != audience_of(EDITOR)
    assert audience_of(DOCUMENTS) in readable_by(AGENT)
    assert audience_of(DOCUMENTS) in readable_by("3f2a")
    assert "chats" not in (*readable_by(AGENT), *readable_by(DOCUMENTS))
    assert is_imported(imported("3f2a"))
    assert imported("3f2a") not in readable_by("77ab")


@pytest.mark.parametrize(
    ("owner", "readers"),
    [
        ("letter", {"thesis", "letter"}),
        (AGENT, {AGENT}),
        (DOCUMENTS, {"thesis", "letter", AGENT, EDITOR, DOCUMENTS}),
    ],
)
@pytest.mark.parametrize("absorbed", [True, False])
def test_a_state_is_found_by_its_audience_alone(bench: Bench, owner: str, readers: set[str], absorbed: bool) -> None:
    (bench.save if absorbed else bench.take)(owner, text(300))
    everybody = ("thesis", "letter", AGENT, EDITOR, DOCUMENTS)
    assert {one for one in everybody if reused(bench, one)} == readers


def test_imported_memory_serves_its_chat_alone_and_what_grows_from_it_too(bench: Bench) -> None:
    bench.save("letter", text(300), audience=imported("letter"))
    bench.save("letter", text(305), audience=imported("letter"))
    assert reused(bench, "letter") == 305
    for stranger in ("thesis", AGENT, DOCUMENTS):
        assert reused(bench, stranger) == 0
    bench.store.delete_conversation("letter")
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
    bench.store.delete_conversation("letter")
    assert [(one.conversation_id, one.save_points) for one in bench.store.usage().conversations] == [(AGENT, 1)]


def test_an_index_from_before_is_parted_by_owner(tmp_path: Path) -> None:
    path, prompt = tmp_path / "index.db", text(600)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrate(db, path, MIGRATIONS[:8], "", keep_copy=False)
        db.execute("INSERT INTO fingerprints VALUES (1, ?)", (index_points._facts(FINGERPRINT),))
        names = ("letter", AGENT, DOCUMENTS, "thesis")
        db.executemany("INSERT INTO conversations (id, name) VALUES (?, ?)", enumerate(names, 1))
        for number, segment in enumerate(token_tree._chain(token_tree.pack_tokens(prompt)), 1):
            values = number, number - 1, segment.name, segment.end, segment.packed
            db.execute("INSERT INTO nodes VALUES (?, 1, ?, ?, ?, ?)", values)
        ends = ((1, 3), (2, 3), (2, 1), (3, 2), (4, 1))  # conversation, node
        for conversation, node in ends:
            db.execute(
                "INSERT INTO save_points (conversation_id, fingerprint_id, node_id, n_tokens, owner, file_size,"
                " prefill_ms, created_at, last_used_at) VALUES (?, 1, ?, 1, 'staging', 1, 0, 0, 0)",
                (conversation, node),
            )
    index = Index(path, lambda damaged: pytest.fail("it is whole"))
    with index.read() as db:
        found = {}
        for reader in ("letter", "other", AGENT, EDITOR):
            trees = index_points.trees(db, 1, readable_by(reader))
            places = list(token_tree.whole_places(db, trees, prompt))
            ids = {point for place in places for point in token_tree.at(db, place.node_id, "staging")}
            found[reader] = sorted(ids)
        lengths = [
            len(token_tree.tokens_of(db, row[0])) for row in db.execute("SELECT node_id FROM save_points ORDER BY id")
        ]
        index.check()
    index.close()
    assert found == {"letter": [1, 4, 5], "other": [1, 4, 5], AGENT: [2, 3, 4], EDITOR: [4]}
    assert lengths == [600, 600, 256, 512, 256]
