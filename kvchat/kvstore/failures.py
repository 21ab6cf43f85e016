"""Errors of index and disk, put into words."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvchat.kvstore import disk
from kvchat.kvstore.index.index import IndexFailed, IndexLost, check_readable
from kvchat.kvstore.savepoint import NotSaved, StoreRefused
from kvchat.text.language import _
from kvchat.text.reasons import Reason, ReasonCode


def write_error(error: OSError) -> NotSaved:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotSaved(Reason(ReasonCode.DISK_FULL), _("Free up disk space."))
    return NotSaved(Reason(ReasonCode.NOT_WRITTEN, {"error": error.strerror or str(error)}))


@contextmanager
def store_errors(*, saving: bool = False) -> Iterator[None]:
    """Convert index and disk errors to StoreRefused; also a decorator for the store's methods.

    `saving`: raise NotSaved instead, and pass disk errors through.
    """
    try:
        yield
    except IndexLost as error:
        if saving:
            raise NotSaved(Reason(ReasonCode.INDEX_DAMAGED)) from error
        detail = _("kvchat set it aside and created a new one. Each chat is reprocessed once.")
        raise StoreRefused(_("The chat memory index was damaged."), detail) from error
    except (IndexFailed, OSError) as error:
        if saving and isinstance(error, OSError):
            raise
        if saving:
            raise NotSaved(Reason(ReasonCode.INDEX_NOT_WRITTEN, {"error": str(error)})) from error
        raise StoreRefused(_("Chat memory could not be read or written."), f"{error}.") from error


def store_unusable(folder: Path, error: Exception) -> StoreRefused:
    title = _("The chat memory folder cannot be used.")
    advice = _("Check the permissions of the folder and that the disk is not full.")
    return StoreRefused(title, f"{folder}: {getattr(error, 'strerror', None) or error}.", advice)


def check_store(folder: Path) -> None:
    """Raise KvchatError if the folder has no usable store. Only reads: another process may own it."""
    index = folder / disk.INDEX
    try:
        os.scandir(folder).close()
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if index.exists():
            check_readable(index)
    except (OSError, IndexFailed) as error:
        raise store_unusable(folder, error) from error
