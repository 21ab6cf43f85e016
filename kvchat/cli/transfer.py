"""`kvchat export`, `import`, `backup`, `restore` and `repair`: conversations in and out, without a screen."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from kvchat.chat.record.database import Database
from kvchat.cli import owned
from kvchat.cli.chats.named import named_chat
from kvchat.cli.options import ExportOptions
from kvchat.cli.terminal import remark, say, show_progress
from kvchat.errors import KvchatError
from kvchat.settings import load_settings
from kvchat.store_service import open_store
from kvchat.system.files import in_time, read_plain
from kvchat.system.paths import Paths, resolve_paths
from kvchat.transfer.backup import finish_restore, lay_ready, make_backup, write_backup
from kvchat.transfer.exporting import ExportForm, export_file, write_export
from kvchat.transfer.importing import ImportReport
from kvchat.transfer.memory_file import export_with_memory
from kvchat.transfer.repair import repair
from kvchat.words.language import _, number, several
from kvchat.words.wording import size

STANDARD_OUTPUT = Path("-")
MOST_PASSPHRASE = 64_000  # bytes of its file


class NotThatWay(KvchatError):
    """The options do not go together, or a file that they name is of no use."""


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
    for file in files:
        try:
            in_time(file.stat)
        except TimeoutError as error:  # it is this process that waits, not the data's owner
            raise NotThatWay(_("The file cannot be read"), f"{file}: {error.strerror}.") from error
        except OSError:
            continue  # said by whoever reads it
    return owned.run("import", (tuple(file.absolute() for file in files), _passphrase(passphrase_file)))


async def take_in(files_and_passphrase: tuple[Sequence[Path], str], commands: owned.Commands) -> int:
    """As `run_import`."""
    files, passphrase = files_and_passphrase
    runtime = await commands.runtime()
    return _report(await runtime.transfer.take_in(files, lambda done, total: None, passphrase, start=True))


def _report(report: ImportReport) -> int:
    for problem in report.problems:
        remark(str(problem))
    say(
        _(
            "imported {count}, {known} were here already",
            count=several(len(report.imported), "{count} chat", "{count} chats"),
            known=number(report.known),
        )
    )
    for words in report.told:
        say(words)
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
    return owned.run("restore", (source.absolute(), with_engine))


async def restore(backup: tuple[Path, bool], commands: owned.Commands) -> int:
    """As `run_restore`."""
    source, with_engine = backup
    async with commands.alone():
        facts = await asyncio.to_thread(lay_ready, commands.paths, source, with_engine=with_engine)
        replaced = await asyncio.to_thread(finish_restore, commands.paths)
    count = several(facts.conversations, "{count} chat", "{count} chats")
    say(_("restored {conversations}; what was here is in {replaced}", conversations=count, replaced=replaced))
    return 0


def run_repair() -> int:
    """Repair a damaged file of chats. Returns the exit code. Raises KvchatError."""
    return owned.run("repair", None)


async def repair_chats(nothing: None, commands: owned.Commands) -> int:
    """As `run_repair`."""
    async with commands.alone():
        repaired = await asyncio.to_thread(repair, commands.paths)
    say(repaired.words if repaired else _("The chats are whole; nothing was changed."))
    return 0
