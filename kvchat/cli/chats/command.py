"""`kvchat chats`: list, show, rename and delete chats, without a screen."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Conversation
from kvchat.cli import owned
from kvchat.cli.chats.named import SHOWN, NoSuchChat, named_chat
from kvchat.cli.options import ChatsOptions
from kvchat.cli.terminal import columns, say
from kvchat.system.paths import resolve_paths
from kvchat.transfer.exporting import ExportForm, write_export
from kvchat.words.language import _, several
from kvchat.words.safe_text import calm
from kvchat.words.wording import one_line, timestamp


def run(options: ChatsOptions) -> int:
    """Do it and print what came of it. Returns the exit code. Raises KvchatError."""
    if options.action in ("rename", "delete"):
        return owned.run("chats", options)
    paths = resolve_paths().ensure()
    with closing(Database(paths.database)) as database:
        known = database.conversations()
        if options.action == "list":
            print(_as_json(known) if options.as_json else "\n".join(_lines(known)))
        else:
            form = ExportForm.JSON if options.as_json else ExportForm.MARKDOWN
            write_export(database, [named_chat(known, options.chats[0]).id], form, sys.stdout.buffer, zipped=False)
    return 0


async def change(options: ChatsOptions, commands: owned.Commands) -> int:
    """Rename or delete chats, as in the window. Returns the exit code. Raises KvchatError."""
    runtime = await commands.runtime()
    known = await runtime.chat.conversations()
    meant = [named_chat(known, name) for name in options.chats]
    if options.action == "rename":
        if not options.title.strip():
            raise NoSuchChat(_("A chat needs a title"), _("It is empty."), _("Write one behind the chat."))
        await runtime.chat.rename(meant[0].id, options.title.strip())
        renamed = await runtime.chat.conversation(meant[0].id) or meant[0]
        say(_as_json([renamed]) if options.as_json else _line(renamed))
        return 0
    await runtime.chat.organiser.delete([chat.id for chat in meant])
    if options.as_json:
        say(_as_json(meant))
        return 0
    days = runtime.settings.keep_deleted_days
    kept = (
        _("for {keep_deleted_days} among", keep_deleted_days=several(days, "{count} day", "{count} days"))
        if days
        else _("no longer in")
    )
    count = several(len(meant), "{count} chat", "{count} chats")
    say(_("{count} deleted; {kept} the recently deleted of the window.", count=count, kept=kept))
    return 0


def _lines(chats: Sequence[Conversation]) -> list[str]:
    return columns([_row(one) for one in chats]) if chats else [_("There are no chats yet: `kvchat ask` begins one.")]


def _row(one: Conversation) -> tuple[str, ...]:
    return one.id[:SHOWN], timestamp(one.updated_at), one_line(calm(one.title)), calm(one.folder or "")


def _line(one: Conversation) -> str:
    return "  ".join(_row(one)).strip()


def _as_json(chats: Sequence[Conversation]) -> str:
    """The chats as JSON; times in ISO 8601."""

    def plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in pairs}

    told = [dataclasses.asdict(one, dict_factory=plain) for one in chats]
    return json.dumps({"chats": told}, ensure_ascii=False, indent=2)
