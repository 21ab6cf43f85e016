"""The access token for Hugging Face: kept in the system's keyring, or in a file that only the user may read.

The token itself never goes into a log, an error or a repr.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.system.secret_store import SecretStore
from kvchat.words.language import N_, _

ACCOUNT = "Hugging Face access token"
FILE_NAME = "huggingface-token"
ELSEWHERE = N_("HF_TOKEN or the Hugging Face command line tool")


class BadToken(KvchatError):
    """What was given cannot be an access token."""


@dataclass(frozen=True)
class AccessToken:
    """A token and where it was found or is kept."""

    value: str = field(repr=False)
    place: str  # how a sentence ends: "kept in …"; ELSEWHERE: it is not ours


class TokenStore:
    """Reads, keeps and forgets the token. A keyring may ask the user to unlock it: use this off the event loop."""

    def __init__(self, config: Path) -> None:
        self._kept = SecretStore(ACCOUNT, config / FILE_NAME)
        self._loaded: AccessToken | None = None
        self._looked = False

    def load(self) -> AccessToken | None:
        """The token kvchat keeps, or else the one the user has given to Hugging Face's own tools. Remembered."""
        if not self._looked:
            self._loaded, self._looked = self._look(), True
        return self._loaded

    def value(self) -> str | None:
        """The token alone, for a request."""
        found = self.load()
        return found.value if found else None

    def _look(self) -> AccessToken | None:
        if kept := self._kept.load():
            return AccessToken(kept[0], kept[1].value)
        from huggingface_hub import get_token

        found = get_token()
        return AccessToken(found, ELSEWHERE) if found else None

    def save(self, value: str) -> str:
        """Keep a token; returns where, in words. Raises BadToken, and OSError where not even a file can be written."""
        value = value.strip()
        if not value.isascii() or not value.isprintable() or " " in value or len(value) < 8:
            raise BadToken(
                _("This is no access token"), _("A token is one word, such as hf_…"), _("Copy it once more.")
            )
        self._looked = False
        return self._kept.save(value).value

    def forget(self) -> None:
        """Forget the token kvchat keeps, wherever it is."""
        self._looked = False
        self._kept.forget()
