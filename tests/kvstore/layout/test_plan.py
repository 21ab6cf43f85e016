"""Composed slot files: equal to what the engine saves, and as the engine wants them."""

from __future__ import annotations

import pytest

from kvchat.kvstore.layout.layout import Span
from kvchat.kvstore.layout.plan import (
    CannotCompose,
    Copy,
    Inline,
    OlderSave,
    Plan,
    complete_windows,
    cut,
    joined,
    window_reach,
)
from tests.kvstore.layout.test_layout import NAMES, slot
from tests.kvstore.slot_files import parse_bytes

WINDOW = 32  # of the tiny models


def made(plan: Plan, *sources: bytes) -> bytes:
    """The file a plan makes of these."""
    return b"".join(
        piece.data if isinstance(piece, Inline) else sources[piece.source][piece.span.offset : piece.span.end]
        for piece in plan
    )


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


def test_a_window_gets_its_older_rows() -> None:
    new, old = slot("b11434-gemma3-724"), slot("b11434-gemma3-723")
    newest, older = parse_bytes(new), [OlderSave(parse_bytes(old), 723)]
    assert newest.windows[0].first_position == 692
    assert window_reach(newest, older) == 691
    file = made(complete_windows(newest, older, 691), new, old)
    layout = parse_bytes(file)
    assert (layout.attention[0].rows, layout.attention[1].rows) == (724, WINDOW + 1)
    for region_number, region in enumerate(layout.attention[1].regions):
        for row in range(WINDOW + 1):
            start = region.offset + row * region.row_size
            assert file[start] == ((691 + row) * 7 + region_number * 3 + 1) % 251


def test_rows_nobody_has_are_refused() -> None:
    newest, older = parse_bytes(slot("b11434-gemma3-724")), parse_bytes(slot("b11434-gemma3-723"))
    with pytest.raises(CannotCompose, match="token 690"):
        complete_windows(newest, [OlderSave(older, 723)], 600)
    with pytest.raises(CannotCompose, match="token 691"):
        complete_windows(newest, [OlderSave(older, 691)], 691)  # they part before the rows that are missing
    assert window_reach(newest, [OlderSave(parse_bytes(slot("b11434-gpt-oss-40")), 40)]) == 692


def test_checkpoints_of_later_tokens_are_left_out() -> None:
    whole = slot("b11549-exaone4-40")
    assert len(parse_bytes(whole).checkpoints) == 1
    assert parse_bytes(made(cut(parse_bytes(whole), 30), whole)).checkpoints == ()
    assert [part.n_tokens for part in parse_bytes(made(cut(parse_bytes(whole), 36), whole)).checkpoints] == [36]


def test_plans_are_joined() -> None:
    plan = joined(
        [Inline(b"ab"), Inline(b""), Inline(b"c"), Copy(0, Span(0, 5)), Copy(0, Span(5, 20)), Copy(1, Span(3, 2))]
    )
    assert plan == (Inline(b"abc"), Copy(0, Span(0, 25)), Copy(1, Span(3, 2)))
