"""API keys of the gateway: a shared key, and keys for single programs that can be revoked separately."""

import contextlib
import hmac
import json
import os
import secrets
import stat
import unicodedata
from collections.abc import Mapping
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.system.files import read_regular_file
from kvchat.system.paths import Paths
from kvchat.system.secret_store import SecretStore
from kvchat.text.language import _

ANY_PROGRAM = ""  # key not tied to one program
UNNAMED = "other"  # a program that sends no name
MIN_KEY = 8  # characters
_ACCOUNT = "API keys"
_MAX_FILE = 100_000
_MAX_NAME = 40  # characters
_INVISIBLE = "\u115f\u1160\u17b4\u17b5\ufe0e\ufe0f"  # invisible letters and marks


class Keys:
    def __init__(self, keys: Mapping[str, str], owner_key: str = "") -> None:
        """`keys` maps a program, or `ANY_PROGRAM`, to its API key; a client with `owner_key` may list all requests."""
        self._keys = {name: key.encode() for name, key in keys.items() if key}
        self._owner_key = owner_key.encode()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __contains__(self, program: str) -> bool:
        return program in self._keys

    def is_owner(self, key: str) -> bool:
        return bool(self._owner_key) and hmac.compare_digest(self._owner_key, key.encode("utf-8", "replace"))

    def allows(self, program: str, path: str) -> bool:
        """True if a program with a key may use this path."""
        return True

    def program_of(self, key: str) -> str | None:
        """Return the key's program or `ANY_PROGRAM`, or None if it is invalid. Compares in constant time."""
        key_bytes = key.encode("utf-8", "replace")
        names = [name for name, known in self._keys.items() if hmac.compare_digest(known, key_bytes)]
        return names[-1] if names else None


class KeyStore:
    """The user's API keys, in the keyring or a file. Blocking: do not call it in the event loop."""

    def __init__(self, paths: Paths) -> None:
        self._store = SecretStore(_ACCOUNT, paths.config / "api-keys")

    def load(self) -> dict[str, str]:
        stored = self._store.load()
        try:
            keys = json.loads(stored[0]) if stored else {}
        except ValueError:
            return {}
        return {str(name): str(key) for name, key in keys.items()} if isinstance(keys, dict) else {}

    def make(self, program: str = ANY_PROGRAM) -> str:
        """Create a key, replacing the program's old one. Raises OSError if it cannot be stored."""
        key = f"kv-{secrets.token_urlsafe(32)}"
        self._store.save(json.dumps(self.load() | {program: key}))
        return key

    def revoke(self, program: str = ANY_PROGRAM) -> None:
        """Delete the program's key. Raises OSError if the keys cannot be stored."""
        left = {name: key for name, key in self.load().items() if name != program}
        if left:
            self._store.save(json.dumps(left))
        else:
            self._store.forget()


def read_key_file(path: Path) -> dict[str, str]:
    """Read `key` or `program: key` lines. Raises KvchatError, including for a file others can read."""
    try:
        if os.name != "nt" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise KvchatError(
                _("The API key file is not private"),
                _("Other users can read {path}.", path=path),
                _("Run: chmod 600 {path}", path=path),
            )
        lines = read_regular_file(path, _MAX_FILE).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KvchatError(_("The API key file cannot be read"), f"{path}: {error}.") from error
    keys: dict[str, str] = {}
    for line in filter(None, map(str.strip, lines)):
        name, colon, key = (part.strip() for part in line.partition(":"))
        if not colon:
            name, key = ANY_PROGRAM, line
        if len(key) < MIN_KEY or name.rstrip("-._") != program_name(name):
            reason = _(
                "Each line must be an API key of at least {least_key} characters, or an app's name, "
                "a colon and its API key.",
                least_key=MIN_KEY,
            )
            raise KvchatError(_("The API key file is invalid"), f"{path}: {reason}")
        keys[name] = key
    if not keys:
        raise KvchatError(_("The API key file contains no key"), _("{path} is empty.", path=path))
    return keys


def program_from_user_agent(agent: str) -> str:
    """Return the program's name in a User-Agent header that was decoded as Latin-1."""
    with contextlib.suppress(UnicodeError):
        agent = agent.encode("latin-1").decode()
    product, _, version = agent.strip().partition(" ")[0].partition("/")
    if version.lower() in ("python", "js", "go", "java"):  # OpenAI and Anthropic SDKs
        product = f"{product}-{version}"
    name = program_name(product)
    return {"": UNNAMED, "mozilla": "browser"}.get(name, name)


def program_name(text: str) -> str:
    """Make a name safe to display: replace all but visible letters and digits with hyphens."""

    def is_plain(character: str) -> bool:
        return character in "-._" or (unicodedata.category(character)[0] in "LMN" and character not in _INVISIBLE)

    plain = unicodedata.normalize("NFKC", text.strip()).lower()
    return "".join(c if is_plain(c) else "-" for c in plain)[:_MAX_NAME].strip("-._")
