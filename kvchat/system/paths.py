"""kvchat's folders: the platform's directories, or one folder if KVCHAT_HOME is set."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from kvchat.errors import KvchatError
from kvchat.text.language import _

RESTORING = "restore"  # in the data folder: verified backup that replaces it at the next start


@dataclass(frozen=True)
class Paths:
    """The folders kvchat uses. None needs to exist; `ensure` creates them."""

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
        """Downloaded engines, one folder each; unfinished ones in `.downloads`."""
        return self.data / "engines"

    @property
    def save_points(self) -> Path:
        """The save-point store. Disposable, so it is in the cache."""
        return self.cache / "savepoints"

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
        """Create the folders, private to the user. Raises KvchatError, except for the disposable cache."""
        for folder in (self.config, self.data, self.cache, self.state):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                if folder != self.cache:
                    raise KvchatError(
                        _("A required folder could not be created"),
                        f"{folder}: {error.strerror}.",
                        _("Check the permissions of the folder, or set KVCHAT_HOME to another folder."),
                    ) from error
        return self


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
    """Expand `~`, or keep it if the home folder is unknown."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)
