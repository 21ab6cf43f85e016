"""The block store: stores every row once, restores every file byte for byte, finds the longest known prefix."""

import os
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from kvchat.errors import KvchatError
from kvchat.kvstore.blocks.layout import with_masked_rows
from kvchat.kvstore.exchange import import_memory, read_blocks, stored_manifest
from kvchat.kvstore.index.index import check_store
from kvchat.kvstore.savepoint import (
    GB,
    Bounds,
    Predecessor,
    RestoreMiss,
    RestorePlan,
    StoreRefused,
    Tier,
    Tokens,
    default_quota,
)
from kvchat.text.reasons import Reason, ReasonCode
from tests.kvstore.blocks.test_parser import carry_out
from tests.kvstore.store_bench import FINGERPRINT, FULL, HYBRID, WINDOW, Bench, Model, parse_bytes, token_range
from tests.systems import needs_memory_folder, needs_modes

TURNS = [token_range(length) for length in (30, 255, 256, 300, 301, 700)]


@pytest.mark.parametrize("model", [FULL, WINDOW, HYBRID, Model(layers=1, row_size=8)])
@pytest.mark.parametrize("with_predecessor", [False, True])
def test_every_turn_is_restored_byte_for_byte(tmp_path: Path, model: Model, with_predecessor: bool) -> None:
    bench = Bench(tmp_path / "store", model, memory=10**9 * with_predecessor)
    predecessor: Predecessor | None = None
    for tokens in TURNS:
        point = bench.save("thesis", tokens, predecessor=predecessor)
        predecessor = Predecessor(point.id, len(tokens)) if with_predecessor else None
    branch = token_range(280) + token_range(300, start=5000)
    bench.save("thesis", branch, predecessor=predecessor and replace(predecessor, unchanged_tokens=280))
    unknown = token_range(100, start=7000)
    unknown_file = model.slot_file(unknown) + b"something new"  # its layout is unknown
    bench.save("letter", unknown, data=unknown_file)
    for reopened in (False, True):
        if reopened:
            bench.reopen()
        for tokens in (*TURNS, branch):
            assert bench.restore((*tokens, 9999), can_cut=False) == model.slot_file(tokens)
        assert bench.restore((*unknown, 9999), can_cut=False) == unknown_file
    assert bench.inventory.verify().is_clean


@needs_memory_folder
@pytest.mark.parametrize("new_mtime", [True, False])
def test_a_changed_warm_file_is_not_given_to_the_engine(roomy: Bench, tmp_path: Path, new_mtime: bool) -> None:
    roomy.save("thesis", token_range(300))
    (warm,) = (tmp_path / "memory").glob("*/*.slot")
    before = warm.stat()
    warm.write_bytes(bytes(before.st_size))
    if not new_mtime:
        os.utime(warm, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert roomy.restore(token_range(310)) == FULL.slot_file(token_range(300))
    roomy.store.close()
    assert list((tmp_path / "memory").iterdir()) == []


@pytest.mark.parametrize("shared", [249, 1800])
def test_chats_share_a_system_prompt_that_ends_inside_a_block(big: Bench, shared: int) -> None:
    for chat in range(4):
        big.save(f"chat {chat}", token_range(shared) + token_range(600, start=10_000 * (chat + 1)))
    usage = big.inventory.usage()
    assert usage.unique_rows_bytes == (shared + 4 * 600) * big.model.row_bytes
    assert usage.conversations[0].exclusive_bytes >= 600 * big.model.row_bytes
    assert usage.conversations[0].shared_bytes >= shared * big.model.row_bytes
    manifest = stored_manifest(big.folder, "chat 3")
    assert manifest is not None
    assert import_memory(big.inventory, "imported", manifest, read_blocks(big.folder, manifest)) == 0
    assert big.inventory.usage().unique_rows_bytes == usage.unique_rows_bytes
    big.reopen()  # nothing is warm: a new chat gets the shared prompt alone
    assert big.restore(token_range(shared) + (7,) * 50) == big.model.slot_file(token_range(shared))


def test_the_longest_known_prefix_of_any_chat_is_found(bench: Bench) -> None:
    bench.save("thesis", token_range(300))
    bench.save("letter", token_range(200) + token_range(200, start=5000))
    plan = bench.plan(token_range(200) + token_range(150, start=5000))
    assert (plan.save_point.conversation_id, plan.tokens_used) == ("letter", 350)
    prompts = (token_range(290), token_range(400), token_range(240) + (1,) * 90)
    assert [bench.plan(prompt).tokens_used for prompt in prompts] == [290, 300, 240]


def test_without_cutting_the_longest_whole_save_point_is_restored(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", HYBRID)
    for length in (100, 300, 500):
        bench.save("thesis", token_range(length))
    assert bench.plan(token_range(499), can_cut=False).tokens_used == 300
    assert bench.plan(token_range(300), can_cut=False).tokens_used == 100  # a token must be left to evaluate
    assert bench.restore(token_range(400), can_cut=False) == HYBRID.slot_file(token_range(300))
    assert bench.find(token_range(90) + (7,) * 50, can_cut=False) == RestoreMiss(Reason(ReasonCode.CANNOT_GO_BACK))


@pytest.mark.parametrize("length", [33, 255, 256, 257, 400])
def test_a_part_is_composed_for_exactly_the_shared_prefix(bench: Bench, length: int) -> None:
    for turn in (100, 300, 500):
        bench.save("thesis", token_range(turn))
    bench.reopen()  # nothing is warm now
    plan = bench.plan(token_range(length) + (7777,) * 40)
    staged = bench.stage(plan)
    assert (plan.tokens_used, staged.n_tokens) == (length, length)
    assert bench.read(staged) == FULL.slot_file(token_range(length))


def with_missing_row(length: int) -> bytes:
    """Return what the engine saves for so many tokens, with the row that its window lacks."""
    saved = WINDOW.slot_file(token_range(length))
    return carry_out(with_masked_rows(parse_bytes(saved), WINDOW.window), saved)


def test_an_engine_gets_the_row_missing_in_a_window(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", WINDOW, memory=10**9)
    bench.save("short", token_range(WINDOW.window))
    complete = WINDOW.slot_file(token_range(WINDOW.window))
    assert bench.restore(token_range(130), window=WINDOW.window) == complete, "none is missing"
    bench.add("thesis", token_range(120))
    assert bench.restore(token_range(130), window=WINDOW.window) == with_missing_row(120), "not yet absorbed"
    assert bench.restore(token_range(130)) == WINDOW.slot_file(token_range(120))


@needs_memory_folder
@pytest.mark.parametrize("lengths", [(70, 90, 120), (20, 30)])
def test_the_missing_window_row_is_added_in_the_background(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    bench = Bench(tmp_path / "store", WINDOW, memory=10**9, window=WINDOW.window)
    for length in lengths:
        bench.add("thesis", token_range(length))
    bench.store.absorb_pending()
    assert len(list((tmp_path / "memory").glob("*/*.slot"))) == 1, "no engine can use the others"
    plan = bench.plan(token_range(130))
    warm = bench.stage(plan, window=WINDOW.window)
    assert warm.tier is Tier.WARM
    data = bench.read(warm)
    bench.reopen()  # nothing is warm now: composed anew
    for tier in (Tier.DISK, Tier.WARM):
        staged = bench.stage(plan, Tier.DISK, window=WINDOW.window)
        assert (staged.tier, bench.read(staged)) == (tier, data)


def test_every_miss_has_a_reason(bench: Bench) -> None:
    def reason(prompt: Tokens, **changes: str) -> Reason:
        fingerprint = replace(FINGERPRINT, **changes) if changes else FINGERPRINT
        result = bench.restorer.find(fingerprint, prompt, can_cut=True, conversation_id="thesis")
        assert isinstance(result, RestoreMiss)
        return result.reason

    tokens = token_range(100)
    assert reason(tokens) == Reason(ReasonCode.NOTHING_SAVED)
    point = bench.save("thesis", tokens)
    assert reason(tokens, model="qwen:1") == Reason(ReasonCode.OTHER_MODEL)
    settings = (Reason(ReasonCode.KV_TYPE_K),)
    assert reason(tokens, kv_type_k="q8_0") == Reason(ReasonCode.OTHER_SETTINGS, {"settings": settings})
    other = token_range(5) + token_range(95, start=500)
    assert reason(other) == Reason(ReasonCode.BEGINS_DIFFERENTLY, {"shared": 5})
    hollow = Reason(ReasonCode.HOLLOW_RESTORE, {"accepted": 100, "reused": 0})
    bench.inventory.delete_unusable(point.id, hollow)
    assert reason(tokens) == Reason(ReasonCode.SET_ASIDE, {"reason": hollow})
    assert bench.block_files() == []


def test_never_save_and_pin(bench: Bench) -> None:
    bench.save("diary", token_range(100))
    bench.inventory.set_never_save("diary", True)
    bench.inventory.delete_conversation("diary")
    (usage,) = bench.inventory.usage().conversations  # still listed, so that the user can change it
    assert (usage.conversation_id, usage.bytes, usage.save_points, usage.never_save) == ("diary", 0, 0, True)
    with pytest.raises(StoreRefused, match="Never keep"):
        bench.add("diary", token_range(100))
    bench.inventory.set_never_save("diary", False)
    assert bench.inventory.usage().conversations == ()
    bench.save("diary", token_range(100))
    bench.inventory.set_pinned("diary", True)
    assert bench.inventory.plan_prune(0).save_point_ids == ()
    assert bench.inventory.usage().conversations[0].pinned


def test_a_prune_does_what_was_planned(bench: Bench) -> None:
    for name, start in (("a", 1), ("b", 1000), ("c", 2000)):
        for length in (100, 200):
            bench.save(name, token_range(length, start=start))
        bench.clock.now += timedelta(days=20)
    before, blocks = bench.inventory.usage(), bench.block_bytes()
    target = before.physical_bytes - blocks // 2
    plan = bench.inventory.plan_prune(target)
    assert bench.inventory.usage() == before
    assert bench.inventory.prune(plan) == plan.bytes_freed
    assert bench.block_bytes() == blocks - plan.bytes_freed
    assert before.physical_bytes - plan.bytes_freed == plan.bytes_left <= target
    assert bench.save_points() == {"b": 1, "c": 2}, "the older turn of b may stay"
    assert bench.inventory.verify().is_clean


def test_the_quota_spares_the_newest(big: Bench) -> None:
    big.save("a", token_range(300))
    big.inventory.set_bounds(Bounds(big.overhead_bytes() + 5 * big.block_bytes() // 2, 0))
    for number in range(5):
        big.save(f"chat {number}", token_range(300, start=1000 * (number + 1)))
    assert sorted(big.save_points()) == ["chat 3", "chat 4"]
    assert big.find(token_range(300), conversation="a") == RestoreMiss(Reason(ReasonCode.PRUNED))


def test_old_save_points_expire_with_the_next_save(bench: Bench) -> None:
    bench.inventory.set_bounds(Bounds(bench.quota, 0, max_age_days=30))
    for name, start in (("old", 1), ("used again", 1000), ("pinned", 2000)):
        bench.save(name, token_range(300, start=start))
    bench.inventory.set_pinned("pinned", True)
    bench.clock.now += timedelta(days=29)
    assert bench.restore(token_range(310, start=1000)) == FULL.slot_file(token_range(300, start=1000))
    bench.save("new", token_range(300, start=3000))
    assert len(bench.save_points()) == 4
    bench.clock.now += timedelta(days=2)
    bench.save("newer", token_range(300, start=4000))
    assert bench.save_points().keys() == {"used again", "pinned", "new", "newer"}
    assert bench.find(token_range(310), conversation="old") == RestoreMiss(Reason(ReasonCode.EXPIRED))


@pytest.mark.parametrize("length", [180, 256, 700])
def test_a_shared_prefix_outlives_the_conversation_that_saved_it(tmp_path: Path, length: int) -> None:
    bench, system = Bench(tmp_path / "store", HYBRID), token_range(length)
    for tokens in (system[:-8], system, system + token_range(90, start=5000)):
        bench.save("first", tokens)
    bench.save("second", system + token_range(120, start=7000))
    bench.inventory.delete_conversation("first")
    assert bench.save_points() == {"second": 3}
    assert bench.restore(system + (7,) * 50, can_cut=False) == HYBRID.slot_file(system)
    assert isinstance(bench.find(system + token_range(91, start=5000), can_cut=False), RestorePlan)
    bench.inventory.set_never_save("second", True)
    bench.save("third", system + token_range(60, start=9000))
    bench.inventory.delete_conversation("second")
    assert bench.save_points() == {"third": 3, "second": 0}
    bench.inventory.delete_conversation("third")
    assert bench.inventory.usage().unique_rows_bytes == 0
    assert bench.inventory.verify().is_clean


def test_deleting_a_message_deletes_its_save_points(bench: Bench) -> None:
    bench.save("thesis", token_range(90, start=11_000))  # without a message: deleted with any
    bench.save("thesis", token_range(100), message="first")
    bench.save("thesis", token_range(200), message="second")
    bench.save("thesis", token_range(100) + token_range(80, start=5000), message="beside")
    bench.save("letter", token_range(200) + token_range(50, start=7000), message="copied")
    bench.add("thesis", token_range(300, start=9000), message="second")  # not absorbed yet
    assert bench.inventory.find_unchecked("").message_ids == {
        "thesis": frozenset(("first", "second", "beside")),
        "letter": frozenset(("copied",)),
    }
    bench.inventory.delete_messages("thesis", ["second"])
    assert isinstance(bench.find(token_range(300, start=9000)), RestoreMiss)
    restored = bench.restore(token_range(200) + (7,) * 50, can_cut=False)
    assert restored == bench.model.slot_file(token_range(200)), "another chat extends it"
    assert bench.inventory.find_unchecked("").message_ids["letter"] == frozenset(("copied",))
    bench.inventory.delete_messages("letter", ["copied"])
    bench.inventory.delete_messages("thesis", ["beside"])
    assert bench.inventory.find_unchecked("").message_ids == {"thesis": frozenset(("first",))}
    assert isinstance(bench.find(token_range(100) + token_range(80, start=5000), can_cut=False), RestorePlan)
    assert bench.inventory.usage().save_points == 1
    assert bench.inventory.verify().is_clean


@needs_modes
def test_all_files_are_private_and_a_deleted_conversation_leaves_no_trace(bench: Bench) -> None:
    bench.save("thesis", token_range(300, start=54321))
    bench.add("letter", token_range(300))
    bench.stage(bench.plan(token_range(305)))
    for path in bench.folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert bench.inventory.delete_conversation("thesis") > 300 * bench.model.row_bytes
    bench.store.close()
    secret = (54400).to_bytes(4, "little") + (54401).to_bytes(4, "little")
    for path in filter(Path.is_file, bench.folder.rglob("*")):
        data = path.read_bytes()
        assert b"thesis" not in data, path
        assert secret not in data, path


@needs_memory_folder
def test_files_in_memory_survive_a_crash(roomy: Bench, tmp_path: Path) -> None:
    roomy.add("thesis", token_range(300))
    assert roomy.store.absorb_pending(lambda: True).save_points == 0, "cancelled"
    assert not roomy.block_files()
    (left,) = (tmp_path / "memory").glob("*/*.slot")
    (tmp_path / "memory" / left.parent.name / "begun").write_bytes(b"a part")
    roomy.use(roomy.open())
    assert roomy.restore(token_range(310)) == FULL.slot_file(token_range(300))
    assert roomy.store.absorb_pending().save_points == 1
    assert not list((tmp_path / "memory").glob("*/begun"))


def test_reading_leaves_the_store_of_another_process_unchanged(bench: Bench) -> None:
    bench.save("thesis", token_range(300))
    bench.add("thesis", token_range(400))
    check_store(bench.folder)
    manifest = stored_manifest(bench.folder, "thesis")
    assert manifest is not None
    assert {
        name: len(b"".join(content)) for name, content in read_blocks(bench.folder, manifest)
    } == manifest.block_sizes
    assert stored_manifest(bench.folder, "letter") is None
    assert bench.restore(token_range(410)) == FULL.slot_file(token_range(400)), "the unabsorbed file still exists"
    assert stored_manifest(bench.folder.parent / "none", "thesis") is None
    with bench.inventory.index.write() as db:
        db.execute("INSERT INTO migrations VALUES (999, 0)")  # of a newer version
    (bench.folder.parent / "file").touch()
    for unusable in (bench.folder, bench.folder.parent / "file"):
        with pytest.raises(KvchatError):
            check_store(unusable)


def test_the_default_quota_grows_with_the_model_and_the_disk() -> None:
    small, usual, large, chat = 64 * GB, 256 * GB, 4096 * GB, 4_300_000_000
    assert [default_quota(disk) / GB for disk in (small, usual, large)] == [3.2, 20, 20]
    assert [default_quota(disk, chat) / GB for disk in (small, usual, large)] == [3.2, 25.6, 43]
    assert default_quota(large, 60 * GB) == 600 * GB
    assert default_quota(large, 600 * GB) == round(0.2 * large), "a part of the disk at most"
    assert default_quota(large, chat, kept_bytes=70 * GB) == 70 * GB, "a smaller model deletes nothing"
