"""Values and errors of the save-point store."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.words.language import _
from kvchat.words.reasons import Reason, ReasonCode
from kvchat.words.wording import TimeRange, added

Tokens = tuple[int, ...]
PROGRAM = "program/"  # owner prefix of other programs' save points, in place of a conversation id


def program_owner(program: str) -> str:
    return PROGRAM + program


def program_of(conversation_id: str) -> str:
    """Return the program these are kept for; empty for a conversation."""
    return conversation_id[len(PROGRAM) :] if conversation_id.startswith(PROGRAM) else ""


@dataclass(frozen=True)
class Fingerprint:
    """Everything that must match for a save point to be valid in an engine."""

    model: str  # identity of the weights, see library.model_identity
    kv_type_k: str
    kv_type_v: str
    flash_attention: str  # "auto", "on" or "off", as requested
    streams: int  # KV streams; 1 with a unified cache
    rope: str  # RoPE factors chosen by context size, "short" or "long"; "" if the model has one set
    options: str = ""  # user's engine arguments that change what a state means
    build: str = ""  # engine build, if the state format depends on it; "" for plain attention

    def differences(self, other: Fingerprint) -> tuple[Reason, ...]:
        """Return the differing fields; only the model if that differs."""
        mine, theirs = asdict(self), asdict(other)
        found = tuple(Reason(ReasonCode(name)) for name in mine if mine[name] != theirs[name])
        return found[:1] if found[:1] == (Reason(ReasonCode.MODEL),) else found


State = tuple[Fingerprint, Tokens]  # slot file contents


@dataclass(frozen=True)
class SavePoint:
    id: str
    conversation_id: str
    fingerprint: Fingerprint
    tokens: Tokens  # exact token ids of the state
    size: int  # bytes of the slot file
    created_at: datetime
    last_used_at: datetime
    prefill_ms: float = 0.0  # estimated processing time of these tokens on this machine
    audience: str = ""  # who may reuse it, see kvchat.kvstore.audience

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Extension:
    point_id: str
    unchanged: int  # leading tokens whose rows the engine kept without recomputing


class Tier(Enum):
    WARM = "warm"  # whole in the staging folder
    DISK = "disk"  # composed from blocks


@dataclass(frozen=True)
class RestorePlan:
    """The save point that leaves the least of a prompt to prefill, and the usable part of it."""

    save_point: SavePoint
    tokens_used: int  # at most the save point's; less only if the engine can cut a state
    tier: Tier
    bytes: int  # size of the slot file to read; estimated if only a part is composed

    @property
    def whole(self) -> bool:
        return self.tokens_used == self.save_point.n_tokens


@dataclass(frozen=True)
class Kept:
    """A conversation's save point without its tokens, for listing many."""

    message_id: str | None  # last message in its tokens
    fingerprint: Fingerprint
    tokens: int
    bytes: int  # of the slot file
    tier: Tier


@dataclass(frozen=True)
class StagedFile:
    """A verified slot file in an engine's slot folder, ready for `action=restore`."""

    save_point: SavePoint
    path: Path  # the engine receives path.name
    n_tokens: int  # number the engine must report
    tier: Tier


@dataclass(frozen=True)
class Miss:
    reason: Reason


@dataclass(frozen=True)
class ConversationUsage:
    conversation_id: str
    bytes: int  # all its blocks on disk, exclusive and shared
    save_points: int
    last_used_at: datetime
    exclusive_bytes: int = 0  # freed by deleting it
    shared_bytes: int = 0  # also used by other conversations
    tokens: int = 0  # of its longest save point
    model: str = ""  # it was saved with, as in fingerprints
    reading: TimeRange | None = None  # estimated reprocessing time; None: unknown
    pinned: bool = False
    never_save: bool = False
    imported: bool = False  # some of it was imported and not verified


@dataclass(frozen=True)
class StoreUsage:
    """The store's disk usage and limits. Sizes in bytes."""

    conversations: tuple[ConversationUsage, ...]
    quota_bytes: int
    free_bytes: int
    free_floor_bytes: int
    save_points: int = 0
    logical_bytes: int = 0  # all slot files if each were stored whole
    physical_bytes: int = 0  # total disk usage: blocks, index, staged files
    unique_rows_bytes: int = 0  # KV row blocks, or plain bytes if the layout is unknown
    bytes_written: int = 0  # ever
    bytes_written_today: int = 0
    warm_bytes: int = 0  # slot files kept in memory
    chat_bytes: int = 0  # a long chat with the current model; 0: unknown
    staged: str = ""  # where slot files are staged and why, as a sentence
    programs_quota_bytes: int = 0  # share of the quota for other programs
    problem: str = ""  # why saving is off and what to do; all other fields are then unset
    other_bytes: int = 0  # part of `physical_bytes` outside chats: index, folders, staged files


@dataclass(frozen=True)
class PrunedConversation:
    conversation_id: str
    save_points: int
    bytes_freed: int
    save_points_left: int  # 0: it will be cold
    reading: TimeRange | None = None  # estimated reprocessing time if cold; None: unknown


@dataclass(frozen=True)
class PrunePlan:
    """The save points a prune would remove, and the cost. Making a plan removes nothing."""

    save_point_ids: tuple[str, ...]  # in removal order
    bytes_freed: int
    conversations: tuple[PrunedConversation, ...]
    bytes_left: int

    @property
    def cold(self) -> list[PrunedConversation]:
        return [
            pruned
            for pruned in self.conversations
            if not pruned.save_points_left and not program_of(pruned.conversation_id)
        ]

    @property
    def reading(self) -> TimeRange | None:
        return added(pruned.reading for pruned in self.cold)


@dataclass(frozen=True)
class Unseen:
    messages: dict[str, frozenset[str]]  # messages that save points end in, by conversation; none if unknown
    upto: int  # last save point covered


@dataclass(frozen=True)
class AbsorbReport:
    save_points: int
    bytes_written: int
    refused: tuple[Reason, ...]  # why some were not stored


@dataclass(frozen=True)
class Loss:
    conversation_id: str
    save_points: int
    reason: Reason


@dataclass(frozen=True)
class VerifyReport:
    blocks: int
    bytes: int
    bad_blocks: int
    losses: tuple[Loss, ...]  # lost with them, by conversation

    @property
    def clean(self) -> bool:
        return self.bad_blocks == 0


@dataclass(frozen=True)
class Bounds:
    quota: int  # bytes on disk
    free_floor: int  # disk bytes that must stay free
    max_age_days: float | None = None  # since the last use

    @property
    def programs(self) -> int:
        """Bytes on disk for other programs, not counting what chats also keep: half the quota."""
        return self.quota // 2

    def of(self, conversation_id: str) -> int:
        """Return the maximum bytes of a save point."""
        return self.programs if program_of(conversation_id) else self.quota


GB = 1_000_000_000
DEFAULT_QUOTA, DEFAULT_CHATS = 20 * GB, 10
_USUAL_DISK = 256 * GB


def default_quota(disk_bytes: int, chat_bytes: int = 0, kept_bytes: int = 0) -> int:
    """Return the default quota: ten chats of `chat_bytes`, at least 20 GB, if the disk allows.

    The limit is a tenth of a 256 GB disk. The share grows by a fortieth with each doubling, up to a quarter, and
    shrinks to a twentieth: a small disk is needed for other things. `kept_bytes`, already in use, count within that
    limit, so that switching to a smaller model deletes no memory of a larger one.
    """
    share = 0.1 + 0.025 * math.log2(max(disk_bytes, 1) / _USUAL_DISK)
    wanted = max(DEFAULT_QUOTA, DEFAULT_CHATS * chat_bytes, kept_bytes)
    return min(wanted, round(min(0.25, max(0.05, share)) * disk_bytes))


CancelCheck = Callable[[], bool]  # polled from any thread by slow work, which ends early once true


class Cancelled(Exception):
    """Slow work was stopped because nobody needs it any more. Nothing is left half done."""


def never() -> bool:
    return False


class StoreRefused(KvchatError):
    """The store could not do it; the user is told why."""


class NotSaved(StoreRefused):
    """Nothing was saved: disk nearly full, quota too small, wrong tokens."""

    def __init__(self, reason: Reason, advice: str = "") -> None:
        super().__init__(_("Not saved"), reason.in_a_sentence, advice)
        self.reason = reason


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    shared = min(len(a), len(b))
    if tuple(a[:shared]) == tuple(b[:shared]):
        return shared
    return next(i for i in range(shared) if a[i] != b[i])
