"""Takes out of a text what is nobody else's business: keys, tokens, the home folder, names. Pure."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_HIDDEN = "‹removed›"

# What comes before stays, what follows goes.
_AFTER = re.compile(
    r"(?P<before>Authorization:\s*(?:Bearer\s+)?|Bearer\s+|--(?:api-key|hf-token)[= ]\s*|-hft\s+"
    r"|\b\w*(?:(?:API|ENGINE)_?KEY|(?:HF|HUB|ACCESS|AUTH)_?TOKEN|SECRET|PASSWORD)\b[\"']?\s*[=:]\s*[\"']?)(?P<secret>[^\s\"',;]+)",
    re.IGNORECASE,
)
_LOOKS_SECRET = re.compile(r"\bhf_[A-Za-z0-9]{8,}|\bsk-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}")
_IN_URL = re.compile(r"(?<=://)[^/\s:@]+(?::[^/\s@]*)?@")
_SHORTEST_NAME = 3  # a shorter one would take letters out of other words


@dataclass(frozen=True)
class Person:
    """Who uses this computer."""

    home: str
    user: str
    host: str


def this_person() -> Person:
    """The user of this process; empty where the system does not tell."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = ""
    return Person(str(Path.home()), user, socket.gethostname())


def redact(text: str, person: Person, secrets: Iterable[str] = ()) -> str:
    """The text without them. `secrets` are further ones known to the caller, such as the engine's key."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    text = _LOOKS_SECRET.sub(_HIDDEN, text)
    text = _IN_URL.sub(f"{_HIDDEN}@", text)
    text = _AFTER.sub(rf"\g<before>{_HIDDEN}", text)
    if len(person.home) > 1:
        text = re.sub(rf"{re.escape(person.home)}(?![\w.-])", "~", text)
    for name, word in ((person.user, "‹user›"), (person.host, "‹computer›")):
        if len(name) >= _SHORTEST_NAME:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", word, text, flags=re.IGNORECASE)
    return text
