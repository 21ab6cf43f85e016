"""Data types and errors of the save-point store, and the audiences of save points.

An audience is the set of owners that may reuse a save point. A client that reuses one learns that somebody sent a
prompt with the same beginning, and gets answers computed from its rows. Therefore each audience has its own token
tree, so that a lookup cannot find another audience's save points. Engine slots have audiences, too.

A program's system prompt becomes available to all programs once two programs have sent all of it in this run of
kvchat, each with its own key. User-Agent names do not count, as any client can send them, nor do the user's chats. So
a program learns nothing from its own requests. Only somebody with two programs' keys can learn that a third program
sent exactly the same system prompt. Devices are other people's: each reuses only its own save points, not even
prepared documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.text.formatting import TimeRange, sum_times
from kvchat.text.language import _
from kvchat.text.reasons import Reason, ReasonCode

Tokens = tuple[int, ...]
PROGRAM_PREFIX = "program/"  # owner prefix of other programs' save points, in place of a conversation id
APPS_PATTERN = f"{PROGRAM_PREFIX}[^@]*"  # GLOB pattern of the owners that are not devices
DEVICE_PREFIX = "@"  # name prefix of programs that are paired devices; no other program's name has it
_PREPARED_PREFIX = "prepared:"  # owner prefix of prepared documents
CHATS_AUDIENCE = "chats"  # the user's own chats, in the app and on the command line
SHARED_AUDIENCE = "shared"  # prepared documents, which every owner but devices may reuse
NO_AUDIENCE = "nobody"  # for a slot that several requests may have used or a restore is filling
IMPORTED_PREFIX = "imported/"  # audience prefix of imported chat memory


def program_owner(program: str, chat: str = "") -> str:
    """Return the owner of a program's save points or, if the program names its chats, of one chat's."""
    return f"{PROGRAM_PREFIX}{program}/{chat}" if chat else PROGRAM_PREFIX + program


def program_of(owner: str) -> str:
    """Return the name of the program that `owner` belongs to, or "" if `owner` is the id of a conversation."""
    return owner.removeprefix(PROGRAM_PREFIX).partition("/")[0] if owner.startswith(PROGRAM_PREFIX) else ""


def is_device(program: str) -> bool:
    return program.startswith(DEVICE_PREFIX)


def device_of(owner: str) -> str:
    """Return the program name of the device that `owner` belongs to, or "" for all others."""
    program = program_of(owner)
    return program if is_device(program) else ""


def program_chat_of(owner: str) -> str:
    """Return the name that the program `owner` belongs to has given the chat, or ""."""
    return owner.removeprefix(PROGRAM_PREFIX).partition("/")[2] if owner.startswith(PROGRAM_PREFIX) else ""


def audience_of(owner: str) -> str:
    if program := program_of(owner):
        return program_owner(program)
    return SHARED_AUDIENCE if owner.startswith(_PREPARED_PREFIX) else CHATS_AUDIENCE


def imported_audience(conversation_id: str) -> str:
    """Return the audience of a chat's imported memory: only this chat, as the memory cannot be verified."""
    return IMPORTED_PREFIX + conversation_id


def is_imported(audience: str | None) -> bool:
    return audience is not None and audience.startswith(IMPORTED_PREFIX)


def readable_audiences(owner: str) -> tuple[str, ...]:
    own = audience_of(owner)
    if device_of(owner):
        return (own,)
    return (own, SHARED_AUDIENCE, *([imported_audience(owner)] if own == CHATS_AUDIENCE else ()))


def shareable_audiences(audience: str) -> tuple[str, ...]:
    """Return the audiences with which a save point of this audience may share blocks."""
    if device_of(audience):
        return (audience,)
    return (audience, SHARED_AUDIENCE, *([CHATS_AUDIENCE] if is_imported(audience) else ()))


@dataclass(frozen=True)
class Fingerprint:
    """Properties of an engine and its model that must match for a save point to be usable."""

    model: str  # identity of the weights, see library.model_identity
    kv_type_k: str
    kv_type_v: str
    flash_attention: str  # "auto", "on" or "off", as requested
    streams: int  # KV streams; 1 with a unified cache
    rope: str  # RoPE factors chosen by context size, "short" or "long"; "" if the model has one set
    options: str = ""  # user's engine arguments that change what a state means
    build: str = ""  # engine build, if the state format depends on it; "" for plain attention

    def __post_init__(self) -> None:
        """Raise TypeError if a field has the wrong type, as in a damaged index or imported file."""
        if not all(type(value) is (int if name == "streams" else str) for name, value in asdict(self).items()):
            raise TypeError("a field has the wrong type")

    def differences(self, other: Fingerprint) -> tuple[Reason, ...]:
        """Return the fields that differ, or only the model if that differs."""
        names = [name for name, value in asdict(self).items() if value != getattr(other, name)]
        return tuple(Reason(ReasonCode(name)) for name in (names[:1] if self.model != other.model else names))


@dataclass(frozen=True)
class SavePoint:
    id: str
    conversation_id: str
    fingerprint: Fingerprint
    tokens: Tokens  # exact token ids of the state
    size: int  # bytes of the slot file
    prefill_ms: float = 0.0  # estimated processing time of these tokens on this machine
    audience: str = ""  # set of owners that may reuse it

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Predecessor:
    """The save point that a slot continues from."""

    point_id: str
    unchanged_tokens: int  # leading tokens whose rows the engine kept without recomputing


class Tier(Enum):
    WARM = "warm"  # as a slot file in the staging folder
    DISK = "disk"  # as blocks


@dataclass(frozen=True)
class RestorePlan:
    """The best save point for a prompt, and how many of its tokens to restore."""

    save_point: SavePoint
    tokens_used: int  # fewer than the save point's only if the engine can cut a state
    tier: Tier
    bytes: int  # size of the slot file to read; estimated if only a part is composed

    @property
    def is_whole(self) -> bool:
        return self.tokens_used == self.save_point.n_tokens


@dataclass(frozen=True)
class SavePointSummary:
    """A save point without its tokens, for lists of many save points."""

    message_id: str | None  # last message in its tokens
    fingerprint: Fingerprint
    tokens: int
    bytes: int  # of the slot file
    tier: Tier


@dataclass(frozen=True)
class StagedFile:
    """A slot file in an engine's slot folder, ready for `action=restore`."""

    save_point: SavePoint
    path: Path  # the engine receives path.name
    n_tokens: int  # number of restored tokens that the engine must report
    tier: Tier


@dataclass(frozen=True)
class RestoreMiss:
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
    model: str = ""  # Fingerprint.model of its longest save point
    reprocessing: TimeRange | None = None  # estimated time; None: unknown
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
    bytes_written: int = 0  # since the index was created
    bytes_written_today: int = 0
    warm_bytes: int = 0  # slot files kept in memory
    chat_bytes: int = 0  # size of a long chat with the current model; 0: unknown
    staged: str = ""  # where slot files are staged and why, as a sentence
    programs_quota_bytes: int = 0  # share of the quota for other programs, and for each paired device
    problem: str = ""  # why saving is off and what to do; all other fields are then unset
    server_bytes: int = 0  # kept by another kvchat; not in the other totals
    other_bytes: int = 0  # part of `physical_bytes` outside chats: index, folders, staged files
    devices: tuple[ConversationUsage, ...] = ()  # of each paired device with all its chats, which share blocks


@dataclass(frozen=True)
class PrunedConversation:
    conversation_id: str
    save_points: int
    bytes_freed: int
    save_points_left: int  # 0: the chat must be reprocessed
    reprocessing: TimeRange | None = None  # estimated time for this; None: unknown


@dataclass(frozen=True)
class PrunePlan:
    """The save points to remove, and the effects of removing them."""

    save_point_ids: tuple[str, ...]  # in removal order
    bytes_freed: int
    conversations: tuple[PrunedConversation, ...]
    bytes_left: int

    @property
    def fully_removed(self) -> list[PrunedConversation]:
        return [c for c in self.conversations if not c.save_points_left and not program_of(c.conversation_id)]

    @property
    def reprocessing(self) -> TimeRange | None:
        return sum_times(pruned.reprocessing for pruned in self.fully_removed)


@dataclass(frozen=True)
class UncheckedPoints:
    message_ids: dict[str, frozenset[str]]  # ids of the save points' last messages, where known, by conversation
    last_id: int  # last save point covered


@dataclass(frozen=True)
class AbsorbReport:
    save_points: int
    refused: tuple[Reason, ...]  # why some were not stored


@dataclass(frozen=True)
class SavePointLoss:
    conversation_id: str
    save_points: int
    reason: Reason


@dataclass(frozen=True)
class VerifyReport:
    blocks: int
    bytes: int
    bad_blocks: int
    losses: tuple[SavePointLoss, ...]  # save points lost to bad blocks, by conversation

    @property
    def is_clean(self) -> bool:
        return self.bad_blocks == 0


@dataclass(frozen=True)
class Bounds:
    quota: int  # bytes on disk
    free_floor: int  # disk bytes that must stay free
    max_age_days: float | None = None  # since the last use

    @property
    def programs_quota(self) -> int:
        """Maximum disk usage in bytes of other programs, and of each device, excluding blocks that others also use."""
        return self.quota // 2


GB = 1_000_000_000
DEFAULT_QUOTA, DEFAULT_CHATS = 20 * GB, 10
_USUAL_DISK = 256 * GB


def default_quota(disk_bytes: int, chat_bytes: int = 0, kept_bytes: int = 0) -> int:
    """Return the default quota: ten times `chat_bytes`, at least 20 GB, within a limit for the disk.

    The limit is 10 % of a 256 GB disk; each doubling of the disk adds 2.5 percentage points, within 5 to 25 %.
    Within this limit the default is at least `kept_bytes` (memory already in use), so that switching to a smaller
    model deletes nothing.
    """
    share = 0.1 + 0.025 * math.log2(max(disk_bytes, 1) / _USUAL_DISK)
    default_bytes = max(DEFAULT_QUOTA, DEFAULT_CHATS * chat_bytes, kept_bytes)
    return min(default_bytes, round(min(0.25, max(0.05, share)) * disk_bytes))


CancelCheck = Callable[[], bool]  # polled by slow operations, from any thread; they stop once it returns True


class Cancelled(Exception):
    """An operation was cancelled and left no partial result."""


def never_cancelled() -> bool:
    return False


class StoreRefused(KvchatError):
    """A store operation failed; the message gives the user the reason."""


class NotSaved(StoreRefused):
    """Nothing was saved, for example because the disk is nearly full or the quota too small."""

    def __init__(self, reason: Reason, advice: str = "") -> None:
        super().__init__(_("Not saved"), reason.as_sentence, advice)
        self.reason = reason


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    shared = min(len(a), len(b))
    if tuple(a[:shared]) == tuple(b[:shared]):
        return shared
    return next(i for i in range(shared) if a[i] != b[i])
