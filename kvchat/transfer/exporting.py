"""Export of conversations: complete as JSON, or only their current branches as Markdown or HTML."""

from __future__ import annotations

import base64
import contextlib
import html
import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import IO, Any, TypeVar

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Conversation, Message, Role
from kvchat.engine.api.pictures import image_format
from kvchat.errors import KvchatError
from kvchat.system.concurrency import OnProgress
from kvchat.system.files import atomic_write
from kvchat.text.formatting import format_timestamp, one_line
from kvchat.text.language import N_, _
from kvchat.text.markdown import SafeRenderer, is_too_deep, markdown_parser
from kvchat.text.safe_text import safe_code, safe_document, safe_prose
from kvchat.transfer.rows import conversation_rows, write_json

T = TypeVar("T")
SPEAKER_LABELS = {Role.SYSTEM: N_("System prompt"), Role.USER: N_("You"), Role.ASSISTANT: N_("Reply")}
SPEAKER_LABELS |= {Role.TOOL: N_("Tool result")}

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.6 system-ui, sans-serif; }
article { border-top: 1px solid #8884; padding: .5rem 0; overflow-wrap: anywhere; }
article.user { background: #8881; border-radius: .6rem; padding: .5rem 1rem; border: 0; }
h2.speaker { font-size: .85rem; font-weight: 600; opacity: .65; margin: .4rem 0; }
pre { overflow-x: auto; padding: .8rem; background: #8882; border-radius: .4rem; }
code { font-family: ui-monospace, monospace; font-size: .92em; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border-bottom: 1px solid #8884; padding: .3rem .7rem; text-align: left; }
blockquote { margin-left: 0; padding-left: 1rem; border-left: 3px solid #8886; }
img { max-width: 100%; border-radius: .4rem; }
.time { opacity: .65; font-size: .85rem; }
"""


class ExportForm(Enum):
    JSON = "json"  # complete: includes branches and receipts, can be imported
    MARKDOWN = "md"  # current branch of one conversation; a zip for several
    HTML = "html"  # current branches on one self-contained page

    @staticmethod
    def from_suffix(target: Path) -> ExportForm:
        forms = {".md": ExportForm.MARKDOWN, ".zip": ExportForm.MARKDOWN, ".html": ExportForm.HTML}
        return forms.get(target.suffix.lower(), ExportForm.JSON)


def export_file(
    database: Database,
    conversation_ids: Sequence[str],
    form: ExportForm,
    target: Path,
    progress: OnProgress = lambda done, total: None,
) -> int:
    """Export conversations and return their number. Raises KvchatError and what `progress` raises."""
    with export_target(target) as new, new.open("wb") as out:
        zipped = len(conversation_ids) != 1 or target.suffix.lower() == ".zip"
        return write_export(database, conversation_ids, form, out, progress, zipped=zipped)


@contextlib.contextmanager
def export_target(target: Path, *, private: bool = False) -> Iterator[Path]:
    try:
        with atomic_write(target, private=private) as new:
            yield new
    except OSError as error:
        raise KvchatError(
            _("The export could not be written"),
            f"{target}: {error.strerror or error}.",
            _("Choose another folder, or free up disk space."),
        ) from error


def write_export(
    database: Database,
    conversation_ids: Sequence[str],
    form: ExportForm,
    out: IO[bytes],
    progress: OnProgress = lambda done, total: None,
    *,
    zipped: bool = False,
) -> int:
    """Write an export to an open file. Raises OSError, StorageFailed and what `progress` raises."""
    total = len(conversation_ids)
    if form is ExportForm.MARKDOWN and zipped:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for conversation, branch in _with_progress(_load_branches(database, conversation_ids), total, progress):
                archive.writestr(file_name(conversation, ".md"), as_markdown(conversation, branch))
        return total
    text = io.TextIOWrapper(out, "utf-8", newline="\n")
    try:
        if form is ExportForm.JSON:
            return write_json(_with_progress(conversation_rows(database, conversation_ids), total, progress), text)
        chats = _with_progress(_load_branches(database, conversation_ids), total, progress)
        text.writelines(as_html(chats) if form is ExportForm.HTML else (as_markdown(*chat) for chat in chats))
        return total
    finally:
        text.detach()  # the caller closes the file


def _load_branches(
    database: Database, conversation_ids: Sequence[str]
) -> Iterator[tuple[Conversation, Sequence[Message]]]:
    for conversation_id in conversation_ids:
        with database.snapshot():
            conversation, branch = database.conversation(conversation_id), database.branch(conversation_id)
        if conversation is not None:
            yield conversation, branch


def _with_progress(items: Iterator[T], total: int, progress: OnProgress) -> Iterator[T]:
    for done, item in enumerate(items, 1):
        yield item
        progress(done, total)


def as_markdown(conversation: Conversation, branch: Sequence[Message]) -> str:
    parts = [f"# {one_line(safe_prose(conversation.title))}", f"*{format_timestamp(conversation.created_at)}*"]
    for message in branch:
        parts.append(f"## {_(SPEAKER_LABELS[message.role])}")
        if message.thinking.strip():
            quoted = "\n".join(f"> {line}" for line in safe_prose(message.thinking).strip().splitlines())
            parts.append("> *" + _("Thinking") + f"*\n>\n{quoted}")
        parts += [
            _("*Attached: {name}*", name=one_line(safe_prose(attachment.name))) for attachment in message.attachments
        ]
        if message.role is Role.TOOL:
            parts.append(_fenced(message.content))
            continue
        parts.append(_sanitize_markdown(message.content.strip()))
        for call in message.calls:
            parts += [_("*Tool call: {name}*", name=one_line(safe_prose(call.name))), _fenced(call.arguments)]
    return "\n\n".join(parts) + "\n"


def as_html(conversations: Iterable[tuple[Conversation, Sequence[Message]]]) -> Iterable[str]:
    """Yield the parts of an HTML page without scripts or remote content."""
    yield (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>Chats</title>\n<style>{_STYLE}</style>\n"
    )
    reader = markdown_parser(SafeRenderer)
    for conversation, branch in conversations:
        yield f'<h1 dir="auto">{html.escape(safe_prose(conversation.title))}</h1>\n'
        yield f'<p class="time">{format_timestamp(conversation.created_at)}</p>\n'
        for message in branch:
            parts = [f'<h2 class="speaker">{_(SPEAKER_LABELS[message.role])}</h2>']
            if message.thinking.strip():
                parts.append(_as_collapsible_html(_("Thinking"), safe_prose(message.thinking)))
            for attachment in message.attachments:
                name = html.escape(safe_prose(attachment.name))
                if attachment.data:  # embedded: the page is self-contained
                    kind = (image_format(attachment.data) or "png").lower()
                    data = base64.b64encode(attachment.data).decode()
                    parts.append(f'<p><img src="data:image/{kind};base64,{data}" alt="{name}"></p>')
                else:
                    parts.append(_as_collapsible_html(name, safe_document(attachment.name, attachment.text)))
            if message.role is Role.TOOL:
                parts.append(_as_collapsible_html(_as_call(message), safe_code(message.content)))
                yield f'<article class="tool" dir="auto">{"".join(parts)}</article>\n'
                continue
            env: dict[str, Any] = {}
            tokens = reader.parse(message.content, env) if message.role is Role.ASSISTANT else None
            if tokens is None or is_too_deep(tokens):
                parts.append(_as_plain_html(safe_prose(message.content)))
            else:
                parts.append(str(reader.renderer.render(tokens, reader.options, env)))
            yield f'<article class="{message.role.value}" dir="auto">{"".join(parts)}</article>\n'
    yield "</html>\n"


def file_name(conversation: Conversation, suffix: str) -> str:
    """Return a file name, valid on any system, made of the title and part of the id."""
    title = re.sub(r'[\x00-\x1f\x7f<>:"/\\|?*\s]+', " ", safe_prose(conversation.title)).strip(" .")[:60].rstrip(" .")
    title = title or _("Chat")
    return f"{title} {conversation.id[:6]}{suffix}"


def _fenced(text: str) -> str:
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}\n{safe_code(text.strip())}\n{fence}"


def _as_call(message: Message) -> str:
    """Return a tool result's call as HTML."""
    return "".join(html.escape(safe_code(f"{call.name} {call.arguments}")) for call in message.calls) or _("Tool")


def _as_collapsible_html(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>{_as_plain_html(text)}</details>"


def _as_plain_html(text: str) -> str:
    return f'<p style="white-space: pre-wrap">{html.escape(text.strip())}</p>'


def _sanitize_markdown(text: str) -> str:
    """Escape hidden characters in lines with code, remove them elsewhere, and close an open code block."""
    fence = ""
    lines = []
    for line in text.splitlines():
        lines.append(safe_code(line) if fence or "`" in line or line.startswith(("    ", "\t")) else safe_prose(line))
        opening = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if opening and not fence:
            fence = opening[1]
        elif fence and re.fullmatch(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}\s*", line):
            fence = ""
    return "\n".join([*lines, fence] if fence else lines)
