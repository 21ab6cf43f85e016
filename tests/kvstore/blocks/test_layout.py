"""The parser, and composed slot files, on files that real engines wrote for tiny models.

In tests/kvstore/blocks/layouts the rows are replaced by a pattern of their token's position, and states by zeros:
everything the parser reads is as the engine wrote it, and the files stay small.
"""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.kvstore.blocks import parser as layout_parser
from kvchat.kvstore.blocks.layout import (
    AttentionCache,
    CannotCompose,
    Layout,
    Plan,
    RecurrentState,
    Span,
    cut,
    merge_adjacent,
    with_masked_rows,
)
from kvchat.kvstore.blocks.parser import SlotFileError, parse, parse_layout, read_tokens
from tests.kvstore.slot_files import parse_bytes

FOLDER = Path(__file__).with_name("layouts")
NAMES = sorted(path.name.removesuffix(".slot.gz") for path in FOLDER.glob("*.slot.gz"))
SMALL = [name for name in NAMES if "mamba" not in name and name.endswith("-40")]


@cache
def slot(name: str) -> bytes:
    return gzip.decompress((FOLDER / f"{name}.slot.gz").read_bytes())


def spans_of(layout: Layout) -> Iterator[Span]:
    """All parts of the file, each named by the layout."""
    yield layout.header.span
    for part in layout.caches:
        if isinstance(part, RecurrentState):
            yield part
            continue
        yield from (Span(part.cells.offset - 8, 8), part.cells, part.data_head)
        for region in part.regions:
            yield from (region.head, Span(region.offset, part.rows * region.row_size))
    yield from (layout.checkpoint_head, *layout.checkpoints) if layout.checkpoint_head else ()


def check_cover(layout: Layout) -> None:
    at = 0
    for span in spans_of(layout):
        assert span.offset == at, "a gap or an overlap"
        at = span.end
    assert at == layout.size


def shape(layout: Layout) -> list[tuple[int, ...] | str]:
    """Per cache: cells, first position, bytes per cell, regions; "recurrent" for the state."""
    return [
        "recurrent"
        if isinstance(part, RecurrentState)
        else (part.rows, part.first_position, part.cell_size, len(part.regions))
        for part in layout.caches
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_has_its_name(name: str, tmp_path: Path) -> None:
    data = slot(name)
    layout = parse_bytes(data)
    check_cover(layout)
    assert layout.size == len(data)
    assert layout.header.tokens.size == 4 * layout.n_tokens
    path = tmp_path / "a.slot"
    path.write_bytes(data)
    assert parse_layout(path) == layout
    assert read_tokens(path).tobytes() == data[layout.header.tokens.offset : layout.header.tokens.end]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("b11434-llama-40", [(40, 0, 12, 4)]),
        ("b11434-gemma3-40", [(40, 0, 12, 2), (32, 8, 12, 2)]),
        ("b11434-gpt-oss-40", [(40, 0, 12, 2), (32, 8, 12, 2)]),
        ("b11434-qwen35-40", [(40, 0, 24, 2), "recurrent"]),  # M-RoPE: long cells
        ("b11434-qwen3next-40", [(40, 0, 12, 2), "recurrent"]),
        ("b11434-lfm2-40", [(40, 0, 12, 0), (32, 8, 12, 2), "recurrent"]),  # no layer without a window
        ("b11434-mamba-40", ["recurrent"]),
        ("b11434-deepseek2-40", [(40, 0, 12, 2)]),  # MLA: K alone
        ("b11434-deepseek32-40", [(40, 0, 12, 2), (40, 0, 12, 2)]),  # and an indexer
        ("b11434-minimax-m3-40", [(40, 0, 12, 4), (40, 0, 12, 2)]),
        ("b11549-gemma3-256", [(256, 0, 12, 2), (32, 224, 12, 2)]),
    ],
)
def test_what_each_kind_of_memory_holds(name: str, expected: list[tuple[int, ...] | str]) -> None:
    assert shape(parse_bytes(slot(name))) == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_are_those_of_their_tokens(name: str) -> None:
    data = slot(name)
    for number, part in enumerate(parse_bytes(data).attention):
        for run in part.runs:
            for position in (run.position, run.position + run.rows - 1):
                (found,) = part.runs_between(position, position + 1)
                for index, region in enumerate(part.regions):
                    start = region.offset + found.row * region.row_size
                    row = data[start : start + region.row_size]
                    assert row == bytes([(position * 7 + index * 3 + number) % 251]) * region.row_size


def test_newer_servers_append_their_checkpoints() -> None:
    layout = parse_bytes(slot("b11549-gemma3-256"))
    assert [part.n_tokens for part in layout.checkpoints] == [36, 40, 252]
    assert parse_bytes(slot("b11549-llama-40")).checkpoints == ()  # full attention needs none
    assert parse_bytes(slot("b11549-qwen35-40")).checkpoints[0].first_position == 35


def changed(name: str, offset: int, form: str, *values: int) -> bytes:
    data = bytearray(slot(name))
    struct.pack_into("<" + form, data, offset, *values)
    return bytes(data)


def llama() -> AttentionCache:
    return parse_bytes(slot("b11434-llama-40")).attention[0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda: b"qsgg", "within the header"),
        (lambda: b"GGUF" + bytes(40), "not a slot file"),
        (lambda: changed("b11434-llama-40", 4, "I", 5), "state version 5"),
        (lambda: slot("b11434-llama-40")[:-1], "layout is unknown"),
        (lambda: slot("b11434-llama-40") + b"\0", "layout is unknown"),
        (lambda: changed("b11434-llama-40", llama().cells.offset - 8, "I", 2), "layout is unknown"),
        (lambda: changed("b11434-llama-40", llama().data_head.offset, "I", 1), "layout is unknown"),
        (lambda: changed("b11434-llama-40", llama().cells.offset + 4, "I", 2), "layout is unknown"),
        (lambda: changed("b11434-llama-40", llama().cells.offset, "i", 1), "layout is unknown"),
        (lambda: changed("b11434-llama-40", 12 + 4 * 43, "I", 1), "unknown form"),
        (lambda: changed("b11434-llama-40", llama().regions[0].head.offset, "i", 14), "layout is unknown"),
        (lambda: slot("b11549-gemma3-256")[:-4], "layout is unknown"),
    ],
)
def test_what_is_not_understood_is_told(data, reason: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SlotFileError, match=reason):
        parse_bytes(data())


def parse_watched(data: bytes) -> None:
    """Parse, and fail on anything but SlotFileError, on a read outside, on many reads or much memory."""
    reads = 0

    def read(offset: int, count: int) -> bytes:
        nonlocal reads
        reads += 1
        assert 0 <= offset <= offset + count <= len(data)
        assert reads < 100_000
        return data[offset : offset + count]

    tracemalloc.start()
    try:
        check_cover(parse(len(data), read))
    except SlotFileError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 * len(data) + (1 << 20)


WORDS = (0, 1, 2, 40, 0x7FFFFFFF, 0xFFFFFFFF)  # where a number is read, these go wrong in ways of their own


def mutated(data: bytes, layout: Layout, dice: random.Random) -> bytes:
    """The file with up to three words changed, then perhaps cut or made longer.

    Half of the words lie where numbers stand, the others anywhere: in rows, states and checkpoints.
    """
    changed = bytearray(data)
    heads = [span for span in spans_of(layout) if 4 <= span.size <= 4096]
    for _ in range(dice.randint(1, 3)):
        span = dice.choice(heads) if dice.random() < 0.5 else Span(0, len(data))
        word = dice.choice(WORDS) if dice.random() < 0.5 else dice.getrandbits(32)
        struct.pack_into("<I", changed, span.offset + 4 * dice.randrange(span.size // 4), word)
    match dice.choice(["whole", "whole", "cut", "longer"]):
        case "cut":
            del changed[dice.randrange(len(changed)) :]
        case "longer":
            changed += dice.randbytes(dice.randint(1, 64))
    return bytes(changed)


@pytest.mark.slow
@settings(max_examples=400)
@given(name=st.sampled_from(SMALL), seed=st.integers(0, 2**32))
def test_no_mutation_does_harm(name: str, seed: int) -> None:
    parse_watched(mutated(slot(name), parse_bytes(slot(name)), random.Random(seed)))


@pytest.mark.slow
@settings(max_examples=200)
@given(tail=st.binary(max_size=600), name=st.sampled_from(SMALL))
def test_no_state_after_a_true_header_does_harm(tail: bytes, name: str) -> None:
    data = slot(name)
    parse_watched(data[: parse_bytes(data).header.span.end] + tail)


def test_layers_without_rows_do_not_multiply_the_ways_to_read() -> None:
    data = slot("b11434-llama-40")
    empty = struct.pack("<II", 1, 1) + struct.pack("<iIi", 39, 1, 0) + struct.pack("<IIII", 0, 0, 0, 0)
    with pytest.raises(SlotFileError):
        parse_bytes(data[: parse_bytes(data).header.span.end] + empty * (layout_parser.MAX_CACHES + 1))


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
    assert file[: window.cells.offset - 8] == saved[: window.cells.offset - 8], "what does not slide is as it was saved"
    rows, first, *_ = struct.unpack_from("<4xIi", file, window.cells.offset - 8)
    assert (rows, first) == (WINDOW + 1, length - WINDOW - 2)
    cells = window.cells.offset - 8 + 8
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
    plan = merge_adjacent([b"ab", b"", b"c", Span(0, 5), Span(5, 20), Span(3, 2)])
    assert plan == (b"abc", Span(0, 25), Span(3, 2))
