"""The parser, and composed slot files, on files that real engines wrote for tiny models.

In tests/kvstore/blocks/layouts the rows are replaced by a pattern of their token's position, and states by zeros:
everything the parser reads is as the engine wrote it, and the files stay small.
"""

import gzip
import os
import random
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvchat.kvstore.blocks.absorb import split_slot_file
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.blocks.layout import (
    CannotCompose,
    Layout,
    Plan,
    RecurrentState,
    Span,
    cut,
    with_masked_rows,
)
from kvchat.kvstore.blocks.parser import MAX_CACHES, SlotFileError, matches_tokens, parse, parse_layout, read_tokens
from kvchat.kvstore.blocks.rebuild import compose
from tests.kvstore.store_bench import MAGIC, header_bytes, parse_bytes
from tests.systems import needs_pipes

FOLDER = Path(__file__).with_name("layouts")
NAMES = sorted(path.name.removesuffix(".slot.gz") for path in FOLDER.glob("*.slot.gz"))
SMALL = [name for name in NAMES if "mamba" not in name and name.endswith("-40")]
LLAMA = "b11434-llama-40"
WINDOW = 32  # of the tiny models
NUMBERS = (0, 1, 2, 40, 0x7FFFFFFF, 0xFFFFFFFF)  # likely to be mistaken for a valid number


@cache
def slot(name: str) -> bytes:
    return gzip.decompress((FOLDER / f"{name}.slot.gz").read_bytes())


def layout_of(name: str) -> Layout:
    return parse_bytes(slot(name))


def spans_of(layout: Layout) -> Iterator[Span]:
    yield layout.header.span
    for cache_ in layout.caches:
        if isinstance(cache_, RecurrentState):
            yield cache_
            continue
        yield from (Span(cache_.cells.offset - 8, 8), cache_.cells, cache_.data_head)
        for region in cache_.regions:
            yield from (region.head, Span(region.offset, cache_.rows * region.row_size))
    yield from (layout.checkpoint_head, *layout.checkpoints) if layout.checkpoint_head else ()


def check_cover(layout: Layout) -> None:
    """Assert that the layout's parts cover every byte once."""
    at = 0
    for span in spans_of(layout):
        assert span.offset == at
        at = span.end
    assert at == layout.size


@pytest.mark.parametrize("name", NAMES)
def test_the_layout_covers_every_byte_and_locates_each_tokens_rows(name: str, tmp_path: Path) -> None:
    data, layout, path = slot(name), layout_of(name), tmp_path / "a.slot"
    check_cover(layout)
    assert layout.size == len(data)
    path.write_bytes(data)
    assert parse_layout(path) == layout
    assert read_tokens(path).tobytes() == data[layout.header.tokens.offset : layout.header.tokens.end]
    assert carry_out(cut(layout, layout.n_tokens), data) == data, "cut to its own length nothing changes"
    for number, part in enumerate(layout.attention_caches):
        for run in part.runs:
            for position in (run.position, run.position + run.rows - 1):
                (found,) = part.runs_between(position, position + 1)
                for index, region in enumerate(part.regions):
                    start = region.offset + found.row * region.row_size
                    row = data[start : start + region.row_size]
                    assert row == bytes([(position * 7 + index * 3 + number) % 251]) * region.row_size


@pytest.mark.parametrize(
    ("name", "expected"),  # cells, first position, bytes per cell, regions; None: recurrent state
    [
        ("b11434-llama-40", [(40, 0, 12, 4)]),
        ("b11434-gemma3-40", [(40, 0, 12, 2), (32, 8, 12, 2)]),
        ("b11434-gpt-oss-40", [(40, 0, 12, 2), (32, 8, 12, 2)]),
        ("b11434-qwen35-40", [(40, 0, 24, 2), None]),  # M-RoPE: long cells
        ("b11434-qwen3next-40", [(40, 0, 12, 2), None]),
        ("b11434-lfm2-40", [(40, 0, 12, 0), (32, 8, 12, 2), None]),  # no layer without a window
        ("b11434-mamba-40", [None]),
        ("b11434-deepseek2-40", [(40, 0, 12, 2)]),  # MLA: K alone
        ("b11434-deepseek32-40", [(40, 0, 12, 2), (40, 0, 12, 2)]),  # and an indexer
        ("b11434-minimax-m3-40", [(40, 0, 12, 4), (40, 0, 12, 2)]),
        ("b11549-gemma3-256", [(256, 0, 12, 2), (32, 224, 12, 2)]),
    ],
)
def test_caches_of_each_kind_of_memory(name: str, expected: list[tuple[int, ...] | None]) -> None:
    assert expected == [
        None if isinstance(c, RecurrentState) else (c.rows, c.first_position, c.cell_size, len(c.regions))
        for c in layout_of(name).caches
    ]


def test_checkpoints_are_parsed_and_those_of_later_tokens_left_out() -> None:
    assert [part.n_tokens for part in layout_of("b11549-gemma3-256").checkpoints] == [36, 40, 252]
    assert layout_of("b11549-llama-40").checkpoints == ()  # full attention needs none
    assert layout_of("b11549-qwen35-40").checkpoints[0].first_position == 35
    whole = slot("b11549-exaone4-40")
    assert len(parse_bytes(whole).checkpoints) == 1
    for n_tokens, left in ((30, []), (36, [36])):
        checkpoints = parse_bytes(carry_out(cut(parse_bytes(whole), n_tokens), whole)).checkpoints
        assert [part.n_tokens for part in checkpoints] == left


def changed(offset: int, value: int) -> bytes:
    data = bytearray(slot(LLAMA))
    struct.pack_into("<i", data, offset, value)
    return bytes(data)


def unknown_layouts() -> dict[str, bytes]:
    (cache_,) = layout_of(LLAMA).attention_caches
    empty_cache = struct.pack("<II", 1, 1) + struct.pack("<iIi", 39, 1, 0) + struct.pack("<IIII", 0, 0, 0, 0)
    return {
        "ambiguous caches without rows": slot(LLAMA)[: layout_of(LLAMA).header.span.end]
        + empty_cache * (MAX_CACHES + 1),
        "truncated rows": slot(LLAMA)[:-1],
        "a byte too many": slot(LLAMA) + b"\0",
        "a truncated checkpoint": slot("b11549-gemma3-256")[:-4],
        "state version 5": changed(4, 5),
        "2 KV streams": changed(cache_.cells.offset - 8, 2),
        "transposed V": changed(cache_.data_head.offset, 1),
        "a cell of two sequences": changed(cache_.cells.offset + 4, 2),
        "two cells of one position": changed(cache_.cells.offset, 1),
        "pictures without placeholders": changed(12 + 4 * 43, 1),
        "rows of type 14": changed(cache_.regions[0].head.offset, 14),
    }


@pytest.mark.parametrize("fault", unknown_layouts())
def test_unknown_layouts_are_refused(fault: str) -> None:
    with pytest.raises(SlotFileError):
        parse_bytes(unknown_layouts()[fault])


def parse_watched(data: bytes) -> None:
    """Parse; fail on any error but SlotFileError, on reads outside, many reads, much memory or an uncovered byte."""
    reads = 0

    def read(offset: int, count: int) -> bytes:
        nonlocal reads
        reads += 1
        assert 0 <= offset <= offset + count <= len(data)
        assert reads < 100_000
        return data[offset : offset + count]

    tracemalloc.start()
    try:
        with suppress(SlotFileError):
            check_cover(parse(len(data), read))
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 * len(data) + (1 << 20)


def mutated(data: bytes, layout: Layout, dice: random.Random) -> bytes:
    """Return the file with up to three words changed, then perhaps cut or made longer.

    Half of the words are in number fields, the others anywhere: in rows, states and checkpoints.
    """
    changed = bytearray(data)
    heads = [span for span in spans_of(layout) if 4 <= span.size <= 4096]
    for _ in range(dice.randint(1, 3)):
        span = dice.choice(heads) if dice.random() < 0.5 else Span(0, len(data))
        word = dice.choice(NUMBERS) if dice.random() < 0.5 else dice.getrandbits(32)
        struct.pack_into("<I", changed, span.offset + 4 * dice.randrange(span.size // 4), word)
    match dice.choice(["whole", "whole", "cut", "longer"]):
        case "cut":
            del changed[dice.randrange(len(changed)) :]
        case "longer":
            changed += dice.randbytes(dice.randint(1, 64))
    return bytes(changed)


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(SMALL), seed=st.integers(0, 2**32))
def test_mutations_do_no_harm_and_are_restored(tmp_path: Path, name: str, seed: int) -> None:
    changed = mutated(slot(name), layout_of(name), random.Random(seed))
    parse_watched(changed)
    original, rebuilt, blocks = tmp_path / "mutated", tmp_path / "rebuilt", BlockFiles(tmp_path / "blocks", sync=False)
    original.write_bytes(changed)
    recipe = split_slot_file(original, None, blocks)[0]
    compose((Span(0, recipe.file_size),), recipe, blocks, rebuilt)
    assert rebuilt.read_bytes() == changed


def carry_out(plan: Plan, stored: bytes) -> bytes:
    return b"".join(stored[piece.offset : piece.end] if isinstance(piece, Span) else piece for piece in plan)


@pytest.mark.parametrize("n_tokens", [40, 256])
def test_a_cut_file_equals_what_the_engine_saves_there(n_tokens: int) -> None:
    whole = slot("b11434-llama-300")
    assert carry_out(cut(parse_bytes(whole), n_tokens), whole) == slot(f"b11434-llama-{n_tokens}")


@pytest.mark.parametrize(
    ("name", "n_tokens"),
    [
        *((name, 39) for name in ("b11434-mamba-40", "b11434-qwen35-40", "b11434-gemma3-40", "b11549-lfm2-300")),
        *((LLAMA, n_tokens) for n_tokens in (0, 41)),
    ],
)
def test_impossible_cuts_are_refused(name: str, n_tokens: int) -> None:
    with pytest.raises(CannotCompose):
        cut(layout_of(name), n_tokens)


@pytest.mark.parametrize(("architecture", "length"), [("gemma3", 724), ("gemma3", 40), ("gpt-oss", 40)])
def test_a_window_gets_an_older_row_of_zeros(architecture: str, length: int) -> None:
    saved = slot(f"b11434-{architecture}-{length}")
    layout = parse_bytes(saved)
    (window,) = layout.window_caches
    file = carry_out(with_masked_rows(layout, WINDOW), saved)
    head, cells = window.cells.offset - 8, window.cells.offset
    assert file[:head] == saved[:head], "the full cache is as it was saved"
    rows, first, *_ = struct.unpack_from("<4xIi", file, head)
    assert (rows, first) == (WINDOW + 1, length - WINDOW - 2)
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
        with_masked_rows(layout_of(name), window)


# Headers

token_ids = st.integers(0, 2**31 - 1)
# Headers that are right in most places, so that the search gets past the magic.
near_headers = st.builds(
    lambda magic, version, count, words, tail: magic + struct.pack(f"<II{len(words)}i", version, count, *words) + tail,
    st.sampled_from([MAGIC, b"ggsq"]),
    st.one_of(st.just(4), st.integers(0, 2**32 - 1)),
    st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1)),
    st.lists(st.one_of(st.integers(-2, 9), st.integers(-(2**31), 2**31 - 1)), max_size=12),
    st.binary(max_size=12),
)
per_example_file = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def read(path: Path, data: bytes) -> tuple[int, ...]:
    path.write_bytes(data)
    return tuple(read_tokens(path).tolist())


def packed(*words: int) -> bytes:
    return MAGIC + struct.pack(f"<II{len(words)}i", 4, len(words), *words) + b"state"


@per_example_file
@given(st.lists(token_ids, max_size=300), st.booleans(), st.integers(1, 9))
def test_both_forms_give_back_their_tokens(tmp_path: Path, tokens: list[int], wrapped: bool, version: int) -> None:
    data = header_bytes(tokens, wrapped=wrapped, version=version) + b"state"
    assert read(tmp_path / "a.slot", data) == tuple(tokens)


@per_example_file
@given(st.one_of(st.binary(max_size=200), near_headers))
def test_any_bytes_are_tokens_or_a_slot_file_error(tmp_path: Path, data: bytes) -> None:
    with suppress(SlotFileError):
        tokens = read(tmp_path / "a.slot", data)
        assert data.startswith(MAGIC)
        assert len(tokens) * 4 < len(data)
        assert all(token >= -1 for token in tokens)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"qsgg\x04", "truncated in the header"),
        (MAGIC + struct.pack("<II", 0xFFFFFFFF, 0) + bytes(9), "not a slot file"),
        (MAGIC + struct.pack("<II", 4, 1000) + bytes(100), "truncated in the token list"),
        (packed(-1, 2, 0, 0), "unknown token list format"),
        (packed(-1, 1, -3, 0), "overlaps the state"),
        (packed(-1, 1, 1, 7, 1, 0), "unknown token list format"),
        (packed(-1, 1, 2, 7, -1, 1), "unknown token list format"),
        (packed(-1, 1, 2, -2, -1, 1, 0), "invalid ids"),
        (packed(5, -7), "invalid ids"),
    ],
)
def test_errors_name_the_fault(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(SlotFileError, match=message):
        read(tmp_path / "a.slot", data)


def test_pictures_are_placeholders_matched_by_position(tmp_path: Path) -> None:
    # one picture, with a word of the engine's own before it
    held = read(tmp_path / "a.slot", packed(-1, 1, 5, 7, 8, -1, -1, 9, 1, 5, 1234))
    assert held == (7, 8, -1, -1, 9)
    assert matches_tokens(np.array(held), (7, -500, -600, -700, 9))
    for other in ((7, -500, -600, -700, 8), (7, 8, 1, -700, 9), (7, -500, -600, 9)):
        assert not matches_tokens(np.array(held), other)
    assert not matches_tokens(np.array((7, 8, 9)), (7, -500, 9))
    assert matches_tokens(np.array((7, 8, 9)), (7, 8, 9))


def test_a_count_of_billions_allocates_nothing(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SlotFileError):
            read(tmp_path / "a.slot", MAGIC + struct.pack("<II", 4, 2**32 - 1) + bytes(4096))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@needs_pipes
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SlotFileError, match="not a file"):
        read_tokens(tmp_path / "pipe")
