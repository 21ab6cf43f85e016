from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.kvstore import manifest
from kvchat.kvstore.manifest import Manifest, ManifestError, pack_tokens, read_manifest, unpack_tokens, write_manifest
from kvchat.kvstore.savepoint import Fingerprint
from tests.kvstore.slot_files import FINGERPRINT, line

token_ids = st.integers(0, 2**31 - 1)
EXAMPLE = Manifest(
    manifest.new_id("thesis", FINGERPRINT),
    "thesis",
    FINGERPRINT,
    500,
    pack_tokens(line(500)),
    1234,
    "ab" * 32,
    datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
)


@given(st.lists(token_ids, max_size=2000))
def test_packed_tokens_come_back(tokens: list[int]) -> None:
    assert unpack_tokens(pack_tokens(tokens), len(tokens)) == tuple(tokens)


@given(st.lists(token_ids, max_size=50), st.integers(-3, 60))
def test_another_number_of_tokens_is_refused(tokens: list[int], claimed: int) -> None:
    if claimed != len(tokens):
        with pytest.raises(ManifestError):
            unpack_tokens(pack_tokens(tokens), claimed)


@given(st.one_of(st.text(max_size=80), st.binary(max_size=80).map(lambda data: data.decode("latin-1"))), st.integers())
def test_any_text_unpacks_or_is_a_manifest_error(text: str, n_tokens: int) -> None:
    with suppress(ManifestError):
        assert len(unpack_tokens(text, n_tokens)) == n_tokens


def test_a_flood_stays_packed() -> None:
    with pytest.raises(ManifestError):
        unpack_tokens(pack_tokens([0] * 5_000_000), 10)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.lists(token_ids, max_size=40),
    st.integers(0, 2**60),
)
def test_a_manifest_comes_back(conversation: str, tokens: list[int], size: int) -> None:
    fingerprint = Fingerprint("m", "q8_0", "f16", "on", 2, "long")
    written = replace(
        EXAMPLE,
        id=manifest.new_id(conversation, fingerprint),
        conversation_id=conversation,
        fingerprint=fingerprint,
        n_tokens=len(tokens),
        packed_tokens=pack_tokens(tokens),
        size=size,
    )
    back = read_manifest(write_manifest(written))
    assert back == written
    assert back.tokens == tuple(tokens)


@given(st.data())
def test_no_changed_byte_goes_unnoticed(data: st.DataObject) -> None:
    written = bytearray(write_manifest(EXAMPLE))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] ^= data.draw(st.integers(1, 255))
    with suppress(ManifestError):
        assert read_manifest(bytes(written)) == EXAMPLE  # white space between the facts, say


@given(st.binary(max_size=100))
def test_any_bytes_are_a_manifest_error(data: bytes) -> None:
    with pytest.raises(ManifestError):
        read_manifest(data)


@pytest.mark.parametrize(
    "change",
    [
        {"size": "12"},
        {"size": -1},
        {"conversation_id": None},
        {"fingerprint": {"model": "m"}},
        {"fingerprint": None},
        {"created_at": "yesterday"},
        {"created_at": "2026-01-01T00:00:00"},
        {"id": "../../etc"},
        {"n_tokens": 10**30},
        {"extra": 1},
    ],
)
def test_a_sealed_manifest_with_odd_facts_is_refused(change: dict[str, object]) -> None:
    facts = json.loads(write_manifest(EXAMPLE)) | change
    del facts["check"]
    sealed = json.dumps(facts | {"check": manifest.checksum(facts)}).encode()
    with pytest.raises(ManifestError):
        read_manifest(sealed)


@pytest.mark.parametrize("rope", ["", "long"])
def test_a_manifest_from_before_the_rope_factors_matches_a_model_without_them(rope: str) -> None:
    facts = json.loads(write_manifest(EXAMPLE))
    del facts["check"], facts["fingerprint"]["rope"]
    sealed = json.dumps(facts | {"check": manifest.checksum(facts)}).encode()
    same = read_manifest(sealed).fingerprint == replace(FINGERPRINT, rope=rope)
    assert same == (rope == "")


def test_an_id_tells_conversation_and_engine_apart() -> None:
    mine = manifest.new_id("thesis", FINGERPRINT)
    assert manifest.ID_PATTERN.fullmatch(mine)
    assert manifest.line_of(mine) == manifest.line_key("thesis", FINGERPRINT)
    assert mine.startswith(manifest.conversation_key("thesis"))
    assert manifest.line_key("thesis", replace(FINGERPRINT, streams=2)) != manifest.line_key("thesis", FINGERPRINT)
    assert manifest.line_key("Thesis", FINGERPRINT) != manifest.line_key("thesis", FINGERPRINT)
