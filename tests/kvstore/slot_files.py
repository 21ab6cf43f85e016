"""Synthetic slot files, and the store around them, for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kvchat.kvstore.whole_file_store import WholeFileStore

from kvchat.kvstore.savepoint import Fingerprint, Miss, SavePoint, StagedFile, Tokens

MAGIC = b"qsgg"  # 'ggsq' as a little-endian u32
FINGERPRINT = Fingerprint("smollm2:abc", "f16", "f16", "auto", 1, "")
BYTES_PER_TOKEN = 64


def slot_file_bytes(
    tokens: Sequence[int], *, wrapped: bool = True, version: int = 4, body: bytes | None = None
) -> bytes:
    """What an engine would write: the true header, and a body that differs with the tokens."""
    words = [-1, 1, len(tokens), *tokens, 0] if wrapped else list(tokens)
    if body is None:
        body = struct.pack("<II", 1, len(tokens)) + b"".join(
            token.to_bytes(4, "little") * (BYTES_PER_TOKEN // 4) for token in tokens
        )
    return MAGIC + struct.pack(f"<II{len(words)}i", version, len(words), *words) + body


def write_slot_file(path: Path, tokens: Sequence[int], *, wrapped: bool = True, body: bytes | None = None) -> int:
    """Write a synthetic slot file; returns its size, as an engine's n_written."""
    return path.write_bytes(slot_file_bytes(tokens, wrapped=wrapped, body=body))


class Clock:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


@dataclass
class Shelf:
    """A store with everything a test wants to turn: the clock, the free disk space, an engine's slot folder."""

    folder: Path
    quota: int = 10_000_000
    floor: int = 1_000
    free: int = 1_000_000_000

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.store = self.open()
        self.slots = self.store.staging_folder()

    def open(self) -> WholeFileStore:
        """Open the folder once more, as another process would."""
        return WholeFileStore(self.folder, self.quota, self.floor, self.clock, lambda: self.free)

    def save(self, conversation: str, tokens: Tokens, fingerprint: Fingerprint = FINGERPRINT) -> SavePoint:
        """Play the engine: write a slot file for the tokens, and have it absorbed."""
        path = self.slots / "saved.slot"
        size = write_slot_file(path, tokens)
        return self.store.absorb(path, conversation, fingerprint, tokens, size)

    def find(self, conversation: str, prompt: Tokens, fingerprint: Fingerprint = FINGERPRINT) -> SavePoint | Miss:
        """Look for the best save point."""
        return self.store.find(conversation, fingerprint, prompt)

    def find_and_stage(self, conversation: str, prompt: Tokens) -> StagedFile | Miss:
        """What a turn does before a request."""
        found = self.find(conversation, prompt)
        return found if isinstance(found, Miss) else self.store.stage(found, self.slots)

    def slot_file(self, save_point: SavePoint) -> Path:
        """Where the store keeps the save point's slot file."""
        return self.folder / "points" / save_point.id / "kv.slot"

    def manifest_file(self, save_point: SavePoint) -> Path:
        """Where the store keeps the save point's manifest."""
        return self.folder / "points" / save_point.id / "manifest.json"


def line(length: int, start: int = 1) -> Tokens:
    """A conversation of some tokens."""
    return tuple(range(start, start + length))
