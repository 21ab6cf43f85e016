"""`kvchat export`, `import`, `backup`, `restore` and `repair`: conversations in and out, without a screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from kvchat.chat.record.database import Database
from kvchat.cli.chats.named import named_chat
from kvchat.cli.command_runtime import run_until_interrupted
from kvchat.cli.options import ExportOptions
from kvchat.cli.terminal import show_progress
from kvchat.errors import KvchatError
from kvchat.runtime import open_runtime
from kvchat.settings import load_settings
from kvchat.store_service import open_store
from kvchat.system.files import read_plain
from kvchat.system.paths import Paths, resolve_paths
from kvchat.transfer.backup import make_backup, write_backup
from kvchat.transfer.exporting import ExportForm, export_file, write_export
from kvchat.transfer.importing import ImportReport, import_paths
from kvchat.transfer.memory_file import export_with_memory, holds_memory
from kvchat.transfer.repair import repair
from kvchat.transfer.restore import finish_restore, forget_waiting, in_use, lay_ready
from kvchat.words.language import _, number, several
from kvchat.words.wording import size

STANDARD_OUTPUT = Path("-")
MOST_PASSPHRASE = 64_000  # bytes of its file


class NotThatWay(KvchatError):
    """The options do not go together, or a file that they name is of no use."""


class StillRunning(KvchatError):
    """The data cannot be replaced while a kvchat uses it."""

    def __init__(self) -> None:
        super().__init__(
            _("kvchat is running on these chats"),
            _("Nothing has been changed."),
            _("Quit it, then restore the backup."),
        )


def run_export(options: ExportOptions) -> int:
    """Write one conversation, or all. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths().ensure()
    if options.with_memory:
        return _export_with_memory(paths, options)
    if options.passphrase_file:
        raise NotThatWay(_("Only a chat with its memory can be sealed with a passphrase"), "", "Add --with-memory.")
    form = options.form or ExportForm.of(options.target)
    with closing(Database(paths.database)) as database:
        known = database.conversations()
        chosen = [one.id for one in ([named_chat(known, options.chat_id)] if options.chat_id else known)]
        if options.target == STANDARD_OUTPUT:
            write_export(database, chosen, form, sys.stdout.buffer, zipped=len(chosen) != 1)
            return 0
        count = export_file(database, chosen, form, options.target)
    print(
        _("exported {count} to {target}", count=several(count, "{count} chat", "{count} chats"), target=options.target)
    )
    return 0


def _export_with_memory(paths: Paths, options: ExportOptions) -> int:
    """Write one conversation with its memory."""
    if not options.chat_id or options.form or options.target == STANDARD_OUTPUT:
        raise NotThatWay(
            _("A chat with its memory goes alone, into a file of its own form"),
            "",
            _("Name the chat with --chat, and leave --form out."),
        )
    passphrase = _passphrase(options.passphrase_file)
    with (
        closing(Database(paths.database)) as database,
        closing(open_store(paths, load_settings(paths.settings_file))) as store,
    ):
        chat = named_chat(database.conversations(), options.chat_id)
        telling = partial(show_progress, _("Exporting:"))
        written = export_with_memory(database, store, chat.id, options.target, passphrase, telling)
    sealed = _("sealed with the passphrase") if passphrase else _("readable by anyone who has the file")
    print(
        _(
            "exported 1 chat with its memory, {written}, to {target}; {sealed}",
            written=size(written),
            target=options.target,
            sealed=sealed,
        )
    )
    return 0


def run_import(files: Sequence[Path], passphrase_file: Path | None = None) -> int:
    """Take conversations in. Returns the exit code: 1 when something could not be taken in. Raises KvchatError.

    What came with its memory is tried out with the model in the settings.
    """
    paths = resolve_paths().ensure()
    if passphrase_file or any(holds_memory(file) for file in files):
        return run_until_interrupted(_import_with_memory(paths, files, _passphrase(passphrase_file)))
    with closing(Database(paths.database)) as database:
        return _report(import_paths(database, files))


async def _import_with_memory(paths: Paths, files: Sequence[Path], passphrase: str) -> int:
    runtime = await open_runtime(paths, load_settings(paths.settings_file))
    try:
        return _report(await runtime.transfer.take_in(files, lambda done, total: None, passphrase, start=True))
    finally:
        await runtime.close()


def _report(report: ImportReport) -> int:
    for problem in report.problems:
        print(problem, file=sys.stderr)
    print(
        _(
            "imported {count}, {known} were here already",
            count=several(len(report.imported), "{count} chat", "{count} chats"),
            known=number(report.known),
        )
    )
    for words in report.told:
        print(words)
    return 1 if report.problems else 0


def _passphrase(file: Path | None) -> str:
    """The first line of the file; empty without one. Never from the command line, where others can read it."""
    if file is None:
        return ""
    try:
        text = sys.stdin.readline() if file == STANDARD_OUTPUT else read_plain(file, MOST_PASSPHRASE).decode()
    except (OSError, ValueError) as error:
        raise NotThatWay(
            _("The passphrase could not be read"), f"{file}: {error}.", _("Give a file of text.")
        ) from error
    passphrase = text.partition("\n")[0].rstrip("\r")
    if not passphrase:
        raise NotThatWay(_("The passphrase is empty"), str(file), _("Write one into its first line."))
    return passphrase


def run_backup(target: Path) -> int:
    """Back up conversations and settings. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths().ensure()
    with closing(Database(paths.database)):  # made, or brought to the newest format
        if target == STANDARD_OUTPUT:
            write_backup(paths, sys.stdout.buffer)
            return 0
        facts = make_backup(paths, target)
    print(
        _(
            "backed up {conversations}, {size}, to {target}",
            conversations=several(facts.conversations, "{count} chat", "{count} chats"),
            size=size(facts.size),
            target=target,
        )
    )
    return 0


def run_restore(source: Path, *, with_engine: bool) -> int:
    """Put a backup back. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths().ensure()
    if in_use(paths):
        raise StillRunning
    facts = lay_ready(paths, source, with_engine=with_engine)
    replaced = finish_restore(paths)
    if replaced is None:  # it was started meanwhile
        forget_waiting(paths)
        raise StillRunning
    print(
        _(
            "restored {conversations}; what was here is in {replaced}",
            conversations=several(facts.conversations, "{count} chat", "{count} chats"),
            replaced=replaced,
        )
    )
    return 0


def run_repair() -> int:
    """Repair a damaged file of chats. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths().ensure()
    finish_restore(paths)
    repaired = repair(paths)
    print(repaired.words if repaired else _("The chats are whole; nothing was changed."))
    return 0
