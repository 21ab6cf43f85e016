"""What may become a save point: within the quota and the disk, and a file that holds what it should. Sizes in bytes."""

from __future__ import annotations

import errno
import math
from pathlib import Path

from kvchat.kvstore.layout import header as slotfile
from kvchat.kvstore.savepoint import NotSaved, Tokens, common_prefix
from kvchat.words.language import _
from kvchat.words.reasons import Reason, ReasonCode
from kvchat.words.wording import size as size_in_words

GB = 1_000_000_000
DEFAULT_QUOTA, DEFAULT_CHATS = 20 * GB, 10
_USUAL_DISK = 256 * GB


def default_quota(disk_bytes: int, chat_bytes: int = 0, kept_bytes: int = 0) -> int:
    """The quota where the user chose none: room for ten chats of `chat_bytes`, at least 20 GB, as the disk allows.

    The disk's share is a tenth of one of 256 GB. It grows by a fortieth with each doubling, up to a quarter, and
    shrinks so to a twentieth: a small disk is wanted for other things, a large one has room. `chat_bytes` is a long
    chat's with the model in use. What is kept already is allowed as far as the disk's share goes: to change to a
    smaller model is no reason to throw away the memory of chats with a larger one.
    """
    share = 0.1 + 0.025 * math.log2(max(disk_bytes, 1) / _USUAL_DISK)
    wanted = max(DEFAULT_QUOTA, DEFAULT_CHATS * chat_bytes, kept_bytes)
    return min(wanted, round(min(0.25, max(0.05, share)) * disk_bytes))


def check_room(size: int, still_to_write: int, free: int, quota: int, floor: int) -> None:
    """Raise NotSaved if a save point of `size` bytes never fits the quota or passes the floor of free disk space.

    `still_to_write` is how much of it `free` does not know of yet: all before the engine saves, nothing afterwards.
    """
    if size > quota:
        places = {"size": size_in_words(size), "limit": size_in_words(quota)}
        raise NotSaved(Reason(ReasonCode.OVER_LIMIT, places), _("Raise the limit in the settings, under Storage."))
    if free - still_to_write < floor:
        places = {"free": size_in_words(free), "floor": size_in_words(floor)}
        advice = _("Make room on the disk, or lower the floor in the settings.")
        raise NotSaved(Reason(ReasonCode.DISK_NEARLY_FULL, places), advice)


def check_saved(slot_file: Path, expected: Tokens, expected_size: int | None) -> int:
    """The size of a file the engine has just saved. Raises NotSaved unless it is whole and holds `expected`."""
    try:
        size = slot_file.stat().st_size
        tokens = slotfile.read_tokens(slot_file)
    except FileNotFoundError:
        raise NotSaved(Reason(ReasonCode.NO_FILE)) from None
    except slotfile.SlotFileError as error:
        raise NotSaved(Reason(ReasonCode.FILE_BROKEN, {"error": str(error)})) from error
    if expected_size is not None and size != expected_size:
        places = {"written": size_in_words(expected_size), "there": size_in_words(size)}
        raise NotSaved(Reason(ReasonCode.FILE_CUT, places))
    if not len(tokens):
        raise NotSaved(Reason(ReasonCode.NOTHING_HELD))
    if not slotfile.stands_for(tokens, expected):
        shared = common_prefix(tokens.tolist(), expected)
        raise NotSaved(Reason(ReasonCode.OTHERS_HELD, {"tokens": len(tokens), "shared": shared}))
    return size


def not_written(error: OSError) -> NotSaved:
    """The refusal for a fault of the disk while writing."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotSaved(Reason(ReasonCode.DISK_FULL), _("Make room on the disk."))
    return NotSaved(Reason(ReasonCode.NOT_WRITTEN, {"error": error.strerror or str(error)}))
