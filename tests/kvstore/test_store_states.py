"""Any sequence of save, branch, evict, crash and verify keeps every remaining save point byte-exact."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvchat.kvstore import disk
from kvchat.kvstore.savepoint import Miss, RestorePlan, StagedFile, Tier
from tests.kvstore.store_bench import FULL, HYBRID, WINDOW, Bench, Model

pytestmark = pytest.mark.slow
conversations = st.sampled_from(["thesis", "letter"])
models = st.sampled_from([FULL, WINDOW, HYBRID])


class StoreMachine(RuleBasedStateMachine):
    """Drives a store, and knows what every save point must hold."""

    @initialize(model=models, memory=st.sampled_from([0, 200_000]))
    def open(self, model: Model, memory: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Bench(self.folder / "store", model, memory=memory)
        self.turns: list[tuple[int, ...]] = [(1, 2, 3)]

    @rule(
        conversation=conversations,
        turn=st.integers(0, 20),
        cut=st.integers(0, 300),
        new=st.integers(1, 300),
        salt=st.integers(0, 3),
        absorb=st.booleans(),
    )
    def save(self, conversation: str, turn: int, cut: int, new: int, salt: int, absorb: bool) -> None:
        before = self.turns[turn % len(self.turns)]
        tokens = (*before[: len(before) - cut % len(before)], *range(salt * 1000, salt * 1000 + new))
        self.turns.append(tokens)
        self.bench.add(conversation, tokens)
        if absorb:
            assert not self.bench.store.absorb_pending().refused

    @rule(share=st.floats(0, 1))
    def evict(self, share: float) -> None:
        used = sum(path.stat().st_size for path in self.bench.block_files())
        plan = self.bench.inventory.plan_prune(int(used * share))
        assert self.bench.inventory.prune(plan) == plan.bytes_freed

    @rule(conversation=conversations)
    def delete(self, conversation: str) -> None:
        self.bench.inventory.delete_conversation(conversation)

    @rule()
    def restart(self) -> None:
        self.bench.reopen()

    @rule()
    def crash(self) -> None:
        self.bench.inventory.index.close()
        self.bench.use(self.bench.open())
        self.bench.slots = self.bench.store.staging.slot_folder()

    @rule()
    def verify(self) -> None:
        report = self.bench.inventory.verify()
        assert report.is_clean
        assert report.losses == ()

    @invariant()
    def every_save_point_is_exact(self) -> None:
        """Whatever is found for a turn holds that turn's rows, whole, cut and warm."""
        model, store = self.bench.model, self.bench.store
        for tokens in self.turns[-6:]:
            for can_cut in (False, True):
                plan = self.bench.find((*tokens, 4242), can_cut=can_cut)
                if isinstance(plan, Miss):
                    continue
                for tier in (plan.tier, Tier.DISK):
                    again = RestorePlan(plan.save_point, plan.tokens_used, tier, plan.bytes)
                    staged = store.restorer.stage(again, self.bench.slots)
                    assert isinstance(staged, StagedFile), staged
                    held = plan.save_point.tokens[: staged.n_tokens]
                    reordered = model is WINDOW and staged.n_tokens < plan.save_point.n_tokens  # no longer a ring
                    assert self.bench.read(staged) == model.slot_file(held) or reordered
                    assert held[: plan.tokens_used] == (*tokens, 4242)[: plan.tokens_used]

    @invariant()
    def every_sum_is_what_its_parts_come_to(self) -> None:
        """The sums kept by triggers, counted anew here; and what the store says it takes, as the disk says it."""
        usage = self.bench.inventory.usage()
        assert usage.physical_bytes == disk.tree_size(self.bench.folder)
        with self.bench.inventory.index.read() as db:
            rows = db.execute(
                "WITH RECURSIVE up (link, conversation) AS (SELECT link_id, conversation_id FROM save_points"
                " UNION SELECT parent_id, conversation FROM up JOIN links ON id = link)"
                " SELECT DISTINCT c.name, b.name FROM up JOIN links l ON l.id = link JOIN blocks b ON b.id = block_id"
                " JOIN conversations c ON c.id = conversation"
            ).fetchall()
            staged = dict(
                db.execute(
                    "SELECT name, sum(file_size) FROM save_points s JOIN conversations c ON c.id = conversation_id"
                    " WHERE link_id IS NULL GROUP BY 1"
                ).fetchall()
            )
            row_bytes = db.execute("SELECT coalesce(sum(size * NOT residue), 0) FROM blocks").fetchone()[0]
        blocks = self.bench.inventory.blocks
        holders = Counter(block for _, block in rows)
        for one in usage.conversations:
            held = {block: blocks.find(block) for name, block in rows if name == one.conversation_id}
            own = sum(size for block, size in held.items() if holders[block] == 1)
            waiting = staged.get(one.conversation_id, 0)
            assert (one.bytes, one.exclusive_bytes) == (sum(held.values()) + waiting, own + waiting)
        assert usage.unique_rows_bytes == row_bytes

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.store.close()
            shutil.rmtree(self.folder, ignore_errors=True)  # what is made ready in the background may still come


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=25, stateful_step_count=15, suppress_health_check=list(HealthCheck))
