"""The values of the save-point store, and how it refuses."""

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
PROGRAM = "program/"  # begins what save points of other programs are kept under, instead of a conversation's id


def kept_for(program: str) -> str:
    return PROGRAM + program


def program_of(conversation_id: str) -> str:
    """Return the program these are kept for; empty for a conversation."""
    return conversation_id[len(PROGRAM) :] if conversation_id.startswith(PROGRAM) else ""


@dataclass(frozen=True)
class Fingerprint:
    """What must match for a save point to be valid in an engine."""

    model: str  # identity of the weights, see library.model_identity
    kv_type_k: str
    kv_type_v: str
    flash_attention: str  # "auto", "on" or "off", as asked of the engine
    streams: int  # KV streams; 1 with a unified cache
    rope: str  # which RoPE factors the context size picks, "short" or "long"; "" where the model has one set
    options: str = ""  # the user's own engine arguments that change what a state means
    build: str = ""  # of the engine, where states may change their form from one to the next; "" for plain attention

    def differences(self, other: Fingerprint) -> tuple[Reason, ...]:
        """Return the differing fields; only the model if that differs."""
        mine, theirs = asdict(self), asdict(other)
        found = tuple(Reason(ReasonCode(name)) for name in mine if mine[name] != theirs[name])
        return found[:1] if found[:1] == (Reason(ReasonCode.MODEL),) else found


State = tuple[Fingerprint, Tokens]  # what a slot file holds


@dataclass(frozen=True)
class SavePoint:
    id: str
    conversation_id: str
    fingerprint: Fingerprint
    tokens: Tokens  # the exact token ids the state stands for
    size: int  # bytes of the slot file
    created_at: datetime
    last_used_at: datetime
    prefill_ms: float = 0.0  # estimate: how long reading these tokens takes on this machine
    audience: str = ""  # who may reuse it, see kvchat.kvstore.audience

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Grown:
    point_id: str
    unchanged: int  # leading tokens of it whose rows the engine has kept and not computed anew


class Tier(Enum):
    WARM = "warm"  # it lies whole in the staging folder
    DISK = "disk"  # it is put together from blocks


@dataclass(frozen=True)
class RestorePlan:
    """The save point that leaves the least of a prompt to prefill, and the usable part of it."""

    save_point: SavePoint
    tokens_used: int  # at most the save point's; less only where the engine can cut a state back
    tier: Tier
    bytes: int  # of the slot file that would be read; an estimate where it is composed for a part

    @property
    def whole(self) -> bool:
        return self.tokens_used == self.save_point.n_tokens


@dataclass(frozen=True)
class Kept:
    """A conversation's save point without its tokens, for listing many."""

    message_id: str | None  # the last one that its tokens hold
    fingerprint: Fingerprint
    tokens: int
    bytes: int  # of the slot file
    tier: Tier


@dataclass(frozen=True)
class StagedFile:
    """A verified slot file in an engine's slot folder, ready for `action=restore`."""

    save_point: SavePoint
    path: Path  # path.name is what the engine is told
    n_tokens: int  # how many the engine must say it restored
    tier: Tier


@dataclass(frozen=True)
class Miss:
    reason: Reason


@dataclass(frozen=True)
class ConversationUsage:
    conversation_id: str
    bytes: int  # of all its blocks on disk: exclusive and shared together
    save_points: int
    last_used_at: datetime
    exclusive_bytes: int = 0  # what deleting it would free
    shared_bytes: int = 0  # what other conversations keep as well
    tokens: int = 0  # of its longest save point
    model: str = ""  # that this was saved with, as in fingerprints
    reading: TimeRange | None = None  # estimate of reading these tokens again; None: not known
    pinned: bool = False
    never_save: bool = False
    imported: bool = False  # some of it came with the chat from elsewhere, and was not verified


@dataclass(frozen=True)
class StoreUsage:
    """The store's disk usage and limits. Sizes in bytes."""

    conversations: tuple[ConversationUsage, ...]
    quota_bytes: int
    free_bytes: int
    free_floor_bytes: int
    save_points: int = 0
    logical_bytes: int = 0  # of all slot files, had each been kept whole
    physical_bytes: int = 0  # all the store takes on disk: blocks, index, what is staged there
    unique_rows_bytes: int = 0  # of the blocks of KV rows, or, where the layout is unknown, of the plain bytes
    bytes_written: int = 0  # ever
    bytes_written_today: int = 0
    warm_bytes: int = 0  # slot files kept in memory
    chat_bytes: int = 0  # of a long chat with the model in use; 0 where that cannot be said
    staged: str = ""  # where slot files go on their way to and from the engine, and why there, in words
    programs_quota_bytes: int = 0  # of the quota, what other programs may keep
    problem: str = ""  # why nothing is kept, and what to do, where that is so; nothing else is known then
    other_bytes: int = 0  # of `physical_bytes`, what is no chat's: index, folders, staged files


@dataclass(frozen=True)
class PrunedConversation:
    conversation_id: str
    save_points: int
    bytes_freed: int
    save_points_left: int  # 0: it will be cold
    reading: TimeRange | None = None  # estimate of reading it again, where it will be cold; None: not known


@dataclass(frozen=True)
class PrunePlan:
    """The save points a prune would remove, and the cost. Making a plan removes nothing."""

    save_point_ids: tuple[str, ...]  # in the order they go
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
    messages: dict[str, frozenset[str]]  # in which save points end, by conversation; none where it is not known
    upto: int  # up to which save point this goes


@dataclass(frozen=True)
class AbsorbReport:
    save_points: int
    bytes_written: int
    refused: tuple[Reason, ...]  # why some could not be kept


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
    losses: tuple[Loss, ...]  # what went with them, by conversation

    @property
    def clean(self) -> bool:
        return self.bad_blocks == 0


@dataclass(frozen=True)
class Bounds:
    quota: int  # bytes on disk
    free_floor: int  # bytes of the disk that must stay free
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


CancelCheck = Callable[[], bool]  # asked again and again, from any thread, by slow work: once true, it ends early


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
