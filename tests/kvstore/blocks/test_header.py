from __future__ import annotations

import os
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvchat.kvstore.blocks.parser import SlotFileError, matches_tokens, read_tokens
from tests.kvstore.store_bench import MAGIC, header_bytes

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


@pytest.mark.parametrize("wrapped", [True, False])
def test_every_cut_within_the_header_is_noticed(tmp_path: Path, wrapped: bool) -> None:
    data = header_bytes(range(20), wrapped=wrapped)
    for end in range(len(data) + 1):
        with pytest.raises(SlotFileError):
            read(tmp_path / "a.slot", data[:end])
    assert read(tmp_path / "a.slot", data + b"state") == tuple(range(20))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"qsgg\x04", "truncated within the header"),
        (b"GGUF" + bytes(100), "not a slot file"),
        (MAGIC + struct.pack("<II", 0xFFFFFFFF, 0) + bytes(9), "not a slot file"),
        (MAGIC + struct.pack("<II", 4, 1000) + bytes(100), "truncated within the token list"),
        (packed(-1, 2, 0, 0), "unknown form"),
        (packed(-1, 1, 9, 0), "longer than its place"),
        (packed(-1, 1, -3, 0), "longer than its place"),
        (packed(-1, 1, 1, 7, 1, 0), "unknown form"),
        (packed(-1, 1, 2, 7, -1, 0), "unknown form"),
        (packed(-1, 1, 2, 7, -1, 1), "unknown form"),
        (packed(-1, 1, 2, -2, -1, 1, 0), "no tokens"),
        (packed(-1, 1, 1, 7, 0, 7), "unknown form"),
        (packed(5, -7), "no tokens"),
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


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SlotFileError, match="not a file"):
        read_tokens(tmp_path / "pipe")
