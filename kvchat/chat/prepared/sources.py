"""Documents from files, folders and repositories, and their changes. Blocking: call it off the event loop."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from kvchat.chat.attachments import CannotAttach, document_of_file, is_picture, read_bytes
from kvchat.chat.prepared.gitignore import Rules, read_rules
from kvchat.chat.record.messages import Attachment
from kvchat.errors import KvchatError
from kvchat.words.language import N_, _, listed, number, several
from kvchat.words.wording import size

MOST_TEXT = 32_000_000  # characters; more than any context holds
MOST_FILES = 20_000  # checked at most
_HEAD = 8192  # bytes of a file checked before reading the rest

_Rules = tuple[Rules, ...]  # innermost folder last


class CannotPrepare(KvchatError):
    """The documents cannot be read or kept."""


@dataclass(frozen=True)
class Source:
    path: str
    name: str  # shown to the model
    size: int  # bytes
    mtime_ns: int
    hash: str  # BLAKE3, as hex


@dataclass(frozen=True)
class Document:
    source: Source
    text: str

    @property
    def attachment(self) -> Attachment:
        return Attachment(self.source.name, self.source.size, self.source.hash, self.text)


@dataclass(frozen=True)
class Changes:
    changed: int = 0
    added: int = 0
    gone: int = 0

    def __bool__(self) -> bool:
        return bool(self.changed or self.added or self.gone)

    @property
    def words(self) -> str:
        changed, added, gone = self.changed, self.added, self.gone
        whole = (
            several(changed, "{count} file changed", "{count} files changed"),
            several(added, "{count} file added", "{count} files added"),
            several(gone, "{count} file removed", "{count} files removed"),
        )
        brief = (
            several(changed, "{count} changed", "{count} changed"),
            several(added, "{count} added", "{count} added"),
            several(gone, "{count} removed", "{count} removed"),
        )
        there = [place for place, count in enumerate((changed, added, gone)) if count] or [0]
        return listed([whole[there[0]], *(brief[place] for place in there[1:])])


def gather(paths: Sequence[Path], before: Sequence[Source] = ()) -> tuple[Document, ...]:
    """Read all documents, those in `before` first and in that order, so that unchanged ones stay a prefix."""
    places = {source.path: number for number, source in enumerate(before)}
    files = sorted(_files(paths), key=lambda file: places.get(str(file[0]), len(places)))
    documents: list[Document] = []
    amount = 0
    for path, name, named in files:
        if (document := _document(path, name, named=named)) is None:
            continue
        documents.append(document)
        amount += len(document.text)
        if amount > MOST_TEXT:
            sentence = N_("They contain more than {most_text} of text, which is too long for any model.")
            words = _(sentence, most_text=size(MOST_TEXT))
            raise CannotPrepare(_("This is too much to prepare"), words, _("Choose only the relevant part."))
    if not documents:
        words, advice = _("No files with text were found."), _("Choose text, code, Markdown or PDF files.")
        raise CannotPrepare(_("There is nothing to prepare"), words, advice)
    return tuple(documents)


def changes(paths: Sequence[Path], before: Sequence[Source]) -> Changes:
    known = {source.path: source for source in before}
    try:
        files = {str(path): (path, name) for path, name, _ in _files(filter(Path.exists, paths))}
    except CannotPrepare:  # too many files now: rereading reports it
        return Changes(added=1)

    def has_changed(source: Source) -> bool:
        path = Path(source.path)
        try:
            now = path.stat()
            if (now.st_size, now.st_mtime_ns) == (source.size, source.mtime_ns):
                return False
            return now.st_size != source.size or blake3(read_bytes(path)).hexdigest() != source.hash
        except (OSError, CannotAttach):
            return True

    changed = sum(has_changed(source) for path, source in known.items() if path in files)
    new = sum(_document(*files[path], named=False) is not None for path in files.keys() - known.keys())
    return Changes(changed, new, len(known.keys() - files.keys()))


def _document(path: Path, name: str, *, named: bool) -> Document | None:
    """Read a file's text; None for a folder's file without text. Raises CannotAttach if `named`."""
    try:
        if not named:
            with path.open("rb") as file:
                head = file.read(_HEAD)
            if b"\0" in head and not head.startswith((b"%PDF-", b"\xff\xfe", b"\xfe\xff")):
                return None
        changed = path.stat().st_mtime_ns if path.exists() else 0  # taken before reading, to detect changes meanwhile
        data = read_bytes(path)
        if is_picture(data):
            raise CannotAttach(path.name, _("It is an image."), _("Prepare text, code, Markdown or PDF files."))
        read = document_of_file(name, data)
    except (CannotAttach, OSError):
        if named:
            raise
        return None
    return Document(Source(str(path), read.name, read.size, changed, read.hash), read.text)


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, str, bool]]:
    seen: set[Path] = set()
    for path in map(Path.absolute, paths):
        inside = _in_folder(path, _rules_above(path)) if path.is_dir() else iter((path,))
        for file in itertools.islice(inside, MOST_FILES + 1 - len(seen)):
            name = str(file.relative_to(path.parent).as_posix())
            if file not in seen:
                seen.add(file)
                yield file, os.fsencode(name).decode("utf-8", "replace"), file == path
            if len(seen) > MOST_FILES:
                words = _("It contains more than {most_files} files.", most_files=number(MOST_FILES))
                raise CannotPrepare(_("This is too much to prepare"), words, _("Choose only the relevant subfolder."))


def _in_folder(folder: Path, rules: _Rules) -> Iterator[Path]:
    rules = (*rules, *read_rules(folder))
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = folder / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        verdicts = (innermost.ignores(path, is_folder=is_folder) for innermost in reversed(rules))
        ignored = next((verdict for verdict in verdicts if verdict is not None), False)
        if entry.name.startswith(".") or entry.is_symlink() or ignored:
            continue
        if is_folder:
            yield from _in_folder(path, rules)
        elif entry.is_file(follow_symlinks=False):
            yield path


def _rules_above(folder: Path) -> _Rules:
    above = [folder, *folder.parents]
    root = next((number for number, parent in enumerate(above) if (parent / ".git").exists()), 0)
    return tuple(rules for parent in reversed(above[1 : root + 1]) for rules in read_rules(parent))
