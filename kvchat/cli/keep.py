"""`kvchat export`, `import`, `backup` and `restore`: conversations in and out, without a screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from kvchat.chat.database import Database
from kvchat.cli.options import ExportOptions
from kvchat.errors import KvchatError
from kvchat.keeping.backup import finish_restore, lay_ready, make_backup
from kvchat.keeping.exporting import ExportForm, export_file
from kvchat.keeping.importing import import_paths
from kvchat.paths import resolve_paths
from kvchat.wording import several, size


class NoSuchConversation(KvchatError):
    """There is no conversation of that id."""


def run_export(options: ExportOptions) -> int:
    """Write one conversation, or all. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths()
    paths.ensure()
    form = options.form or ExportForm.of(options.target)
    with closing(Database(paths.database)) as database:
        known = [conversation.id for conversation in database.conversations()]
        chosen = [options.chat_id] if options.chat_id else known
        if options.chat_id and options.chat_id not in known:
            raise NoSuchConversation("There is no such chat", options.chat_id, "Look for its id in an export of all.")
        count = export_file(database, chosen, form, options.target)
    print(f"exported {several(count, 'chat')} to {options.target}")
    return 0


def run_import(files: Sequence[Path]) -> int:
    """Take conversations in. Returns the exit code: 1 when something could not be taken in. Raises KvchatError."""
    paths = resolve_paths()
    paths.ensure()
    with closing(Database(paths.database)) as database:
        report = import_paths(database, files)
    for problem in report.problems:
        print(problem, file=sys.stderr)
    print(f"imported {several(len(report.imported), 'chat')}, {report.known:,} were here already")
    return 1 if report.problems else 0


def run_backup(target: Path) -> int:
    """Back up conversations and settings. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths()
    paths.ensure()
    with closing(Database(paths.database)):  # made, or brought to the newest format
        facts = make_backup(paths, target)
    print(f"backed up {several(facts.conversations, 'chat')}, {size(facts.size)}, to {target}")
    return 0


def run_restore(source: Path) -> int:
    """Put a backup back. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths()
    paths.ensure()
    facts = lay_ready(paths, source)
    replaced = finish_restore(paths)
    if replaced is None:
        print("kvchat is running: the backup takes its place when kvchat starts next")
        return 0
    print(f"restored {several(facts.conversations, 'chat')}; what was here is in {replaced}")
    return 0
