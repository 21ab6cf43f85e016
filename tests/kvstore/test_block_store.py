"""What the block store promises: every row once, every file back byte for byte, the longest known prefix."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kvchat.errors import KvchatError
from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.blocks.layout import with_masked_rows
from kvchat.kvstore.exchange import read_blocks, stored_manifest
from kvchat.kvstore.failures import check_store
from kvchat.kvstore.savepoint import (
    GB,
    Bounds,
    Cancelled,
    Miss,
    NotSaved,
    RestorePlan,
    StagedFile,
    StoreRefused,
    Tier,
    Tokens,
    default_quota,
)
from kvchat.text.reasons import Reason, ReasonCode
from tests.kvstore.blocks.test_layout import made
from tests.kvstore.slot_files import FINGERPRINT, parse_bytes
from tests.kvstore.slot_files import line as text
from tests.kvstore.true_files import FULL, HYBRID, WINDOW, Bench, Model


def plan_of(result: RestorePlan | Miss) -> RestorePlan:
    assert isinstance(result, RestorePlan), result
    return result


@pytest.mark.parametrize("model", [FULL, WINDOW, HYBRID, Model(layers=1, row_size=8)])
def test_every_turn_comes_back_byte_for_byte(tmp_path: Path, model: Model) -> None:
    bench = Bench(tmp_path / "store", model)
    turns = [text(length) for length in (30, 255, 256, 300, 301, 700)]
    for tokens in turns:
        bench.save("thesis", tokens)
    for tokens in turns:
        assert bench.restored((*tokens, 9999), can_cut=False) == model.slot_file(tokens)
    bench.reopen()
    for tokens in turns:
        assert bench.restored((*tokens, 9999), can_cut=False) == model.slot_file(tokens)
    assert bench.inventory.verify().is_clean


def test_a_file_of_unknown_layout_comes_back_too(bench: Bench) -> None:
    tokens = text(100)
    data = bench.model.slot_file(tokens) + b"something new"
    bench.save("thesis", tokens, data=data)
    assert bench.restored(text(120)) == data
    bench.reopen()
    assert bench.restored(text(120)) == data


def test_the_file_is_warm_before_it_is_absorbed(bench: Bench) -> None:
    point = bench.take("thesis", text(100))
    plan = plan_of(bench.find(text(120)))
    assert (plan.save_point, plan.tokens_used, plan.tier) == (point, 100, Tier.WARM)
    assert bench.restored(text(120)) == bench.model.slot_file(text(100))
    bench.reopen()  # closing absorbs what waits
    assert plan_of(bench.find(text(120))).save_point.id == point.id
    assert bench.restored(text(120)) == bench.model.slot_file(text(100))


def test_in_memory_files_stay_warm_within_the_budget(tmp_path: Path) -> None:
    size = len(FULL.slot_file(text(300)))
    bench = Bench(tmp_path / "store", memory=2 * size + size // 2)
    for number in range(4):
        bench.save(f"chat {number}", text(300, start=1000 * number + 1))
    tiers = [plan_of(bench.find(text(310, start=1000 * number + 1))).tier for number in range(4)]
    assert tiers == [Tier.DISK, Tier.DISK, Tier.WARM, Tier.WARM]
    assert bench.inventory.usage().warm_bytes == 2 * size
    # What is rebuilt is warm afterwards, and the longest unused makes room for it.
    assert bench.restored(text(310)) == FULL.slot_file(text(300))
    assert plan_of(bench.find(text(310))).tier is Tier.WARM
    assert plan_of(bench.find(text(310, start=2001))).tier is Tier.DISK
    bench.store.close()
    assert list((tmp_path / "memory").iterdir()) == []


@pytest.mark.parametrize("seen", [True, False])
def test_a_warm_file_someone_changed_is_not_given_to_the_engine(tmp_path: Path, seen: bool) -> None:
    bench = Bench(tmp_path / "store", memory=10**9)
    bench.save("thesis", text(300))
    (warm,) = (tmp_path / "memory").glob("*/*.slot")
    before = warm.stat()
    warm.write_bytes(bytes(before.st_size))
    if not seen:
        os.utime(warm, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert bench.restored(text(310)) == FULL.slot_file(text(300))


@pytest.mark.parametrize("shared", [249, 400, 1800])
def test_chats_share_a_system_prompt_that_ends_inside_a_block(tmp_path: Path, shared: int) -> None:
    bench = Bench(tmp_path / "store", Model(layers=4, row_size=384))
    for chat in range(4):
        bench.save(f"chat {chat}", text(shared) + text(600, start=10_000 * (chat + 1)))
    usage = bench.inventory.usage()
    assert usage.unique_rows_bytes == (shared + 4 * 600) * bench.model.row_bytes
    assert usage.conversations[0].exclusive_bytes >= 600 * bench.model.row_bytes
    assert usage.conversations[0].shared_bytes >= shared * bench.model.row_bytes
    # And a new chat starts with exactly the shared prompt, put together where nothing is warm.
    bench.reopen()
    assert bench.restored(text(shared) + (7,) * 50) == bench.model.slot_file(text(shared))


def test_a_conversation_never_to_be_saved_stays_in_the_list_so_that_the_wish_can_be_taken_back(bench: Bench) -> None:
    bench.save("diary", text(100))
    bench.inventory.never_save("diary", True)
    bench.inventory.delete_conversation("diary")
    (usage,) = bench.inventory.usage().conversations
    assert (usage.conversation_id, usage.bytes, usage.save_points, usage.never_save) == ("diary", 0, 0, True)
    bench.inventory.never_save("diary", False)
    assert bench.inventory.usage().conversations == ()


def test_the_longest_known_prefix_wins_whosever_it_is(bench: Bench) -> None:
    bench.save("thesis", text(300))
    bench.save("letter", text(200) + text(200, start=5000))
    plan = plan_of(bench.find(text(200) + text(150, start=5000)))
    assert (plan.save_point.conversation_id, plan.tokens_used) == ("letter", 350)
    assert plan_of(bench.find(text(290))).tokens_used == 290
    assert plan_of(bench.find(text(400))).tokens_used == 300
    assert plan_of(bench.find(text(240) + (1,) * 90)).tokens_used == 240


def test_what_cannot_be_cut_restores_the_longest_whole_save_point(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", HYBRID)
    for length in (100, 300, 500):
        bench.save("thesis", text(length))
    assert plan_of(bench.find(text(499), can_cut=False)).tokens_used == 300
    assert plan_of(bench.find(text(300), can_cut=False)).tokens_used == 100  # a token must be left to evaluate
    assert bench.restored(text(400), can_cut=False) == HYBRID.slot_file(text(300))
    changed = bench.find(text(90) + (7,) * 50, can_cut=False)
    assert changed == Miss(Reason(ReasonCode.CANNOT_GO_BACK))


@pytest.mark.parametrize("length", [33, 255, 256, 257, 400])
def test_a_part_is_composed_for_exactly_the_shared_prefix(bench: Bench, length: int) -> None:
    for turn in (100, 300, 500):
        bench.save("thesis", text(turn))
    bench.reopen()  # nothing is warm now
    plan = plan_of(bench.find(text(length) + (7777,) * 40))
    staged = bench.restorer.stage(plan, bench.slots)
    assert isinstance(staged, StagedFile)
    assert (plan.tokens_used, staged.n_tokens) == (length, length)
    assert bench.read(staged) == FULL.slot_file(text(length))


def given_to_an_engine(length: int) -> bytes:
    """What the engine saved for so many tokens, with the row that its window lacks."""
    saved = WINDOW.slot_file(text(length))
    return made(with_masked_rows(parse_bytes(saved), WINDOW.window), saved)


def test_an_engine_is_given_the_row_that_a_window_lacks(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", WINDOW)
    bench.save("short", text(WINDOW.window))
    assert bench.restored(text(130), sliding=WINDOW.window) == WINDOW.slot_file(text(WINDOW.window)), "it lacks none"
    bench.save("thesis", text(120))
    assert bench.restored(text(130), sliding=WINDOW.window) == given_to_an_engine(120)
    assert bench.restored(text(130)) == WINDOW.slot_file(text(120))


def test_a_chat_with_sliding_windows_can_be_used_before_it_is_absorbed(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", WINDOW, memory=10**9)
    bench.take("thesis", text(120))
    assert bench.restored(text(130), sliding=WINDOW.window) == given_to_an_engine(120)


@pytest.mark.parametrize("lengths", [(70, 90, 120), (20, 30)])
def test_a_file_with_the_row_its_window_lacks_is_warm_before_anyone_asks(
    tmp_path: Path, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[bool] = []
    run_parallel = positioned.run_parallel

    def watched(*asked: Any, low_priority: bool = False, **more: Any) -> list[Any]:
        ways.append(low_priority)
        return run_parallel(*asked, low_priority=low_priority, **more)

    monkeypatch.setattr(positioned, "run_parallel", watched)
    bench = Bench(tmp_path / "store", WINDOW, memory=10**9, sliding=WINDOW.window)
    for length in lengths:
        bench.take("thesis", text(length))
    bench.store.absorb_pending()
    assert len(list((tmp_path / "memory").glob("*/*.slot"))) == 1, "no engine can use the others"
    assert all(ways), "nobody waits for any of it"
    plan = plan_of(bench.find(text(130)))
    again = RestorePlan(plan.save_point, plan.tokens_used, Tier.DISK, plan.bytes)
    warm = bench.restorer.stage(plan, bench.slots, window=WINDOW.window)
    assert isinstance(warm, StagedFile)
    assert warm.tier is Tier.WARM
    data = bench.read(warm)
    bench.reopen()  # nothing is warm now: composed anew
    composed = bench.restorer.stage(again, bench.slots, window=WINDOW.window)
    assert isinstance(composed, StagedFile)
    assert (composed.tier, bench.read(composed)) == (Tier.DISK, data)
    staged = bench.restorer.stage(again, bench.slots, window=WINDOW.window)
    assert isinstance(staged, StagedFile)
    assert (staged.tier, bench.read(staged)) == (Tier.WARM, data)


def test_every_miss_says_why(bench: Bench) -> None:
    def reason(prompt: Tokens, conversation: str = "thesis", **changes: str) -> Reason:
        fingerprint = replace(FINGERPRINT, **changes) if changes else FINGERPRINT
        result = bench.restorer.find(fingerprint, prompt, can_cut=True, conversation_id=conversation)
        assert isinstance(result, Miss)
        return result.reason

    assert reason(text(100)) == Reason(ReasonCode.NOTHING_SAVED)
    point = bench.save("thesis", text(100))
    assert reason(text(100), model="qwen:1") == Reason(ReasonCode.OTHER_MODEL)
    settings = (Reason(ReasonCode.KV_TYPE_K),)
    assert reason(text(100), kv_type_k="q8_0") == Reason(ReasonCode.OTHER_SETTINGS, {"settings": settings})
    assert reason(text(5) + text(95, start=500)) == Reason(ReasonCode.BEGINS_DIFFERENTLY, {"shared": 5})
    hollow = Reason(ReasonCode.HOLLOW, {"accepted": 100, "reused": 0})
    bench.inventory.set_aside(point, hollow)
    assert reason(text(100)) == Reason(ReasonCode.SET_ASIDE, {"reason": hollow})
    assert bench.block_files() == []


def test_never_save_and_pin(bench: Bench) -> None:
    bench.inventory.never_save("secret", True)
    with pytest.raises(StoreRefused, match="Never keep"):
        bench.saver.check_room(1, "secret")
    with pytest.raises(StoreRefused, match="Never keep"):
        bench.save("secret", text(100))
    bench.inventory.never_save("secret", False)
    bench.save("secret", text(100))
    bench.inventory.pin("secret", True)
    assert bench.inventory.plan_prune(0).save_point_ids == ()
    assert bench.inventory.usage().conversations[0].pinned


def test_a_prune_does_what_its_plan_said(bench: Bench) -> None:
    for name, start in (("a", 1), ("b", 1000), ("c", 2000)):
        for length in (100, 200):
            bench.save(name, text(length, start=start))
        bench.clock.now += timedelta(days=20)
    before, blocks = bench.inventory.usage(), bench.on_disk()
    target = before.physical_bytes - blocks // 2
    plan = bench.inventory.plan_prune(target)
    assert bench.inventory.usage() == before
    assert bench.inventory.prune(plan) == plan.bytes_freed
    assert bench.on_disk() == blocks - plan.bytes_freed
    assert before.physical_bytes - plan.bytes_freed == plan.bytes_left <= target
    left = {one.conversation_id: one.save_points for one in bench.inventory.usage().conversations}
    assert left == {"b": 1, "c": 2}, "the older turn of b may stay"
    assert bench.inventory.verify().is_clean


def test_the_quota_is_kept_and_the_newest_spared(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", Model(layers=8, row_size=512))
    bench.save("a", text(300))
    bench.inventory.set_bounds(Bounds(bench.besides() + 5 * bench.on_disk() // 2, 0))
    for number in range(5):
        bench.save(f"chat {number}", text(300, start=1000 * (number + 1)))
    assert [one.conversation_id for one in bench.inventory.usage().conversations] == ["chat 3", "chat 4"]
    gone = bench.find(text(300), conversation="a")
    assert gone == Miss(Reason(ReasonCode.PRUNED))


def test_what_was_not_used_for_long_goes_with_the_next_save(bench: Bench) -> None:
    bench.inventory.set_bounds(Bounds(bench.quota, 0, max_age_days=30))
    for name, start in (("old", 1), ("used again", 1000), ("pinned", 2000)):
        bench.save(name, text(300, start=start))
    bench.inventory.pin("pinned", True)
    bench.clock.now += timedelta(days=29)
    assert bench.restored(text(310, start=1000)) == FULL.slot_file(text(300, start=1000))
    bench.save("new", text(300, start=3000))
    assert len(bench.inventory.usage().conversations) == 4
    bench.clock.now += timedelta(days=2)
    bench.save("newer", text(300, start=4000))
    left = {one.conversation_id for one in bench.inventory.usage().conversations}
    assert left == {"used again", "pinned", "new", "newer"}
    gone = bench.find(text(310), conversation="old")
    assert gone == Miss(Reason(ReasonCode.EXPIRED))


@pytest.mark.parametrize("length", [180, 256, 700])
def test_what_another_conversation_begins_with_outlives_the_one_that_saved_it(tmp_path: Path, length: int) -> None:
    """As at the end of a shared system prompt, where states cannot be cut."""
    bench, system = Bench(tmp_path / "store", HYBRID), text(length)
    bench.save("first", system[:-8])
    bench.save("first", system)
    bench.save("first", system + text(90, start=5000))
    bench.save("second", system + text(120, start=7000))
    bench.inventory.delete_conversation("first")
    assert [(c.conversation_id, c.save_points) for c in bench.inventory.usage().conversations] == [("second", 3)]
    assert bench.restored(system + (7,) * 50, can_cut=False) == HYBRID.slot_file(system)
    assert isinstance(bench.find(system + text(91, start=5000), can_cut=False), RestorePlan)
    bench.inventory.never_save("second", True)
    bench.save("third", system + text(60, start=9000))
    bench.inventory.delete_conversation("second")
    assert [(c.conversation_id, c.save_points) for c in bench.inventory.usage().conversations if c.bytes] == [
        ("third", 3)
    ]
    bench.inventory.delete_conversation("third")
    assert bench.inventory.usage().unique_rows_bytes == 0
    assert bench.inventory.verify().is_clean


def test_a_deleted_message_takes_its_save_points_along(bench: Bench) -> None:
    bench.save("thesis", text(100), message="first")
    bench.save("thesis", text(200), message="second")
    bench.save("thesis", text(100) + text(80, start=5000), message="beside")
    bench.save("letter", text(200) + text(50, start=7000), message="copied")
    bench.take("thesis", text(300, start=9000), message="second")  # not absorbed yet
    assert bench.inventory.unchecked("").messages == {
        "thesis": frozenset(("first", "second", "beside")),
        "letter": frozenset(("copied",)),
    }
    bench.inventory.delete_messages("thesis", ["second"])
    assert isinstance(bench.find(text(300, start=9000)), Miss)
    gone_through = bench.restored(text(200) + (7,) * 50, can_cut=False)
    assert gone_through == bench.model.slot_file(text(200)), "another chat goes through it"
    assert bench.inventory.unchecked("").messages["letter"] == frozenset(("copied",))
    bench.inventory.delete_messages("letter", ["copied"])
    bench.inventory.delete_messages("thesis", ["beside"])
    assert bench.inventory.unchecked("").messages == {"thesis": frozenset(("first",))}
    assert isinstance(bench.find(text(100) + text(80, start=5000), can_cut=False), RestorePlan)
    assert bench.inventory.usage().save_points == 1
    assert bench.inventory.verify().is_clean


def test_a_save_point_that_does_not_tell_what_it_holds_goes_with_any_message(bench: Bench) -> None:
    bench.save("thesis", text(100))
    bench.save("letter", text(90, start=5000))
    bench.save("thesis", text(300, start=7000), message="first")
    bench.inventory.delete_messages("thesis", ["second"])
    left = {one.conversation_id: one.save_points for one in bench.inventory.usage().conversations}
    assert left == {"thesis": 1, "letter": 1}


def test_deleting_a_conversation_leaves_no_trace_of_it(bench: Bench) -> None:
    bench.save("thesis", text(300, start=54321))
    bench.save("letter", text(300))
    freed = bench.inventory.delete_conversation("thesis")
    assert freed > 300 * bench.model.row_bytes
    bench.store.close()
    secret = (54400).to_bytes(4, "little") + (54401).to_bytes(4, "little")
    for path in bench.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert b"thesis" not in data, path
            assert secret not in data, path


def test_everything_is_private(bench: Bench) -> None:
    bench.save("thesis", text(300))
    bench.take("thesis", text(310))
    assert isinstance(bench.restorer.stage(plan_of(bench.find(text(305))), bench.slots), StagedFile)
    for path in bench.folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_crashed_process_that_staged_in_memory_costs_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", memory=10**9)
    bench.take("thesis", text(300))
    (left,) = (tmp_path / "memory").glob("*/*.slot")
    (tmp_path / "memory" / left.parent.name / "begun").write_bytes(b"a part")
    bench.use(bench.open())
    bench.slots = bench.store.staging.slot_folder()
    assert bench.restored(text(310)) == FULL.slot_file(text(300))
    assert bench.store.absorb_pending().save_points == 1
    assert not list((tmp_path / "memory").glob("*/begun"))


def test_what_nobody_waits_for_any_more_ends_and_leaves_nothing(bench: Bench) -> None:
    bench.take("thesis", text(300))
    assert bench.store.absorb_pending(lambda: True).save_points == 0
    assert not bench.block_files()
    assert bench.store.absorb_pending().save_points == 1
    with pytest.raises(Cancelled):
        bench.restorer.stage(plan_of(bench.find(text(400))), bench.slots, cancelled=lambda: True)
    assert not list(bench.slots.iterdir())


def test_who_only_looks_leaves_the_store_of_another_process_as_it_is(bench: Bench) -> None:
    bench.save("thesis", text(300))
    bench.take("thesis", text(400))
    check_store(bench.folder)
    manifest = stored_manifest(bench.folder, "thesis")
    assert manifest is not None
    assert {name: len(b"".join(content)) for name, content in read_blocks(bench.folder, manifest)} == manifest.blocks
    assert stored_manifest(bench.folder, "letter") is None
    assert bench.restored(text(410)) == FULL.slot_file(text(400)), "what waits is still there"
    assert stored_manifest(bench.folder.parent / "none", "thesis") is None


@pytest.mark.parametrize("trouble", ["newer", "a file"])
def test_who_only_looks_says_why_no_store_can_be_had(bench: Bench, trouble: str) -> None:
    folder = bench.folder
    if trouble == "newer":
        with bench.inventory.index.write() as db:
            db.execute("INSERT INTO migrations VALUES (999, 0)")
    else:
        folder = bench.folder.parent / "file"
        folder.touch()
    with pytest.raises(KvchatError):
        check_store(folder)


def test_the_default_quota_grows_with_the_model_and_the_disk() -> None:
    small, usual, large, chat = 64 * GB, 256 * GB, 4096 * GB, 4_300_000_000
    assert [default_quota(disk) / GB for disk in (small, usual, large)] == [3.2, 20, 20]
    assert [default_quota(disk, chat) / GB for disk in (small, usual, large)] == [3.2, 25.6, 43]
    assert default_quota(large, 60 * GB) == 600 * GB
    assert default_quota(large, 600 * GB) == round(0.2 * large), "a part of the disk at most"
    assert default_quota(large, chat, kept_bytes=70 * GB) == 70 * GB, "a smaller model takes nothing away"


def test_room_is_refused_at_the_floor_and_not_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", quota=100, free=200)
    bench.inventory.bounds = Bounds(quota=100, free_floor=100)
    bench.inventory.require_room(100, 100)
    with pytest.raises(NotSaved) as nearly_full:
        bench.inventory.require_room(100, 101)
    with pytest.raises(NotSaved) as too_large:
        bench.inventory.require_room(101, 0)
    codes = [one.value.reason.code for one in (nearly_full, too_large)]
    assert codes == [ReasonCode.DISK_NEARLY_FULL, ReasonCode.OVER_LIMIT]
