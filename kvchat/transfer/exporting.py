"""Writing conversations to a file, whole or not at all."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import IO, TypeVar

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Conversation, Message
from kvchat.errors import KvchatError
from kvchat.system.concurrency import Progress
from kvchat.system.files import whole_file
from kvchat.transfer.documents import as_html, as_markdown, file_name
from kvchat.transfer.rows import conversation_rows, write_json

T = TypeVar("T")


class ExportForm(Enum):
    """What to write."""

    JSON = "json"  # complete: branches and receipts included, can be imported again
    MARKDOWN = "md"  # one conversation's current branch; several are a zip of files
    HTML = "html"  # current branches on one page that stands alone

    @staticmethod
    def of(target: Path) -> ExportForm:
        """The form a file's name asks for; JSON where it asks for none."""
        suffix = target.suffix.lower()
        return {".md": ExportForm.MARKDOWN, ".zip": ExportForm.MARKDOWN, ".html": ExportForm.HTML}.get(
            suffix, ExportForm.JSON
        )


class ExportFailed(KvchatError):
    """The file could not be written."""


def export_file(
    database: Database,
    conversation_ids: Sequence[str],
    form: ExportForm,
    target: Path,
    progress: Progress = lambda done, total: None,
) -> int:
    """Write these conversations, each as of one moment, and return how many. `progress` is told after each.

    An old file stays until all is written. Raises ExportFailed, StorageFailed and what `progress` raises.
    """
    try:
        with whole_file(target) as new, new.open("wb") as out:
            zipped = len(conversation_ids) != 1 or target.suffix.lower() == ".zip"
            return write_export(database, conversation_ids, form, out, progress, zipped=zipped)
    except OSError as error:
        raise ExportFailed(
            "The export could not be written",
            f"{target}: {error.strerror or error}.",
            "Choose another place, or make room there.",
        ) from error


def write_export(
    database: Database,
    conversation_ids: Sequence[str],
    form: ExportForm,
    out: IO[bytes],
    progress: Progress = lambda done, total: None,
    *,
    zipped: bool = False,
) -> int:
    """The same into a file that is open; Markdown as a zip with a file for each where it is to be `zipped`.

    Raises OSError, StorageFailed and what `progress` raises.
    """
    total = len(conversation_ids)
    if form is ExportForm.MARKDOWN and zipped:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for conversation, branch in _counted(_branches(database, conversation_ids), total, progress):
                archive.writestr(file_name(conversation, ".md"), as_markdown(conversation, branch))
        return total
    text = io.TextIOWrapper(out, "utf-8", newline="\n")
    try:
        if form is ExportForm.JSON:
            return write_json(_counted(conversation_rows(database, conversation_ids), total, progress), text)
        talks = _counted(_branches(database, conversation_ids), total, progress)
        text.writelines(as_html(talks) if form is ExportForm.HTML else (as_markdown(*talk) for talk in talks))
        return total
    finally:
        text.detach()  # whoever opened the file closes it


def _branches(database: Database, conversation_ids: Sequence[str]) -> Iterator[tuple[Conversation, Sequence[Message]]]:
    for conversation_id in conversation_ids:
        with database.moment():
            conversation, branch = database.conversation(conversation_id), database.branch(conversation_id)
        if conversation is not None:
            yield conversation, branch


def _counted(items: Iterator[T], total: int, progress: Progress) -> Iterator[T]:
    for done, item in enumerate(items, 1):
        yield item
        progress(done, total)
