"""The values of the save-point store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Fingerprint:
    """Whatever must be equal for a save point to be valid in an engine."""

    model: str  # identity of the weights, see library.model_identity
    kv_type_k: str
    kv_type_v: str
    flash_attention: str  # "auto", "on" or "off", as asked of the engine
    streams: int  # KV streams; 1 with a unified cache
    rope: str  # which RoPE factors the context size picks, "short" or "long"; "" where the model has one set

    def differences(self, other: Fingerprint) -> list[str]:
        """The names of the fields that differ, in words for the user."""
        words = {
            "model": "model",
            "kv_type_k": "KV type of K",
            "kv_type_v": "KV type of V",
            "flash_attention": "flash attention",
            "streams": "number of KV streams",
            "rope": "context size, which changes how this model counts positions",
        }
        mine, theirs = asdict(self), asdict(other)
        return [words[name] for name in mine if mine[name] != theirs[name]]


@dataclass(frozen=True)
class SavePoint:
    """A KV state kept in the store at a known token position."""

    id: str
    conversation_id: str
    fingerprint: Fingerprint
    tokens: Tokens  # the exact token ids the state stands for
    size: int  # bytes of the slot file
    created_at: datetime
    last_used_at: datetime

    @property
    def n_tokens(self) -> int:
        """The token position of this save point."""
        return len(self.tokens)


@dataclass(frozen=True)
class StagedFile:
    """A verified slot file lying in an engine's slot folder, ready for `action=restore`."""

    save_point: SavePoint
    path: Path  # path.name is what the engine is told
    verify_ms: float


@dataclass(frozen=True)
class Miss:
    """Why no save point could be used, in words for the receipt."""

    reason: str


@dataclass(frozen=True)
class ConversationUsage:
    """What one conversation costs on disk."""

    conversation_id: str
    bytes: int
    save_points: int
    last_used_at: datetime


@dataclass(frozen=True)
class StoreUsage:
    """What the store costs on disk, and its bounds. All sizes in bytes."""

    conversations: tuple[ConversationUsage, ...]
    total_bytes: int
    set_aside_bytes: int  # files found bad, kept for a look until the next prune
    quota_bytes: int
    free_bytes: int
    free_floor_bytes: int


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    shared = min(len(a), len(b))
    if tuple(a[:shared]) == tuple(b[:shared]):
        return shared
    return next(i for i in range(shared) if a[i] != b[i])
