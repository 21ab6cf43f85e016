"""Rules of .gitignore: compared with git, and hostile ones."""

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.chat.prepared import gitignore
from kvchat.chat.prepared.documents import read_documents
from kvchat.chat.prepared.gitignore import is_ignored, read_rules
from tests.systems import needs_pipes

RULES = """
*.log|build/|/only-here|docs/*.txt|**/deep/x|a/**/b|a/**|!keep.log|!*.txt|foo*|*foo|f?o|[ab].c|[!ab].c|[^b-]x|[a-c]*
[[:alpha:]]b|[[:digit:]]|[]a]x|[a|\\*|\\#x|#x|\\!x| x |x\\ |x/|/x|/a/b/|**|**/|/**|***|a**b|b*a*b|/*/b|*/x|a//b|a/b/c
é|[é]x|\\|[\\]]x|a\\/b|*.*|.*|/|!|*|!/a
""".replace("\n", "|").split("|")
NAMES = ("a", "b", "x", "foo", "fo", "afoo", "foo.log", "keep.log", "a.c", "c.c", "ab", "1", "é", "#x", "!x", "x ")
NAMES += ("]x", "build", "docs", "deep", "a.txt", "only-here", "-x", "[a", "abab", "\\", "*", "éx")
EVIL = ("*a" * 60 + "b", "**/" * 60 + "a*b", "*" * 900 + "b", "[a-c]*" * 60 + "x", "a*" * 400)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, chance = tmp_path_factory.mktemp("repository"), random.Random(5)
    subprocess.run(["git", "init", "-q", folder], check=True)
    for _ in range(150):
        file = folder.joinpath(*chance.choices(NAMES, k=chance.randint(1, 4)))
        if not any(parent.is_file() for parent in file.parents) and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("text")
    return folder


def kept(folder: Path) -> Iterator[str]:
    rules = read_rules(folder)

    def walk(place: Path) -> Iterator[str]:
        for entry in os.scandir(place):
            path = place / entry.name
            if entry.name != ".git" and not is_ignored(path, rules, is_folder=entry.is_dir()):
                yield from walk(path) if entry.is_dir() else [str(path.relative_to(folder))]

    return walk(folder)


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
@pytest.mark.parametrize("beside", ["", "!a\n*.log", "*\n!*/"])
def test_rules_match_git(repository: Path, beside: str) -> None:
    for rule in RULES:
        (repository / ".gitignore").write_text(f"{beside}\n{rule}\n", "utf-8")
        listed = ["git", "-C", str(repository), "ls-files", "-z", "--others", "--exclude-standard"]
        said = subprocess.run(listed, check=True, capture_output=True).stdout
        assert set(kept(repository)) == set(filter(None, os.fsdecode(said).split("\0"))), rule


@pytest.mark.parametrize("rule", EVIL)
def test_hostile_rules_take_linear_time(tmp_path: Path, rule: str) -> None:
    (tmp_path / ".gitignore").write_text(rule + "\n/**/*a*/**/*a*/**/*a*b")
    deep = tmp_path.joinpath(*(["a" * 100] * 20))
    deep.mkdir(parents=True)
    (deep / ("a" * 250)).write_text("text")
    (tmp_path / "z.txt").write_text("text")
    assert read_documents([tmp_path])


@needs_pipes
def test_only_a_regular_file_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gitignore, "MAX_BYTES", 20)
    (tmp_path / "rules").write_text("*.log\n" + "x" * 30 + "\n*.txt\n")
    (tmp_path / "rules").replace(tmp_path / ".gitignore")
    rules = read_rules(tmp_path)
    assert is_ignored(tmp_path / "a.log", rules, is_folder=False)
    assert not is_ignored(tmp_path / "a.txt", rules, is_folder=False)
    for other in ("pipe", "link", "folder"):
        (tmp_path / other).mkdir()
    os.mkfifo(tmp_path / "pipe" / ".gitignore")
    (tmp_path / "link" / ".gitignore").symlink_to("/dev/zero")
    (tmp_path / "folder" / ".gitignore").mkdir()
    assert [read_rules(tmp_path / other) for other in ("pipe", "link", "folder")] == [[], [], []]
