"""Composed slot files: equal to what the engine saves, and as the engine wants them."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvchat.kvstore import pieces
from kvchat.kvstore.compose import CannotCompose, OlderSave, complete_windows, cut, window_reach
from kvchat.kvstore.layout import Span
from kvchat.kvstore.layout_parser import parse_bytes
from kvchat.kvstore.pieces import Copy, Inline, Plan, SourceCut, joined, plan_size, write_plan
from tests.kvstore.test_layout import NAMES, slot

WINDOW = 32  # of the tiny models


def run(folder: Path, plan: Plan, *sources: bytes) -> bytes:
    for number, data in enumerate(sources):
        (folder / str(number)).write_bytes(data)
    seen = hashlib.sha256()
    target = folder / "target"
    with ExitStack() as opened:
        files = [opened.enter_context((folder / str(number)).open("rb", buffering=0)) for number in range(len(sources))]
        out = opened.enter_context(target.open("wb", buffering=0))
        size = write_plan(plan, files, out, seen.update)
    made = target.read_bytes()
    assert len(made) == size == plan_size(plan)
    assert hashlib.sha256(made).digest() == seen.digest()
    return made


@pytest.mark.parametrize("n_tokens", [40, 256])
def test_a_cut_file_is_what_the_engine_saves_there(tmp_path: Path, n_tokens: int) -> None:
    whole = slot("b11434-llama-300")
    assert run(tmp_path, cut(parse_bytes(whole), n_tokens), whole) == slot(f"b11434-llama-{n_tokens}")


@pytest.mark.parametrize("name", NAMES)
def test_cut_to_its_own_length_nothing_changes(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, cut(parse_bytes(slot(name)), parse_bytes(slot(name)).n_tokens), slot(name)) == slot(name)


@pytest.mark.parametrize("name", ["b11434-mamba-40", "b11434-qwen35-40", "b11434-gemma3-40", "b11549-lfm2-300"])
def test_what_cannot_be_cut_is_refused(name: str) -> None:
    with pytest.raises(CannotCompose):
        cut(parse_bytes(slot(name)), 39, WINDOW)


@pytest.mark.parametrize("n_tokens", [0, 41])
def test_no_cut_outside_the_file(n_tokens: int) -> None:
    with pytest.raises(CannotCompose):
        cut(parse_bytes(slot("b11434-llama-40")), n_tokens)


def test_a_window_gets_its_older_rows(tmp_path: Path) -> None:
    new, old = slot("b11434-gemma3-724"), slot("b11434-gemma3-723")
    newest, older = parse_bytes(new), [OlderSave(parse_bytes(old), 723)]
    assert newest.windows[0].first_position == 692
    assert window_reach(newest, older) == 691
    made = run(tmp_path, complete_windows(newest, older, 691), new, old)
    layout = parse_bytes(made)
    assert (layout.attention[0].n_cells, layout.attention[1].n_cells) == (724, WINDOW + 1)
    for region_number, region in enumerate(layout.attention[1].regions):
        for row in range(WINDOW + 1):
            start = region.offset + row * region.row_size
            assert made[start] == ((691 + row) * 7 + region_number * 3 + 1) % 251


def test_rows_nobody_has_are_refused() -> None:
    newest, older = parse_bytes(slot("b11434-gemma3-724")), parse_bytes(slot("b11434-gemma3-723"))
    with pytest.raises(CannotCompose, match="token 690"):
        complete_windows(newest, [OlderSave(older, 723)], 600)
    with pytest.raises(CannotCompose, match="token 691"):
        complete_windows(newest, [OlderSave(older, 691)], 691)  # they part before the rows that are missing
    assert window_reach(newest, [OlderSave(parse_bytes(slot("b11434-gpt-oss-40")), 40)]) == 692


def test_a_completed_file_can_be_cut_back(tmp_path: Path) -> None:
    new, old = slot("b11434-gemma3-724"), slot("b11434-gemma3-723")
    made = run(tmp_path, complete_windows(parse_bytes(new), [OlderSave(parse_bytes(old), 723)], 691), new, old)
    shorter = cut(parse_bytes(made), 723, window=30)
    assert parse_bytes(run(tmp_path, shorter, made)).n_tokens == 723
    with pytest.raises(CannotCompose):
        cut(parse_bytes(made), 723, WINDOW)


def test_checkpoints_of_later_tokens_are_left_out(tmp_path: Path) -> None:
    whole = slot("b11549-exaone4-40")
    assert len(parse_bytes(whole).checkpoints) == 1
    assert parse_bytes(run(tmp_path, cut(parse_bytes(whole), 30), whole)).checkpoints == ()
    assert [part.n_tokens for part in parse_bytes(run(tmp_path, cut(parse_bytes(whole), 36), whole)).checkpoints] == [
        36
    ]


def test_plans_are_joined_and_pieces_larger_than_the_buffer_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "BUFFER_BYTES", 7)
    plan = joined(
        [Inline(b"ab"), Inline(b""), Inline(b"c"), Copy(0, Span(0, 5)), Copy(0, Span(5, 20)), Copy(1, Span(3, 2))]
    )
    assert plan == (Inline(b"abc"), Copy(0, Span(0, 25)), Copy(1, Span(3, 2)))
    assert run(tmp_path, plan, bytes(range(25)), b"vwxyz") == b"abc" + bytes(range(25)) + b"yz"


def test_a_source_cut_meanwhile_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceCut):
        run(tmp_path, (Copy(0, Span(0, 5)),), b"four")
