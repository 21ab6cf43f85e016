"""What the store writes beside each slot file: the save point's facts as JSON, sealed by a checksum."""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

import numpy as np
from blake3 import blake3

from kvchat.kvstore.savepoint import Fingerprint, SavePoint, Tokens

FORMAT = 1
MAX_BYTES = 64_000_000  # a manifest of ten million tokens is shorter
_SINCE_ADDED = {"rope": ""}  # facts of a fingerprint that the first manifests lack: they match where it is of no matter
ID_PATTERN = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}-[0-9a-f]{16}")


class ManifestError(Exception):
    """The bytes are no manifest of this format, or were changed; the message says which."""


@dataclass(frozen=True)
class Manifest:
    """A save point's facts. Its tokens stay packed here, so that an index of many costs little memory."""

    id: str
    conversation_id: str
    fingerprint: Fingerprint
    n_tokens: int
    packed_tokens: str
    size: int  # bytes of the slot file
    blake3: str  # of the slot file, hexadecimal
    created_at: datetime

    @property
    def tokens(self) -> Tokens:
        """The token ids, unpacked."""
        return unpack_tokens(self.packed_tokens, self.n_tokens)

    def save_point(self, last_used_at: datetime) -> SavePoint:
        """The save point this manifest describes."""
        return SavePoint(
            self.id, self.conversation_id, self.fingerprint, self.tokens, self.size, self.created_at, last_used_at
        )


def conversation_key(conversation_id: str) -> str:
    """The first part of every id of a conversation: says whose a file is even when its manifest cannot be read."""
    return blake3(conversation_id.encode()).hexdigest(length=8)


def line_key(conversation_id: str, fingerprint: Fingerprint) -> str:
    """The first two parts of an id: one conversation in one kind of engine, of which one save point is kept."""
    facts = json.dumps(asdict(fingerprint), sort_keys=True).encode()
    return f"{conversation_key(conversation_id)}-{blake3(facts).hexdigest(length=8)}"


def line_of(point_id: str) -> str:
    """The line an id belongs to, see line_key."""
    return point_id.rpartition("-")[0]


def new_id(conversation_id: str, fingerprint: Fingerprint) -> str:
    """A fresh id for a save point, safe as a file name."""
    return f"{line_key(conversation_id, fingerprint)}-{secrets.token_hex(8)}"


def pack_tokens(tokens: Sequence[int]) -> str:
    """Token ids as text: int32 little endian, zlib, base64."""
    return base64.b64encode(zlib.compress(np.asarray(tokens, dtype="<i4").tobytes(), 6)).decode()


def unpack_tokens(packed: str, n_tokens: int) -> Tokens:
    """The token ids out of `pack_tokens`. Raises ManifestError unless there are exactly `n_tokens`."""
    unpacker = zlib.decompressobj()
    try:
        # One byte more than there should be: enough to notice, too little to be flooded.
        raw = unpacker.decompress(base64.b64decode(packed, validate=True), n_tokens * 4 + 1)
    except (binascii.Error, ValueError, OverflowError, zlib.error) as error:
        raise ManifestError("its token list cannot be unpacked") from error
    if n_tokens < 0 or len(raw) != n_tokens * 4 or not unpacker.eof:
        raise ManifestError("its token list has another length than it says")
    tokens: list[int] = np.frombuffer(raw, dtype="<i4").tolist()
    return tuple(tokens)


def write_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON with a checksum over everything else in it."""
    facts = asdict(manifest) | {"format": FORMAT, "created_at": manifest.created_at.isoformat()}
    return json.dumps(facts | {"check": checksum(facts)}, indent=1).encode()


def read_manifest(data: bytes) -> Manifest:
    """The manifest in `data`. Raises ManifestError, and nothing else, for anything that was not written as one."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ManifestError("its manifest is not readable") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ManifestError("its manifest has an unknown form")
    if facts.pop("check", None) != checksum(facts):
        raise ManifestError("its manifest was changed")
    del facts["format"]
    try:
        manifest = _from_facts(facts)
    except (TypeError, ValueError, KeyError) as error:
        raise ManifestError("its manifest is not complete") from error
    unpack_tokens(manifest.packed_tokens, manifest.n_tokens)
    return manifest


def _from_facts(facts: dict[str, Any]) -> Manifest:
    """The manifest out of its JSON object; TypeError, ValueError or KeyError where a fact is missing or odd."""
    fingerprint = Fingerprint(**(_SINCE_ADDED | facts.pop("fingerprint")))
    created_at = datetime.fromisoformat(facts.pop("created_at"))
    manifest = Manifest(fingerprint=fingerprint, created_at=created_at, **facts)
    for value in (manifest, fingerprint):
        for field in fields(value):
            expected = {"int": int, "str": str}.get(str(field.type), object)
            if not isinstance(getattr(value, field.name), expected):
                raise TypeError(field.name)
    if created_at.tzinfo is None or manifest.size < 0 or not ID_PATTERN.fullmatch(manifest.id):
        raise ValueError
    return manifest


def checksum(facts: dict[str, Any]) -> str:
    """BLAKE3 of the facts in canonical JSON, hexadecimal."""
    return blake3(json.dumps(facts, sort_keys=True).encode()).hexdigest()
