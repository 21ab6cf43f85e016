"""What the user asked of a command, as values, and how values are read.

What the functions that read one raise, argparse makes a usage message of.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvchat.errors import KvchatError
from kvchat.settings import MOST_BYTES, MOST_CONTEXT, why_not
from kvchat.transfer.exporting import ExportForm
from kvchat.words.language import _, number
from kvchat.words.wording import size

MOST_QUESTION = 64_000_000  # bytes, as of a file that is attached
_UNREAD = re.compile("[\ud800-\udfff]")  # Python's surrogateescape
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}  # decimal, as all sizes kvchat shows


@dataclass(frozen=True)
class AskOptions:
    """What `kvchat ask` is to ask. None means "not given": the settings or the model decide."""

    prompt: str = ""  # empty: a conversation on the terminal
    new: bool = False  # begin a new conversation
    chat_id: str | None = None  # go on with this one; neither: go on with the newest, or begin the first
    model: Path | None = None
    engine: Path | None = None
    system: str | None = None  # only for a new conversation
    on: str | None = None  # prepared documents that a new conversation begins on, by name
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    attach: tuple[Path, ...] = ()  # documents that go with the question
    as_json: bool = False
    starter: bool = False  # fetch the starter model if there is no model


@dataclass(frozen=True)
class ServeOptions:
    """Where and with what `kvchat serve` serves. None means "not given": the settings decide."""

    host: str | None = None
    port: int | None = None
    model: Path | None = None
    engine: Path | None = None
    starter: bool = False
    slots: int | None = None  # requests that are answered side by side
    key_file: Path | None = None


@dataclass(frozen=True)
class BenchOptions:
    """What `kvchat bench` is to measure. None means "not given": the settings decide."""

    model: Path | None = None
    engine: Path | None = None
    starter: bool = False
    tokens: int = 3000  # about how long the conversation is
    size: bool = False  # measure whether the store holds at the size of real chats
    made_bytes: int | None = None  # how large the file made for that is
    as_json: bool = False


@dataclass(frozen=True)
class PrepareOptions:
    """What `kvchat prepare` is to read, or `kvchat prepared` to show or remove."""

    paths: Sequence[Path] = ()  # none: what is called so is read again
    name: str = ""
    action: Literal["show", "remove"] = "show"
    model: Path | None = None
    engine: Path | None = None
    starter: bool = False
    as_json: bool = False


@dataclass(frozen=True)
class EnginesOptions:
    """What `kvchat engines` is to do."""

    action: Literal["list", "test", "get", "remove"] = "list"
    path: str | None = None  # the engine to try; None: the one kvchat would start
    backend: str | None = None  # what the one to get is to compute with; None: what suits the card best
    name: str = ""  # of the one to remove
    as_json: bool = False


@dataclass(frozen=True)
class StoreOptions:
    """What `kvchat store` is to do with the save points."""

    action: Literal["show", "prune", "verify", "forget"] = "show"
    target_bytes: int = 0  # of a prune
    dry_run: bool = False  # only tell what a prune would remove
    as_json: bool = False
    program: str = ""  # whose save points `forget` deletes


@dataclass(frozen=True)
class ChatsOptions:
    """What `kvchat chats` is to do with the chats."""

    action: Literal["list", "show", "rename", "delete"] = "list"
    chats: tuple[str, ...] = ()  # ids, or beginnings of them
    title: str = ""  # the new one
    as_json: bool = False


@dataclass(frozen=True)
class SettingsOptions:
    """What `kvchat settings` is to do with the settings."""

    action: Literal["list", "get", "set", "reset"] = "list"
    name: str = ""
    values: tuple[str, ...] = ()
    as_json: bool = False


@dataclass(frozen=True)
class ModelsOptions:
    """What `kvchat models` is to look for or to fetch."""

    action: Literal["list", "suggest", "search", "files", "get", "use", "token"] = "list"
    what: str = ""  # the words of a search; the repository of `files` and `get`
    quantisation: str = ""  # which file to get
    use: bool = False  # make what was fetched the model to chat with
    forget: bool = False  # the token
    folders: tuple[Path, ...] = ()  # to look into besides those of the settings
    as_json: bool = False


@dataclass(frozen=True)
class ExportOptions:
    """What `kvchat export` is to write."""

    target: Path
    chat_id: str | None = None  # None: every conversation
    form: ExportForm | None = None  # None: as the target's name says
    with_memory: bool = False  # so that the chat is as quick elsewhere
    passphrase_file: Path | None = None  # whose first line seals it


class NoQuestion(KvchatError):
    """There is nothing that could be asked."""


def positive(digits: str) -> int:
    """A whole number above zero, and none that nobody could wait for."""
    value = int(digits)  # argparse makes a usage message of its ValueError
    if not 1 <= value <= MOST_CONTEXT:
        raise argparse.ArgumentTypeError(
            _("{digits} is not from 1 to {most_context}", digits=digits, most_context=number(MOST_CONTEXT))
        )
    return value


def setting(name: str, read: Callable[[str], float]) -> Callable[[str], float]:
    """A number within the bounds that the setting `name` has."""

    def number(digits: str) -> float:
        value = read(digits)
        if why := why_not(name, value):
            raise argparse.ArgumentTypeError(f"{digits}: {why}")
        return value

    return number


def text(words: str) -> str:
    """Words that a locale could not read are read as UTF-8; bytes that are none are shown as such."""
    if not _UNREAD.search(words):
        return words
    return os.fsencode(words).decode("utf-8", "replace")


def named_path(name: str) -> Path:
    """A path that can be written down: what answers a chat is remembered by it."""
    if text(name) != name:
        raise argparse.ArgumentTypeError(_("the name {text} is not in UTF-8: rename it", text=repr(text(name))))
    return Path(name)


def standard_input() -> str:
    """All of standard input as text. Raises NoQuestion for what nobody can ask."""
    given = sys.stdin.buffer.read(MOST_QUESTION + 1) if sys.stdin else b""
    if len(given) > MOST_QUESTION:
        raise NoQuestion(
            _("The question is too long"),
            _("It is larger than {most_question}.", most_question=size(MOST_QUESTION)),
            _("Attach a part of it."),
        )
    return given.decode("utf-8-sig", "replace").replace("\0", "")


def byte_count(words: str) -> int:
    """A size as a user writes it: "2GB", "1.5 gb", "500M", "1000000"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", words, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(_("{words} is not a size; write it as 500MB or 2GB", words=repr(words)))
    size_bytes = float(match[1]) * _UNITS[match[2].upper()]
    if size_bytes > MOST_BYTES:
        raise argparse.ArgumentTypeError(_("{words} is more than any disk has", words=repr(words)))
    return round(size_bytes)
