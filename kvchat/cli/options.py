"""What the user asked of a command, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvchat.transfer.exporting import ExportForm


@dataclass(frozen=True)
class AskOptions:
    """One question for `kvchat ask`. None means "not given": the settings or the model decide."""

    prompt: str
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


PERSON_PARTS = ("switch", "paste", "documents", "busy")


@dataclass(frozen=True)
class BenchOptions:
    """What `kvchat bench` is to measure. None means "not given": the settings decide."""

    model: Path | None = None
    engine: Path | None = None
    tokens: int = 3000  # about how long the conversation is; with `chats`, its system prompt
    chats: int | None = None  # measure so many chats that share a system prompt
    size: bool = False  # measure whether the store holds at the size of real chats
    made_bytes: int | None = None  # how large the file made for that is
    after_restart: bool = False  # measure what comes back after a restart, whatever the user does next
    person: str | None = None  # what is left of the waits when a person looks and writes before Send: a part, or all
    as_json: bool = False


@dataclass(frozen=True)
class PrepareOptions:
    """What `kvchat prepare` is to read, or `kvchat prepared` to show or remove."""

    paths: Sequence[Path] = ()  # none: what is called so is read again
    name: str = ""
    action: Literal["show", "remove"] = "show"
    model: Path | None = None
    engine: Path | None = None
    as_json: bool = False


@dataclass(frozen=True)
class EnginesOptions:
    """What `kvchat engines` is to do: list them, or try one out."""

    test: bool = False
    path: str | None = None  # the engine to try; None: the one kvchat would start
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
class ModelsOptions:
    """What `kvchat models` is to look for or to fetch."""

    action: Literal["list", "suggest", "search", "files", "get", "token"] = "list"
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
