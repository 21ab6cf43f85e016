"""Any sequence of save, branch, evict, crash and verify keeps every remaining save point byte-exact."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvchat.kvstore import disk
from kvchat.kvstore.savepoint import RestoreMiss, Tier
from tests.kvstore.store_bench import FULL, HYBRID, WINDOW, Bench, Model, token_range

pytestmark = pytest.mark.slow
conversations = st.sampled_from(["thesis", "letter"])
models = st.sampled_from([FULL, WINDOW, HYBRID])

BLOCKS_OF_CONVERSATIONS = """
    WITH RECURSIVE up (link, conversation) AS (
        SELECT link_id, conversation_id FROM save_points
        UNION SELECT parent_id, conversation FROM up JOIN links ON id = link
    )
    SELECT DISTINCT c.name, b.name FROM up JOIN links l ON l.id = link JOIN blocks b ON b.id = block_id
    JOIN conversations c ON c.id = conversation
"""
UNABSORBED_BYTES = """
    SELECT name, sum(file_size) FROM save_points s JOIN conversations c ON c.id = conversation_id
    WHERE link_id IS NULL GROUP BY 1
"""


class StoreMachine(RuleBasedStateMachine):
    """Drives a store, and knows the expected contents of every save point."""

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
        tokens = before[: len(before) - cut % len(before)] + token_range(new, salt * 1000)
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

    @rule()
    def verify(self) -> None:
        report = self.bench.inventory.verify()
        assert (report.is_clean, report.losses) == (True, ())

    @invariant()
    def save_points_are_exact(self) -> None:
        """Files found for a turn hold that turn's rows: whole, cut and warm."""
        model = self.bench.model
        for tokens in self.turns[-6:]:
            prompt = (*tokens, 4242)
            for can_cut in (False, True):
                plan = self.bench.find(prompt, can_cut=can_cut)
                for tier in (plan.tier, Tier.DISK) if not isinstance(plan, RestoreMiss) else ():
                    staged = self.bench.stage(plan, tier)
                    held = plan.save_point.tokens[: staged.n_tokens]
                    reordered = model is WINDOW and staged.n_tokens < plan.save_point.n_tokens  # no longer a ring
                    assert self.bench.read(staged) == model.slot_file(held) or reordered
                    assert held[: plan.tokens_used] == prompt[: plan.tokens_used]

    @invariant()
    def sums_are_exact(self) -> None:
        """The store's sums equal those counted here, and the store's size is that on disk."""
        usage = self.bench.inventory.usage()
        assert usage.physical_bytes == disk.tree_size(self.bench.folder)
        with self.bench.inventory.index.read() as db:
            rows = db.execute(BLOCKS_OF_CONVERSATIONS).fetchall()
            unabsorbed = dict(db.execute(UNABSORBED_BYTES).fetchall())
            row_bytes = db.execute("SELECT coalesce(sum(size * NOT residue), 0) FROM blocks").fetchone()[0]
        holders = Counter(block for _, block in rows)
        for chat in usage.conversations:
            held = {
                b: self.bench.inventory.blocks.disk_usage(b) or 0 for name, b in rows if name == chat.conversation_id
            }
            own = sum(size for block, size in held.items() if holders[block] == 1)
            waiting = unabsorbed.get(chat.conversation_id, 0)
            assert (chat.bytes, chat.exclusive_bytes) == (sum(held.values()) + waiting, own + waiting)
        assert usage.unique_rows_bytes == row_bytes

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.store.close()
            shutil.rmtree(self.folder, ignore_errors=True)  # the background thread may still create files


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=25, stateful_step_count=15, suppress_health_check=list(HealthCheck))
