"""Synthetic slot files with the engine's layout, and a block store with an engine that saves them.

As in an engine, the rows of a token depend on the tokens up to it and on nothing else.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from kvchat.kvstore import disk, memory_files
from kvchat.kvstore.blocks.layout import Layout
from kvchat.kvstore.blocks.parser import parse
from kvchat.kvstore.memory_files import MemoryRoom
from kvchat.kvstore.savepoint import (
    Bounds,
    Fingerprint,
    Predecessor,
    RestoreMiss,
    RestorePlan,
    SavePoint,
    StagedFile,
    Tier,
    Tokens,
)
from kvchat.kvstore.store import BlockStore
from kvchat.text.reasons import Reason, ReasonCode

MAGIC = b"qsgg"  # 'ggsq' as a little-endian u32
FINGERPRINT = Fingerprint("smollm2:abc", "f16", "f16", "auto", 1, "")
F16 = 1
_RECURRENT_STATE = 512  # bytes of one layer's state


def token_range(length: int, start: int = 1) -> Tokens:
    return tuple(range(start, start + length))


def header_bytes(tokens: Sequence[int], *, wrapped: bool = True, version: int = 4) -> bytes:
    words = [-1, 1, len(tokens), *tokens, 0] if wrapped else list(tokens)
    return MAGIC + struct.pack(f"<II{len(words)}i", version, len(words), *words)


def parse_bytes(data: bytes) -> Layout:
    """Return the layout of a slot file held in memory. Raises SlotFileError."""
    return parse(len(data), lambda offset, count: data[offset : offset + count])


@dataclass(frozen=True)
class Model:
    layers: int = 2
    row_size: int = 32  # bytes
    window: int = 0  # tokens of a sliding-window cache beside the full one
    recurrent: bool = False

    @property
    def row_bytes(self) -> int:
        return 2 * self.layers * self.row_size

    def slot_file(self, tokens: Sequence[int]) -> bytes:
        parts = [header_bytes(tokens)]
        states = _states(tokens)
        parts += self._cache(states, np.arange(len(tokens)), 0)
        if self.window:
            kept = np.arange(max(0, len(tokens) - self.window), len(tokens))
            parts += self._cache(states, np.roll(kept, len(tokens) % self.window), 1)  # the window is a ring
        if self.recurrent:
            parts += self._state(states, len(tokens))
        return b"".join(parts)

    def _cache(self, states: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64], number: int) -> list[bytes]:
        cells = np.zeros((len(positions), 3), "<i4")
        cells[:, 0], cells[:, 1] = positions, 1
        parts = [struct.pack("<II", 1, len(positions)), cells.tobytes(), struct.pack("<IIII", 0, self.layers, 64, 64)]
        for region in range(2 * self.layers):
            parts.append(struct.pack("<iQ", F16, self.row_size))
            parts.append(_noise(states[positions], self.row_size, 1000 * number + region))
        return parts

    def _state(self, states: npt.NDArray[np.uint64], n_tokens: int) -> list[bytes]:
        parts = [struct.pack("<IiIII", 1, n_tokens - 1, 0, 0, 1)]
        for number in (2, 3):
            parts += [struct.pack("<iQ", 0, _RECURRENT_STATE), _noise(states[-1:], _RECURRENT_STATE, 5000 + number)]
        return parts


FULL = Model()
BIG = Model(layers=8, row_size=512)
WINDOW = Model(window=40)
HYBRID = Model(recurrent=True)


def _states(tokens: Sequence[int]) -> npt.NDArray[np.uint64]:
    state = 0
    states = np.empty(len(tokens), np.uint64)
    for place, token in enumerate(tokens):
        state = (state * 6364136223846793005 + token + 1442695040888963407) % 2**64
        states[place] = state
    return states


def _noise(states: npt.NDArray[np.uint64], row_size: int, salt: int) -> bytes:
    columns = np.arange(row_size // 8, dtype=np.uint64) + np.uint64(salt << 20)
    mixed = states[:, None] ^ (columns[None, :] * np.uint64(0x9E3779B97F4A7C15))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed.tobytes()


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


@dataclass
class Bench:
    """A block store, and an engine that saves any tokens with the synthetic model."""

    folder: Path
    model: Model = FULL
    quota: int = 1_000_000_000
    memory: int | MemoryRoom = 0  # budget of the warm tier
    window: int = 0  # tokens of the model's window, as given to `Saver.add`
    free: int = 10_000_000_000
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.use(self.open())

    def use(self, store: BlockStore) -> None:
        self.store, self.slots = store, store.staging.slot_folder()
        self.inventory, self.saver, self.restorer = store.inventory, store.saver, store.restorer

    def open(self) -> BlockStore:
        memory = self.folder.parent / "memory"
        memory.mkdir(parents=True, exist_ok=True)
        room = self.memory if callable(self.memory) else lambda _: self.memory
        with mock.patch.object(memory_files, "MEMORY_FOLDER", memory):
            store = BlockStore(self.folder, Bounds(self.quota, 0), room, sync=False)
        store.inventory.clock = self.clock  # type: ignore[method-assign]
        store.inventory.free_bytes = lambda: self.free  # type: ignore[method-assign]
        return store

    def reopen(self) -> None:
        self.store.close()
        self.use(self.open())

    def add(
        self,
        conversation: str,
        tokens: Tokens,
        fingerprint: Fingerprint = FINGERPRINT,
        data: bytes | None = None,
        message: str | None = None,
        audience: str | None = None,
        predecessor: Predecessor | None = None,
    ) -> SavePoint:
        path = self.slots / "saved.slot"
        content = data or self.model.slot_file(tokens)
        self.store.saver.prepare_save(len(content), conversation, path, fingerprint, tokens)
        size = path.write_bytes(content)
        state = conversation, fingerprint, tokens, size, float(len(tokens)), self.window, message
        return self.store.saver.add(path, *state, predecessor, audience)

    def save(self, *args: Any, **kwargs: Any) -> SavePoint:
        """Add a save point and absorb it."""
        point = self.add(*args, **kwargs)
        report = self.store.absorb_pending()
        assert not report.refused, report
        return point

    def find(self, prompt: Tokens, *, can_cut: bool = True, conversation: str = "thesis") -> RestorePlan | RestoreMiss:
        return self.store.restorer.find(FINGERPRINT, prompt, can_cut=can_cut, conversation_id=conversation)

    def plan(self, prompt: Tokens, **kwargs: Any) -> RestorePlan:
        plan = self.find(prompt, **kwargs)
        assert isinstance(plan, RestorePlan), plan
        return plan

    def stage(self, plan: RestorePlan, tier: Tier | None = None, *, window: int = 0) -> StagedFile:
        staged = self.restorer.stage(replace(plan, tier=tier or plan.tier), self.slots, window=window)
        assert isinstance(staged, StagedFile), staged
        return staged

    def stage_point(self, point: SavePoint, tier: Tier = Tier.DISK) -> StagedFile:
        return self.stage(RestorePlan(point, point.n_tokens, tier, point.size))

    def restore(
        self, prompt: Tokens, *, can_cut: bool = True, window: int = 0, conversation: str = "thesis"
    ) -> bytes | RestoreMiss:
        plan = self.find(prompt, can_cut=can_cut, conversation=conversation)
        if isinstance(plan, RestoreMiss):
            return plan
        staged = self.store.restorer.stage(plan, self.slots, window=window)
        return staged if isinstance(staged, RestoreMiss) else self.read(staged)

    def read(self, staged: StagedFile) -> bytes:
        data = staged.path.read_bytes()
        self.store.restorer.unstage(staged)
        return data

    def block_files(self) -> list[Path]:
        return sorted(path for path in (self.folder / "blocks").glob("??/*") if path.is_file())

    def block_bytes(self) -> int:
        return sum(map(disk.tree_size, self.block_files()))

    def overhead_bytes(self) -> int:
        """Return the disk usage of the index and the folders."""
        warm = sum(disk.tree_size(path) for path in (self.folder / "staging").glob("*.slot"))
        return disk.tree_size(self.folder) - self.block_bytes() - warm

    def save_points(self) -> dict[str, int]:
        """Return the number of save points of each conversation."""
        return {usage.conversation_id: usage.save_points for usage in self.inventory.usage().conversations}

    def files_in_memory(self) -> list[Path]:
        return [path for path in (self.folder.parent / "memory").glob("*/*") if path.is_file()]


def is_damage(reason: Reason) -> bool:
    cause = reason.places.get("reason", reason)
    return cause.code in (ReasonCode.BLOCK_DAMAGED, ReasonCode.PART_DAMAGED)
