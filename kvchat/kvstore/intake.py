"""What must be true of a file the engine has just saved before it may become a save point."""

from __future__ import annotations

import errno
from pathlib import Path

from kvchat.kvstore.layout import header as slotfile
from kvchat.kvstore.savepoint import StoreRefused, Tokens, common_prefix
from kvchat.words.wording import size as size_in_words


def check_saved(slot_file: Path, expected: Tokens, expected_size: int | None) -> int:
    """The size of a file the engine has just saved. Raises StoreRefused unless it is whole and holds `expected`."""
    title = "Not saved: the engine's file is not usable."
    try:
        size = slot_file.stat().st_size
        tokens = slotfile.read_tokens(slot_file)
    except FileNotFoundError:
        raise StoreRefused(title, "The engine said that it saved, but there is no file.") from None
    except slotfile.SlotFileError as error:
        raise StoreRefused(title, f"It is broken: {error}.") from error
    if expected_size is not None and size != expected_size:
        written, there = size_in_words(expected_size), size_in_words(size)
        raise StoreRefused(title, f"It is not whole: the engine wrote {written}, {there} are there.")
    if not tokens:
        raise StoreRefused("Not saved: the engine had nothing of this chat.")
    if not slotfile.stands_for(tokens, expected):
        detail = f"It holds {len(tokens)} tokens, {common_prefix(tokens, expected)} of them this chat's."
        raise StoreRefused("Not saved: the engine holds something else.", detail)
    return size


def not_written(error: OSError) -> StoreRefused:
    """The refusal for a fault of the disk while writing."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreRefused("Not saved: the disk is full.", "", "Make room on the disk.")
    return StoreRefused("Not saved: it could not be written.", f"{error.strerror or error}.")
