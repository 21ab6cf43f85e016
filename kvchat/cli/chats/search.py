"""`kvchat search`: the chats that have these words, without a screen."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import closing

from kvchat.chat.record.database import Database
from kvchat.chat.search import FoundChat, find, index_some
from kvchat.system.paths import resolve_paths
from kvchat.words.language import _
from kvchat.words.safe_text import calm
from kvchat.words.wording import one_line

NOTHING_FOUND = 1  # as grep has it
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def run(words: str, *, as_json: bool) -> int:
    """Print what was found, titles first, then the newest messages. Returns the exit code. Raises KvchatError."""
    paths = resolve_paths().ensure()
    with closing(Database(paths.database)) as database:
        while index_some(database):
            pass
        found = find(database, words)
    if as_json:
        print(json.dumps({"chats": [dataclasses.asdict(one) for one in found]}, ensure_ascii=False, indent=2))
    else:
        for one in found:
            print(_in_words(one, marked=sys.stdout.isatty()))
    if not found:
        print(_("Nothing found."), file=sys.stderr)
    return 0 if found else NOTHING_FOUND


def _in_words(one: FoundChat, *, marked: bool) -> str:
    title = f"{one.conversation_id}  {one_line(calm(one.title))}"
    if not one.excerpt:
        return title
    line = one.excerpt
    for start, end in reversed(one.marks) if marked else ():
        line = f"{line[:start]}{_BOLD}{line[start:end]}{_PLAIN}{line[end:]}"
    return f"{title}\n    {line}"
