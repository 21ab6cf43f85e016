"""`kvchat store` on a store filled without an engine."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvchat.chat.record.database import Database
from kvchat.cli.store import format_plan
from kvchat.kvstore.disk import tree_size
from kvchat.kvstore.savepoint import PrunedConversation, PrunePlan
from kvchat.system.paths import Paths
from tests.kvstore.store_bench import FULL, Bench
from tests.store_contents import StoreContents, spoil

SHARED = tuple(range(1, 601))  # leading tokens of both conversations


@dataclass(frozen=True)
class Filled:
    """A kvchat folder with two conversations in its store: one with an older turn, both sharing rows."""

    home: Path
    thesis: str
    letter: str
    letters_block: Path  # nothing else needs it

    @property
    def kept(self) -> StoreContents:
        return StoreContents(self.home)

    def open(self) -> Bench:
        return Bench(self.kept.folder)

    def save_point_counts(self) -> dict[str, int]:
        counts = {self.thesis: 0, self.letter: 0}
        for point in self.kept.save_points():
            counts[point.conversation_id] += 1
        return counts


@pytest.fixture
def filled(paths: Paths) -> Filled:
    with closing(Database(paths.ensure().database)) as database:
        thesis = database.create_conversation("My thesis on rivers").id
        letter = database.create_conversation("A letter").id
    bench = Bench(paths.save_points)
    bench.save(thesis, SHARED)
    bench.save(thesis, SHARED + tuple(range(2000, 2900)))
    before = bench.block_files()
    bench.save(letter, SHARED + tuple(range(5000, 5400)))
    letters_block = next(file for file in bench.block_files() if file not in before)
    bench.store.close()
    return Filled(paths.data.parent, thesis, letter, letters_block)


def test_usage_matches_the_files(filled, run_json):
    figures = run_json("store")
    files = [FULL.slot_file(point.tokens) for point in filled.kept.save_points()]
    on_disk = sum(file.stat().st_size for file in filled.kept.block_files())
    unique_rows = (600 + 900 + 400) * FULL.row_bytes
    assert (figures["save_points"], figures["conversations"]) == (3, 2)
    assert figures["logical_bytes"] == sum(map(len, files))
    assert on_disk <= figures["physical_bytes"] <= on_disk + 500_000, "blocks and the index"
    assert 0 < figures["other_bytes"] <= figures["physical_bytes"] - on_disk, "not part of any chat"
    assert figures["unique_rows_bytes"] == pytest.approx(unique_rows, rel=0.15)
    assert figures["bytes_written"] >= on_disk
    sizes = "quota free free_floor logical physical unique_rows warm chat programs_quota other shared_savings"
    written = {"bytes_written", "bytes_written_today", "staged", "problem"}
    counted = {"save_points", "conversations", "by_conversation"}
    assert set(figures) == {f"{name}_bytes" for name in sizes.split()} | written | counted
    thesis, letter = figures["by_conversation"]
    keys = "conversation_id title bytes save_points last_used_at exclusive_bytes shared_bytes tokens model pinned"
    assert set(thesis) == {*keys.split(), "never_save", "imported", "reading", "seconds_saved"}
    assert (thesis["title"], thesis["save_points"]) == ("My thesis on rivers", 2)
    assert (letter["conversation_id"], letter["title"]) == (filled.letter, "A letter")
    assert thesis["shared_bytes"] == letter["shared_bytes"] > 0
    assert thesis["exclusive_bytes"] > letter["exclusive_bytes"] > 0


def test_apps_are_named_counted_and_forgotten(filled, run_json, run):
    bench = filled.open()
    for start in (7000, 8000):
        bench.save("program/claude-cli", tuple(range(start, start + 300)))
    bench.store.close()
    lines = run("store").out.splitlines()
    assert lines[0].endswith("5 in 2 chats and 1 app")
    assert any(line.startswith("API server") and line.endswith("allowed") for line in lines)
    assert any("App: claude-cli" in line and "2 save points" in line for line in lines)
    assert "zed" in run("store", "forget", "zed", code=1).err
    freed = run_json("store", "forget", "claude-cli")
    assert freed["program"] == "claude-cli"
    assert freed["bytes_freed"] > 0
    assert sum(filled.save_point_counts().values()) == 3


def test_a_dry_run_deletes_nothing(filled, monkeypatch, run):
    monkeypatch.setattr(Database, "prefill_timings", lambda self, model: [(1000, 1000.0)])
    before = filled.kept.block_files()
    text = run("store", "prune", "--to", "0", "--dry-run").out
    assert "Save points to delete: 3" in text
    assert text.count("none left") == 2
    assert "time to reprocess: about 2 s" in text, "of both, at 1 ms a token"
    assert run("store", "prune", "--to", "1GB").out.startswith("Nothing to delete")
    assert filled.kept.block_files() == before
    assert filled.save_point_counts() == {filled.thesis: 2, filled.letter: 1}


def test_pruning_does_what_its_dry_run_showed(filled, run_json):
    before = run_json("store")
    on_disk = sum(map(tree_size, filled.kept.block_files()))
    target = before["physical_bytes"] - 10_000
    plan = run_json("store", "prune", "--to", str(target), "--dry-run")
    done = run_json("store", "prune", "--to", str(target))
    assert plan["save_points"] >= 1
    assert plan | {"dry_run": False} == done
    keys = "dry_run target_bytes save_points bytes_freed bytes_left reading by_conversation"
    assert set(done) == set(keys.split())
    keys = "conversation_id title save_points bytes_freed save_points_left reading"
    assert set(done["by_conversation"][0]) == set(keys.split())
    deleted = {chat["conversation_id"]: chat for chat in done["by_conversation"]}
    assert sum(chat["save_points"] for chat in deleted.values()) == done["save_points"]
    assert sum(filled.save_point_counts().values()) == 3 - done["save_points"]
    assert all(filled.save_point_counts()[id] == chat["save_points_left"] for id, chat in deleted.items())
    left = sum(map(tree_size, filled.kept.block_files()))
    assert on_disk - left == done["bytes_freed"] > 0
    assert left > 0, "no more than needed"
    assert run_json("store")["physical_bytes"] <= target


def test_pinned_save_points_stay_and_are_mentioned(filled, run):
    bench = filled.open()
    bench.inventory.set_pinned(filled.thesis, True)
    bench.store.close()
    text = run("store").out
    assert "3 in 2 chats" in text
    (thesis,) = [line for line in text.splitlines() if "My thesis on rivers" in line]
    assert "2 save points" in thesis
    assert "always kept" in thesis
    text = run("store", "prune", "--to", "0").out
    assert text.index("A letter") < text.index("Freed"), "shown before it is deleted"
    assert "because the index and always-kept save points" in text
    assert filled.save_point_counts() == {filled.thesis: 2, filled.letter: 0}


def test_an_unknown_time_is_not_shown_as_zero():
    plan = PrunePlan(("1",), 5_000_000, (PrunedConversation("a", 1, 5_000_000, 0),), 0)
    lines = format_plan(plan, {"a": "A letter"}, 0, dry_run=True)
    assert lines[0] == "Save points to delete: 1 (5 MB); time to reprocess: unknown."
    assert "0 ms" not in "\n".join(lines)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_bad_block_is_reported_with_the_chats_that_lose_save_points(filled, run_json, damage, run):
    files = filled.kept.block_files()
    size = sum(file.stat().st_size for file in files)
    report = run_json("store", "verify")
    assert (report["blocks"], report["bytes"], report["bad_blocks"]) == (len(files), size, 0)
    spoil(filled.letters_block, damage)
    report = run_json("store", "verify", code=1)
    assert (report["bad_blocks"], report["clean"]) == (1, False)
    assert set(report) == {"blocks", "bytes", "bad_blocks", "clean", "by_conversation"}
    (loss,) = report["by_conversation"]
    assert set(loss) == {"conversation_id", "title", "save_points", "reason", "code", "save_points_left", "cold"}
    assert (loss["title"], loss["save_points"], loss["cold"]) == ("A letter", 1, True)
    assert filled.save_point_counts() == {filled.thesis: 2, filled.letter: 0}
    report = run_json("store", "verify")
    assert (report["clean"], report["by_conversation"]) == (True, [])
    assert "no damage found" in run("store", "verify").out
