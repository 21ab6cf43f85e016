"""kvchat's folders, also without a home folder."""

import os
import subprocess
import sys
from pathlib import Path

import platformdirs.macos
import platformdirs.windows
import pytest

from kvchat.__main__ import main
from kvchat.errors import KvchatError
from kvchat.system.paths import expand_user, resolve_paths
from tests.systems import not_on_windows


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a user missing from the user database, as in some containers."""
    if sys.platform == "win32":
        pytest.skip("has its own list of users")
    import pwd

    def unknown(uid: object) -> None:
        raise KeyError(uid)

    for name in ("HOME", "KVCHAT_HOME", *(name for name in os.environ if name.startswith("XDG_"))):
        monkeypatch.delenv(name, raising=False)
    for lookup in ("getpwuid", "getpwnam"):
        monkeypatch.setattr(pwd, lookup, unknown)


@pytest.mark.usefixtures("homeless")
def test_no_home_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KvchatError, match="No home folder"):
        resolve_paths()
    assert main(["store"]) == 1
    assert capsys.readouterr().err.startswith("kvchat: No home folder found\n")
    assert expand_user("~/x") == Path("~/x")


@not_on_windows("has its own list of users")
def test_kvchat_home_without_a_home_folder(tmp_path: Path) -> None:
    homeless = """
import os, pwd
from pathlib import Path
from kvchat.cli.terminal import run_process
del os.environ["HOME"]
pwd.getpwuid = {}.__getitem__  # nobody is known
run_process(lambda: print(Path.home()) or 0)
"""
    environment = os.environ | {"HOME": "/", "KVCHAT_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", homeless], env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.stderr) == (f"{tmp_path}\n", "")


@pytest.mark.parametrize(
    "command",
    [
        ["engines", "test", "LONG"],
        ["models", "--folder", "LONG"],
        ["import", "LONG"],
        ["restore", "LONG"],
        ["export", "LONG"],
        ["backup", "LONG"],
        ["engines", "test", "~nobody-of-that-name/llama-server"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_impossible_path_is_an_error_message(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path))
    assert main([str(tmp_path / ("x" * 300)) if part == "LONG" else part for part in command]) == 1
    assert capsys.readouterr().err
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / ("x" * 300)))
    main(["doctor"])
    assert "(not created yet)" in capsys.readouterr().out


@not_on_windows("its limit depends on its registry")
def test_home_too_long_for_files_in_it_is_an_error_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for length, code in ((250, 0), (4000, 1)):  # Windows' and Linux's limits for a path
        levels, rest = divmod(length - len(str(tmp_path)) - len("/config"), 100)
        home = tmp_path.joinpath(*["x" * 99] * levels, "x" * rest)
        monkeypatch.setenv("KVCHAT_HOME", str(home))
        assert main(["chats"]) == code
        assert ("too long" in capsys.readouterr().err) is bool(code)


def test_folders_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats are never in the disposable cache folder."""
    monkeypatch.delenv("KVCHAT_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", "/Users/x/AppData/Local")
    for place, there in ((platformdirs.macos.MacOS, "Library"), (platformdirs.windows.Windows, "AppData/Local")):
        monkeypatch.setattr(platformdirs, "PlatformDirs", place)
        monkeypatch.setattr("platformdirs.windows.get_win_folder", platformdirs.windows.get_win_folder_from_env_vars)
        paths = resolve_paths()
        for folder in (paths.config, paths.data, paths.cache, paths.state):
            assert there in folder.as_posix()
        assert paths.cache not in (paths.config, paths.data, paths.state)
        assert not paths.database.is_relative_to(paths.cache)
