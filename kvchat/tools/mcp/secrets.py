"""References in mcp.json: `${keyring:NAME}` to a secret in the keyring, `${env:NAME}` to an environment variable."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.system.secret_store import SecretLocation, SecretStore
from kvchat.text.language import _
from kvchat.tools.mcp.config import ServerConfig

_REFERENCE = re.compile(r"\$\{(keyring|env):([^}]*)\}")
_SECRET_NAME = re.compile(
    r"token|secret|passw|api[-_]?key|private[-_]?key|access[-_]?key|credential|^authorization$|^cookie$|_pat$|_key$",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Return True if a variable or header of this name probably contains a secret."""
    return _SECRET_NAME.search(name) is not None


def reference(name: str) -> str:
    return f"${{keyring:{name}}}"


class Secrets:
    """Secrets in the keyring. A server can use only those stored for its own name. The methods block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder  # for systems without a keyring

    def store(self, server: str, name: str) -> SecretStore:
        account = f"mcp {server} {name}"
        return SecretStore(account, self._folder / f"mcp-{hashlib.sha256(account.encode()).hexdigest()[:24]}")

    def save(self, server: str, name: str, value: str) -> SecretLocation:
        try:
            return self.store(server, name).save(value)
        except OSError as error:
            raise KvchatError(_("The secret could not be saved"), f"{error}.") from error

    def forget(self, config: ServerConfig) -> None:
        for name in secret_names(config):
            self.store(config.name, name).forget()

    def expand(self, config: ServerConfig) -> ServerConfig:
        """Replace references with their values. Raises KvchatError if one has no value."""

        def value(found: re.Match[str]) -> str:
            kind, name = found.groups()
            if kind == "env":
                known = os.environ.get(name)
            else:
                saved = self.store(config.name, name).load()
                known = saved[0] if saved else None
            if known is None:
                raise KvchatError(
                    _("{reference} has no value", reference=found[0]),
                    advice=_("Enter it in the settings of the MCP server {server}.", server=config.name),
                )
            return known

        def expanded(text: str) -> str:
            return _REFERENCE.sub(value, text)

        def all_expanded(texts: Mapping[str, str]) -> dict[str, str]:
            return {name: expanded(text) for name, text in texts.items()}

        return replace(
            config,
            command=expanded(config.command),
            arguments=tuple(map(expanded, config.arguments)),
            environment=all_expanded(config.environment),
            folder=expanded(config.folder),
            url=expanded(config.url),
            headers=all_expanded(config.headers),
        )


def secret_names(config: ServerConfig) -> set[str]:
    """Return the names of the secrets that a configuration refers to."""
    texts = (config.command, *config.arguments, *config.environment.values(), config.url, *config.headers.values())
    return {name for text in texts for kind, name in _REFERENCE.findall(text) if kind == "keyring"}
