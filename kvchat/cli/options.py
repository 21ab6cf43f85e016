"""What the user asked of a command, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AskOptions:
    """One question for `kvchat ask`. None means "not given": the settings or the model decide."""

    prompt: str
    new: bool = False  # begin a new conversation
    chat_id: str | None = None  # go on with this one; neither: go on with the newest, or begin the first
    model: Path | None = None
    engine: Path | None = None
    system: str | None = None  # only for a new conversation
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    as_json: bool = False
    starter: bool = False  # fetch the starter model if there is no model


@dataclass(frozen=True)
class BenchOptions:
    """What `kvchat bench` is to measure. None means "not given": the settings decide."""

    model: Path | None = None
    engine: Path | None = None
    tokens: int = 3000  # about how long the conversation is
    as_json: bool = False
