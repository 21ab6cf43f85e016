"""Packaging files: consistent, valid and translated."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from kvchat import __version__
from kvchat.system import login
from kvchat.text.language import LANGUAGES
from kvchat.ui.base.icons import app_svg

ROOT = Path(__file__).resolve().parents[1]
PACKAGING = ROOT / "packaging"
DESKTOP_FILE = PACKAGING / "io.github.kvchat.kvchat.desktop"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PACKAGING))


def test_version_is_the_same_everywhere():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"] == __version__
    assert f'<release version="{__version__}"' in (PACKAGING / "kvchat.metainfo.xml").read_text("utf-8")
    manifest = yaml.safe_load((PACKAGING / "io.github.kvchat.kvchat.yml").read_text("utf-8"))
    assert f"kvchat-{__version__}-linux" in manifest["modules"][0]["sources"][0]["path"]


@pytest.mark.parametrize(
    "command",
    [
        ("appstreamcli", "validate", "--no-net", "--pedantic", PACKAGING / "kvchat.metainfo.xml"),
        ("desktop-file-validate", "--warn-kde", DESKTOP_FILE),
    ],
    ids=lambda command: command[0],
)
def test_desktop_files_are_valid(command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert f"{DESKTOP_FILE.name}:" not in done.stdout, "warnings of desktop-file-validate"


def test_desktop_files_are_translated():
    """Desktops name languages without a script."""
    theirs = {"zh_Hans": "zh_CN", "zh_Hant": "zh_TW"}
    said = {
        name: (PACKAGING / f"{stem}{name}").read_text("utf-8")
        for stem, name in ((DESKTOP_FILE.stem, ".desktop"), ("kvchat", "-mime.xml"), ("kvchat", ".metainfo.xml"))
    }
    for language in set(LANGUAGES) - {"en"}:
        called = theirs.get(language, language)
        keys = re.findall(rf"^(\w+)\[{called}\]=.", said[".desktop"], re.MULTILINE)
        assert keys == ["GenericName", "Comment", "Keywords", "Name"], language
        assert len(re.findall(rf'<comment xml:lang="{called}">.', said["-mime.xml"])) == 3, language
        told = re.findall(rf'<(\w+) xml:lang="{called}">.', said[".metainfo.xml"])
        assert told == ["summary", "p", "p", "li", "li", "li"], language


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_unit_is_valid(tmp_path):
    """systemd-analyze requires the program to exist: another one replaces kvchat, which may not be installed."""
    unit = tmp_path / "kvchat.service"
    there = (PACKAGING / unit.name).read_text("utf-8").replace("ExecStart=kvchat ", f"ExecStart={sys.executable} ")
    unit.write_text(there, "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", unit],
        capture_output=True,
        text=True,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sys.executable in there


def test_workflow_runs_existing_scripts():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "packages.yml").read_text("utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    named = {name for step in steps for name in re.findall(r"packaging/[\w.-]+", step.get("run", ""))}
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


_NO_ROOT = """
id() { echo 1000; }; sudo() { false; }; dpkg-query() { :; }  # nobody may be root, and nothing is installed
find_python() { command -v python3; }; has_venv() { false; }
apt-get() { echo "$*" >>asked; case "$*" in *download-only*) touch .debian/cache/archives/one.deb;; esac; }
dpkg-deb() { mkdir -p "$3/usr/lib/some-linux-gnu"; }
export -f id sudo dpkg-query apt-get dpkg-deb
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_setup_without_root(tmp_path):
    (tmp_path / "packaging").mkdir()
    for name in ("setup.sh", "debian-packages"):
        shutil.copy(PACKAGING / name, tmp_path / "packaging")
    twice = "(install_packages qt engine); echo === >&2; install_packages qt engine; echo $LD_LIBRARY_PATH"
    done = subprocess.run(
        ["bash", "-euc", f". packaging/setup.sh; {_NO_ROOT} {twice}"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, again = done.stderr.split("===\n")
    (line,) = re.findall(r"^  apt-get update && apt-get install .*", first, re.MULTILINE)
    assert {"python3-venv", "libegl1", "libgomp1"} <= set(line.split())
    assert again == "", "it is unpacked already"
    assert len((tmp_path / "asked").read_text("utf-8").splitlines()) == 2, "the lists, and the packages"
    assert done.stdout == f"{tmp_path}/.debian/usr/lib/some-linux-gnu\n"


@pytest.mark.parametrize(
    ("file", "named"),
    [
        (
            "io.github.kvchat.kvchat.desktop",
            (
                "x-scheme-handler/kvchat;",
                "application/x-kvchat;",
                "application/x-gguf;",
                "application/x-mcpb;",
                "open %U",
            ),
        ),
        ("kvchat-mime.xml", ('"*.kvchat"', '"*.gguf"', '"*.mcpb"')),
        (
            "kvchat.iss",
            ('"URL Protocol"', "Classes\\.kvchat", "Classes\\.gguf\\OpenWithProgids", "Classes\\.mcpb", 'open ""%1""'),
        ),
        ("kvchat.iss", (f'Subkey: "{login._RUN_KEY}"; ValueName: "{login._NAME}"',)),  # the uninstaller removes it
        ("kvchat.spec", ('"CFBundleURLSchemes": ["kvchat"]', 'memory", "kvchat"', 'model", "gguf"', 'bundle", "mcpb"')),
    ],
)
def test_file_associations(file, named):
    text = (PACKAGING / file).read_text("utf-8")
    assert [name for name in named if name not in text] == []


def test_icons_in_every_format(scripts, tmp_path, monkeypatch):
    import icons  # type: ignore[import-not-found]

    monkeypatch.setattr(sys, "platform", "linux")
    assert icons.for_platform(tmp_path) is None
    for platform, magic in (("win32", b"\0\0\1\0"), ("darwin", b"icns")):
        monkeypatch.setattr(sys, "platform", platform)
        assert Path(icons.for_platform(tmp_path)).read_bytes().startswith(magic)
    icons.hicolor(tmp_path)
    assert (tmp_path / "scalable/apps/kvchat.svg").read_text("utf-8") == app_svg()
    assert (tmp_path / "48x48/apps/kvchat.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_file_without_a_licence_is_reported(scripts, tmp_path):
    import bundled  # type: ignore[import-not-found]
    import markdown_it

    stray = tmp_path / "stray.so"
    stray.touch()
    with pytest.raises(bundled.NoLicence, match=re.escape(str(stray))):
        bundled.licences([stray], "1.0")
    engine = importlib.util.find_spec("xllamacpp")
    assert engine.origin is not None
    text = bundled.licences([markdown_it.__file__, engine.origin, re.__file__, ROOT / "kvchat" / "app.py"], "1.0")
    assert "  markdown-it-py " in text
    assert "  Python 3." in text
    assert "Permission is hereby granted" in text
    assert "The ggml authors" in text, "who made what was compiled into the engine"
