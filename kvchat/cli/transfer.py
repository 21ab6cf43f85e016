"""`kvchat export`, `import`, `backup`, `restore` and `repair`: conversations in and out, without a screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from kvchat.chat.record.database import Database
from kvchat.cli.options import ExportOptions
from kvchat.errors import KvchatError
from kvchat.system.paths import resolve_paths
from kvchat.transfer.backup import make_backup, write_backup
from kvchat.transfer.exporting import ExportForm, export_file, write_export
from kvchat.transfer.importing import import_paths
from kvchat.transfer.repair import repair
from kvchat.transfer.restore import finish_restore, forget_waiting, in_use, lay_ready
from kvchat.words.wording import several, size

STANDARD_OUTPUT = Path("-")


class NoSuchConversation(KvchatError):
    """There is no conversation of that id."""


class StillRunning(KvchatError):
    """The data cannot be replaced while a kvchat uses it."""

    def __init__(self) -> None:
        super().__init__(
            "kvchat is running on these chats", "Nothing has been changed.", "Quit it, then restore the backup."
        )


def run_export(options: ExportOptions) -> int:
    """Write one conversation, or all. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths().ensure()
    form = options.form or ExportForm.of(options.target)
    with closing(Database(paths.database)) as database:
        known = [conversation.id for conversation in database.conversations()]
        chosen = [options.chat_id] if options.chat_id else known
        if options.chat_id and options.chat_id not in known:
            raise NoSuchConversation("There is no such chat", options.chat_id, "Look for its id in an export of all.")
        if options.target == STANDARD_OUTPUT:
            write_export(database, chosen, form, sys.stdout.buffer, zipped=len(chosen) != 1)
            return 0
        count = export_file(database, chosen, form, options.target)
    print(f"exported {several(count, 'chat')} to {options.target}")
    return 0


def run_import(files: Sequence[Path]) -> int:
    """Take conversations in. Returns the exit code: 1 when something could not be taken in. Raises KvchatError."""
    paths = resolve_paths().ensure()
    with closing(Database(paths.database)) as database:
        report = import_paths(database, files)
    for problem in report.problems:
        print(problem, file=sys.stderr)
    print(f"imported {several(len(report.imported), 'chat')}, {report.known:,} were here already")
    return 1 if report.problems else 0


def run_backup(target: Path) -> int:
    """Back up conversations and settings. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths().ensure()
    with closing(Database(paths.database)):  # made, or brought to the newest format
        if target == STANDARD_OUTPUT:
            write_backup(paths, sys.stdout.buffer)
            return 0
        facts = make_backup(paths, target)
    print(f"backed up {several(facts.conversations, 'chat')}, {size(facts.size)}, to {target}")
    return 0


def run_restore(source: Path) -> int:
    """Put a backup back. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths().ensure()
    if in_use(paths):
        raise StillRunning
    facts = lay_ready(paths, source)
    replaced = finish_restore(paths)
    if replaced is None:  # it was started meanwhile
        forget_waiting(paths)
        raise StillRunning
    print(f"restored {several(facts.conversations, 'chat')}; what was here is in {replaced}")
    return 0


def run_repair() -> int:
    """Repair a damaged file of chats. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths().ensure()
    finish_restore(paths)
    repaired = repair(paths)
    print(repaired.words if repaired else "The chats are whole; nothing was changed.")
    return 0
