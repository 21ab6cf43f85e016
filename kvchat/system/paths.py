"""kvchat's folders: the platform's directories, or one folder if KVCHAT_HOME is set."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from kvchat.errors import KvchatError
from kvchat.text.language import _

_LONGEST_NAME = 110  # characters of the longest path in a folder, except those of models
_TOO_LONG_ERRORS = (3, 206)  # ERROR_PATH_NOT_FOUND, ERROR_FILENAME_EXCED_RANGE; Windows allows 259 characters
RESTORE_FOLDER = "restore"  # folder in the data folder: a checked backup that replaces the data at the next start


@dataclass(frozen=True)
class Paths:
    """The folders kvchat uses, which may not exist yet."""

    config: Path
    data: Path
    cache: Path
    state: Path

    @property
    def settings_file(self) -> Path:
        return self.config / "settings.json"

    @property
    def database(self) -> Path:
        return self.data / "conversations.db"

    @property
    def models(self) -> Path:
        return self.data / "models"

    @property
    def engines(self) -> Path:
        """The folder of downloaded engines, with unfinished downloads in `.downloads`."""
        return self.data / "engines"

    @property
    def save_points(self) -> Path:
        """The folder of the save-point store, which the user may delete like any cache."""
        return self.cache / "savepoints"

    @property
    def mcp_file(self) -> Path:
        return self.config / "mcp.json"

    @property
    def mcp_approvals(self) -> Path:
        """The user's approvals of MCP servers: outside the configuration, so that no imported file can grant it."""
        return self.state / "mcp-approvals.json"

    @property
    def mcp_bundles(self) -> Path:
        return self.data / "mcp"

    @property
    def engine_log(self) -> Path:
        return self.state / "engine.log"

    @property
    def load_limits(self) -> Path:
        return self.state / "load-limits.json"

    @property
    def restore_findings(self) -> Path:
        return self.state / "findings.json"

    def ensure(self) -> Paths:
        """Create the folders, readable only for the user. Raises KvchatError, but not for the cache."""
        for folder in (self.config, self.data, self.cache, self.state):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                _check_length(folder)
            except OSError as error:
                if folder != self.cache:
                    raise KvchatError(
                        _("A required folder could not be created"),
                        f"{folder}: {error.strerror}.",
                        _("Check the permissions of the folder, or set KVCHAT_HOME to another folder."),
                    ) from error
        return self


def _check_length(folder: Path) -> None:
    """Raise KvchatError if the system refuses the longest paths that kvchat creates in this folder."""
    try:
        (folder / ("x" * _LONGEST_NAME)).stat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG or getattr(error, "winerror", None) in _TOO_LONG_ERRORS:
            raise KvchatError(
                _("The path of a required folder is too long"), f"{folder}", _("Set KVCHAT_HOME to a shorter path.")
            ) from error


def resolve_paths(environment: dict[str, str] | None = None) -> Paths:
    home = (os.environ if environment is None else environment).get("KVCHAT_HOME")
    if home:
        root = expand_user(home).absolute()
        return Paths(root / "config", root / "data", root / "cache", root / "state")
    dirs = platformdirs.PlatformDirs("kvchat", appauthor=False)
    try:
        return Paths(dirs.user_config_path, dirs.user_data_path, dirs.user_cache_path, dirs.user_state_path)
    except RuntimeError as error:
        raise KvchatError(
            _("No home folder found"),
            _("Neither HOME nor the user database specifies a home folder."),
            _("Set HOME, or set KVCHAT_HOME to a folder for kvchat only."),
        ) from error


def expand_user(name: str) -> Path:
    """Replace `~` by the home folder, if that is known."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)
