"""Composed slot files: equal to what the engine saves, and as the engine wants them."""

from __future__ import annotations

import struct

import pytest

from kvchat.kvstore.blocks.layout import CannotCompose, Plan, Span, cut, joined, with_masked_rows
from tests.kvstore.blocks.test_layout import NAMES, slot
from tests.kvstore.slot_files import parse_bytes

WINDOW = 32  # of the tiny models


def made(plan: Plan, stored: bytes) -> bytes:
    return b"".join(stored[piece.offset : piece.end] if isinstance(piece, Span) else piece for piece in plan)


@pytest.mark.parametrize("n_tokens", [40, 256])
def test_a_cut_file_is_what_the_engine_saves_there(n_tokens: int) -> None:
    whole = slot("b11434-llama-300")
    assert made(cut(parse_bytes(whole), n_tokens), whole) == slot(f"b11434-llama-{n_tokens}")


@pytest.mark.parametrize("name", NAMES)
def test_cut_to_its_own_length_nothing_changes(name: str) -> None:
    assert made(cut(parse_bytes(slot(name)), parse_bytes(slot(name)).n_tokens), slot(name)) == slot(name)


@pytest.mark.parametrize("name", ["b11434-mamba-40", "b11434-qwen35-40", "b11434-gemma3-40", "b11549-lfm2-300"])
def test_what_cannot_be_cut_is_refused(name: str) -> None:
    with pytest.raises(CannotCompose):
        cut(parse_bytes(slot(name)), 39)


@pytest.mark.parametrize("n_tokens", [0, 41])
def test_no_cut_outside_the_file(n_tokens: int) -> None:
    with pytest.raises(CannotCompose):
        cut(parse_bytes(slot("b11434-llama-40")), n_tokens)


@pytest.mark.parametrize(("architecture", "length"), [("gemma3", 724), ("gemma3", 40), ("gpt-oss", 40)])
def test_a_window_gets_a_row_of_zeros_older_than_it(architecture: str, length: int) -> None:
    saved = slot(f"b11434-{architecture}-{length}")
    layout = parse_bytes(saved)
    (window,) = layout.windows
    file = made(with_masked_rows(layout, WINDOW), saved)
    assert file[: window.head.offset] == saved[: window.head.offset], "what does not slide is as it was saved"
    rows, first, *_ = struct.unpack_from("<4xIi", file, window.head.offset)
    assert (rows, first) == (WINDOW + 1, length - WINDOW - 2)
    cells = window.head.offset + 8
    assert file[cells + 4 : cells + window.cell_size] == struct.pack("<ii", 1, 0), "of one sequence"
    at = cells + window.cell_size
    assert file[at : at + window.cells.size] == saved[cells : cells + window.cells.size]
    at += window.cells.size + window.data_head.size
    for region in window.regions:
        row, rest = at + 12, at + 12 + region.row_size
        assert file[row:rest] == bytes(region.row_size)
        at = rest + window.rows * region.row_size
        assert file[rest:at] == saved[region.offset : region.offset + window.rows * region.row_size]
    assert file[at:] == saved[window.end :]


@pytest.mark.parametrize(
    ("name", "window"), [("b11434-llama-300", 32), ("b11434-gemma3-724", 64), ("b11434-gemma3-40", 1024)]
)
def test_a_file_without_such_a_window_gets_no_row(name: str, window: int) -> None:
    with pytest.raises(CannotCompose):
        with_masked_rows(parse_bytes(slot(name)), window)


def test_checkpoints_of_later_tokens_are_left_out() -> None:
    whole = slot("b11549-exaone4-40")
    assert len(parse_bytes(whole).checkpoints) == 1
    assert parse_bytes(made(cut(parse_bytes(whole), 30), whole)).checkpoints == ()
    assert [part.n_tokens for part in parse_bytes(made(cut(parse_bytes(whole), 36), whole)).checkpoints] == [36]


def test_plans_are_joined() -> None:
    plan = joined([b"ab", b"", b"c", Span(0, 5), Span(5, 20), Span(3, 2)])
    assert plan == (b"abc", Span(0, 25), Span(3, 2))
