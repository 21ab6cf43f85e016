"""`kvchat chats`, `search`, `export`, `import`, `backup`, `restore` and `repair`."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Conversation
from kvchat.chat.search import find, index_batch
from kvchat.cli import arguments
from kvchat.cli.options import STANDARD_STREAM, Options
from kvchat.cli.owned import CommandRunner
from kvchat.cli.terminal import (
    format_columns,
    pick_fields,
    print_err,
    print_out,
    print_result,
    show_progress,
    stdout_is_tty,
)
from kvchat.errors import KvchatError
from kvchat.system.paths import resolve_paths
from kvchat.text.formatting import format_size, format_timestamp, one_line
from kvchat.text.language import N_, _, format_number, plural, punctuation
from kvchat.text.safe_text import safe_prose
from kvchat.transfer.backup import finish_restore, make_backup, repair, stage_restore, write_backup
from kvchat.transfer.exporting import ExportForm, export_file, write_export
from kvchat.transfer.memory_file import export_with_memory

EXIT_NOT_FOUND = 1  # like grep
ID_PREFIX_LENGTH = 8  # characters of an id in lists
_MAX_CANDIDATES = 10
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def find_chat(chats: Sequence[Conversation], id: str) -> Conversation:
    """Return the chat with this id, or the only chat whose id starts with it. Raises KvchatError."""
    matches = [chat for chat in chats if id and chat.id.startswith(id)]
    matches = [chat for chat in matches if chat.id == id] or matches
    if len(matches) == 1:
        return matches[0]
    advice = _("Run `kvchat chats` to list the chats, and enter more characters of the id.")
    if not matches:
        raise KvchatError(_("No chat has the id {name}", name=id), "", advice)
    length = max(ID_PREFIX_LENGTH, len(id) + 4)
    lines = [f"{chat.id[:length]}  {one_line(safe_prose(chat.title))}" for chat in matches[:_MAX_CANDIDATES]]
    lines += [punctuation("…")] if len(matches) > len(lines) else []
    raise KvchatError(_("Several chat ids start with {name}", name=id), "\n".join(lines), advice)


def _open_database() -> closing[Database]:
    return closing(Database(resolve_paths().ensure().database))


def list_chats(options: arguments.JsonOptions) -> int:
    with _open_database() as database:
        chats = database.conversations()
    lines = format_columns(list(map(_chat_row, chats))) or [_("No chats yet. Run `kvchat ask` to start one.")]
    return print_result(options.as_json, {"chats": list(map(_json_fields, chats))}, lines)


def _json_fields(chat: Conversation) -> dict[str, Any]:
    names = "id title title_by_user created_at updated_at leaf_id model folder on_top archived"
    return pick_fields(chat, names)


def _chat_row(chat: Conversation) -> tuple[str, ...]:
    return (
        chat.id[:ID_PREFIX_LENGTH],
        format_timestamp(chat.updated_at),
        one_line(safe_prose(chat.title)),
        safe_prose(chat.folder or ""),
    )


def show_chat(options: arguments.ChatOptions) -> int:
    form = ExportForm.JSON if options.as_json else ExportForm.MARKDOWN
    with _open_database() as database:
        chat = find_chat(database.conversations(), options.chat)
        write_export(database, [chat.id], form, sys.stdout.buffer, zipped=False)
    return 0


async def rename(options: arguments.RenameOptions, runner: CommandRunner) -> int:
    chats = (await runner.runtime()).chat
    chat = find_chat(await chats.conversations(), options.chat)
    title = options.title.strip()
    if not title:
        raise KvchatError(_("A chat needs a title"), _("The text is empty."), _("Type the title after the chat id."))
    await chats.rename(chat.id, title)
    renamed = await chats.conversation(chat.id) or chat
    fields = {"chats": [_json_fields(renamed)]}
    return print_result(options.as_json, fields, ["  ".join(_chat_row(renamed)).strip()])


async def delete(options: arguments.ChatsOptions, runner: CommandRunner) -> int:
    runtime = await runner.runtime()
    conversations = await runtime.chat.conversations()
    chats = [find_chat(conversations, id) for id in options.chats]
    await runtime.chat.recently_deleted.delete([chat.id for chat in chats])
    retention = _("not kept in Recently deleted")
    if runtime.settings.keep_deleted_days:
        days = plural(runtime.settings.keep_deleted_days, "{count} day", "{count} days")
        retention = _("kept in Recently deleted for {keep_deleted_days}", keep_deleted_days=days)
    count = plural(len(chats), "{count} chat", "{count} chats")
    fields = {"chats": list(map(_json_fields, chats))}
    return print_result(options.as_json, fields, [_("{count} deleted; {kept}.", count=count, kept=retention)])


def search_chats(options: arguments.SearchOptions) -> int:
    with _open_database() as database:
        while index_batch(database):
            pass
        hits = find(database, " ".join(options.words))
    lines = []
    for hit in hits:
        lines.append(f"{hit.conversation_id}  {one_line(safe_prose(hit.title))}")
        if line := hit.excerpt:
            for start, end in reversed(hit.marks) if stdout_is_tty() else ():
                line = f"{line[:start]}{_BOLD}{line[start:end]}{_PLAIN}{line[end:]}"
            lines.append(f"    {line}")
    if hits or options.as_json:
        names = "conversation_id title message_ids excerpt marks in_document"
        print_result(options.as_json, {"chats": [pick_fields(hit, names) for hit in hits]}, lines)
    if not hits:
        print_err(_("No matches."))
    return 0 if hits else EXIT_NOT_FOUND


def export_chats(options: arguments.ExportOptions) -> int:
    if options.with_memory:
        return _export_with_memory(options)
    if options.passphrase:
        title = _("Only an export with memory can be encrypted with a passphrase")
        raise KvchatError(title, "", _("Add --with-memory."))
    form = ExportForm(options.form) if options.form else ExportForm.from_suffix(options.target)
    with _open_database() as database:
        chats = database.conversations()
        ids = [chat.id for chat in ([find_chat(chats, options.chat_id)] if options.chat_id else chats)]
        if options.target == STANDARD_STREAM:
            write_export(database, ids, form, sys.stdout.buffer, zipped=len(ids) != 1)
            return 0
        count = plural(export_file(database, ids, form, options.target), "{count} chat", "{count} chats")
    print_out(_("exported {count} to {target}", count=count, target=options.target))
    return 0


def _export_with_memory(options: arguments.ExportOptions) -> int:
    if not options.chat_id or options.form or options.target == STANDARD_STREAM:
        title = _("An export with memory contains a single chat and has its own format")
        raise KvchatError(title, "", _("Specify the chat with --chat, and omit --form."))
    passphrase = options.passphrase or ""
    with _open_database() as database:
        chat = find_chat(database.conversations(), options.chat_id)
        progress, store = partial(show_progress, _("Exporting:")), resolve_paths().save_points
        written = export_with_memory(database, store, chat.id, options.target, passphrase, progress)
    sealed = _("encrypted with the passphrase") if passphrase else _("not encrypted")
    sentence = N_("exported 1 chat with memory ({size}) to {target}; {encryption}")
    print_out(_(sentence, size=format_size(written), target=options.target, encryption=sealed))
    return 0


async def import_chats(options: arguments.ImportOptions, runner: CommandRunner) -> int:
    runtime = await runner.runtime()
    report = await runtime.transfer.import_files(
        options.files, lambda done, total: None, options.passphrase or "", start_engine=True
    )
    for problem in report.problems:
        print_err(str(problem))
    count = plural(len(report.imported), "{count} chat", "{count} chats")
    print_out(_("imported {count}; {known} already existed", count=count, known=format_number(len(report.existing))))
    deleted = {entry.id for entry in await runtime.chat.recently_deleted.entries() if entry.is_chat}
    if restored := deleted.intersection(report.existing):
        await runtime.chat.recently_deleted.restore_chats(list(restored))
        print_out(_("Restored from Recently deleted: {count}.", count=format_number(len(restored))))
    for sentence in report.notes:
        print_out(sentence)
    return 1 if report.problems else 0


def back_up(options: arguments.BackupOptions) -> int:
    paths = resolve_paths()
    with _open_database():  # creates the database if there is none
        if options.target == STANDARD_STREAM:
            write_backup(paths, sys.stdout.buffer)
            return 0
        facts = make_backup(paths, options.target)
    count = plural(facts.conversations, "{count} chat", "{count} chats")
    sentence = N_("backed up {conversations} ({size}) to {target}")
    print_out(_(sentence, conversations=count, size=format_size(facts.size), target=options.target))
    return 0


async def restore_backup(options: arguments.RestoreOptions, runner: CommandRunner) -> int:
    async with runner.exclusive():
        facts = await asyncio.to_thread(stage_restore, runner.paths, options.source, with_engine=options.with_engine)
        replaced: Path | None = await asyncio.to_thread(finish_restore, runner.paths)
    count = plural(facts.conversations, "{count} chat", "{count} chats")
    sentence = N_("restored {conversations}; the replaced files are in {replaced}")
    print_out(_(sentence, conversations=count, replaced=replaced))
    return 0


async def repair_chats(options: Options, runner: CommandRunner) -> int:
    async with runner.exclusive():
        repaired = await asyncio.to_thread(repair, runner.paths)
    print_out(repaired.text if repaired else _("The chat database is intact; nothing was changed."))
    return 0
