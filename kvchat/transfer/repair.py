"""Repair of a damaged chats file from its readable parts and the newest automatic backup.

The damaged file is set aside, never deleted. The new one takes its place as a restored backup does.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvchat.chat.record.database_file import doubt_of
from kvchat.chat.record.recovery import FAULTS, Salvaged, backups_of, is_whole, salvage
from kvchat.errors import KvchatError
from kvchat.system.paths import RESTORING, Paths
from kvchat.transfer.backup import DATABASE, finish_restore, forget_waiting, say_ready
from kvchat.words.language import _, listed, number, sentences, several

_MOST_NAMED = 8  # damaged chats


@dataclass(frozen=True)
class Repaired:
    found: Salvaged
    aside: Path  # folder with the previous data

    @property
    def title(self) -> str:
        return _("Your chats were repaired") if self.found.chats else _("No chats could be recovered")

    @property
    def words(self) -> str:
        found = self.found
        chats = several(found.chats, "{count} chat", "{count} chats")
        messages = several(found.messages, "{count} message", "{count} messages")
        lines = [_("Recovered: {chats} with {messages}.", chats=chats, messages=messages)]
        if found.from_backup:
            lines.append(
                several(
                    found.from_backup,
                    "{count} message was recovered from the automatic backup.",
                    "{count} messages were recovered from the automatic backup.",
                )
            )
        if found.lost:
            named = [_("“{name}”", name=title) + f" ({number(count)})" for title, count in found.lost[:_MOST_NAMED]]
            more = len(found.lost) - len(named)
            named += [several(more, "{count} more chat", "{count} more chats")] if more > 0 else []
            lines.append(_("Some messages could not be recovered in {named}.", named=listed(named)))
        elif found.unreadable:
            lines.append(_("Nothing could be recovered from the damaged file."))
        return sentences(*lines, _("The damaged file is now in {aside}.", aside=self.aside))


def repair(paths: Paths) -> Repaired | None:
    """Replace a damaged chats file with what can be recovered; None if undamaged. Raises KvchatError."""
    waiting, file = paths.data / RESTORING, paths.database
    forget_waiting(paths)
    try:
        if is_whole(file):
            doubt_of(file).unlink(missing_ok=True)
            return None
        new = waiting / DATABASE
        copy = waiting / "damaged" / file.name
        for folder in (new.parent, copy.parent):
            folder.mkdir(parents=True, mode=0o700)
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(file.with_name(file.name + suffix), copy.with_name(copy.name + suffix))
        found = salvage(copy, next(iter(backups_of(file)), None), new)
        shutil.rmtree(copy.parent)
        say_ready(paths, datetime.now(UTC))
        aside = finish_restore(paths)
        assert aside is not None  # staged just above
        doubt_of(file).unlink(missing_ok=True)
        return Repaired(found, aside)
    except (OSError, *FAULTS) as error:
        raise KvchatError(
            _("The chats could not be repaired"), f"{file}: {error}.", _("Free up disk space, then try again.")
        ) from error
    finally:
        forget_waiting(paths)
