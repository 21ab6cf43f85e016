"""kvchat's own JSON: conversations whole, branches and receipts included; what it writes it reads again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO, Any

from kvchat.transfer.rows import Row

FORMAT = "kvchat-conversations"
VERSION = 1


def write_json(conversations: Iterable[Row], file: IO[str]) -> int:
    """Write conversations, one at a time, and return how many. Raises OSError."""
    file.write(f'{{"format": "{FORMAT}", "version": {VERSION}, "conversations": [')
    count = 0
    for count, conversation in enumerate(conversations, 1):
        file.write(",\n" if count > 1 else "\n")
        json.dump(conversation, file, ensure_ascii=False, indent=1)
    file.write("\n]}\n")
    return count


def own_entries(data: Any) -> list[Any] | None:
    """The conversations in a file of kvchat's own; None for any other data. Raises ValueError for a newer version."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return None
    if data.get("version") != VERSION:
        raise ValueError("it was written by a newer kvchat")
    entries = data.get("conversations")
    return entries if isinstance(entries, list) else []
