"""Engines from a fake GitHub: downloaded, resumed, verified, unpacked, tested, kept, removed."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio

from kvchat.engine.discovery.engines import EngineLocation, program_name
from kvchat.engine.discovery.graphics import Backend, GpuVendor, Graphics
from kvchat.engine_host import setup as engine_setup
from kvchat.engine_host.setup import EngineDownload, EngineSetup, Stage, downloaded_engines
from kvchat.engine_host.trial import EngineTrial
from kvchat.errors import KvchatError
from kvchat.library.remote import downloader
from kvchat.library.remote.downloader import DownloadFailed
from kvchat.library.remote.hub import HubError, Unreachable
from kvchat.settings import Settings
from kvchat.system.paths import Paths
from tests.engine_fixtures import FakeEngine
from tests.library.engine_archives import tarred
from tests.library.fake_hub import FakeHub

NAME = "llama.cpp-b11457-cuda-12.8"
ARCHIVE, LIBRARIES = (f"{prefix}llama-b11457-bin-ubuntu-cuda-12.8-x64.tar.gz" for prefix in ("", "cudart-"))
VULKAN = "llama-b11457-bin-ubuntu-vulkan-x64.tar.gz"


class Home:
    """The engines of one kvchat folder, with the recorded progress and notices."""

    def __init__(self, paths: Paths, fake: FakeEngine) -> None:
        self.paths, self.settings = paths, Settings(engine_path="/usr/bin/old", model_path=str(fake.plan.model))
        self.progress: list[EngineDownload | None] = []
        self.notices: list[tuple[str, ...]] = []
        self.setup = EngineSetup(paths, lambda: self.settings, self._use, lambda *notice: self.notices.append(notice))
        self.setup.subscribe(lambda: self.progress.append(self.setup.download))

    async def _use(self, path: str | None) -> None:
        self.settings = Settings(engine_path=path, model_path=self.settings.model_path)

    @property
    def stages(self) -> list[Stage]:
        """The stages so far, each once, in order."""
        return list(dict.fromkeys(progress.stage for progress in self.progress if progress))

    @property
    def program(self) -> Path:
        return self.paths.engines / NAME / program_name()

    def left(self) -> list[str]:
        """Return the names of all files in the engines' folder."""
        return sorted(path.name for path in self.paths.engines.rglob("*") if path.is_file())

    async def works(self) -> None:
        trial = await self.setup.install()
        assert trial.works
        assert self.settings.engine_path == str(self.program)

    async def fails(self, backend: Backend | None = None) -> EngineTrial:
        """Download an engine that fails its trial, so it is not used."""
        trial = await self.setup.install(backend)
        assert not trial.works
        assert self.settings.engine_path == "/usr/bin/old"
        return trial


@pytest_asyncio.fixture
async def home(
    tmp_path: Path, fake_engine: FakeEngine, github: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Home]:
    monkeypatch.setattr(engine_setup, "detect_graphics", lambda: Graphics("linux", (GpuVendor.NVIDIA,)))
    monkeypatch.setattr(engine_setup, "installed_starter", lambda: None)
    monkeypatch.setattr(engine_setup.builds_for, "__defaults__", ("x86_64",))
    monkeypatch.setattr(downloader, "RETRY_DELAYS_S", (0.0, 0.0))
    program = fake_engine.path.read_bytes()
    engine = tarred({f"llama-b11457/{program_name()}": program, "llama-b11457/libggml-cuda.so": bytes(300_000)})
    libraries = tarred({f"{LIBRARIES}/libcudart.so.12": b"cuda", f"{LIBRARIES}/libcublas.so.12": b"blas"})
    github.releases = {
        "v0.7.0": {"nightly-tag.txt": b"b11457\n"},  # what llama.cpp calls a release
        "b11457": {ARCHIVE: engine, LIBRARIES: libraries, VULKAN: engine},
    }
    root = tmp_path / "home"
    home = Home(Paths(*(root / name for name in ("config", "data", "cache", "state"))), fake_engine)
    yield home
    await home.setup.close()


async def test_download_test_and_use(home: Home, github: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    await home.works()
    assert home.notices == [("GPU engine ready", f"{NAME} passed its test and is now selected.")]
    assert home.left() == ["libcublas.so.12", "libcudart.so.12", "libggml-cuda.so", program_name()]
    assert home.stages == [Stage.SEARCHING, Stage.FETCHING, Stage.UNPACKING, Stage.TESTING]
    assert home.progress[-1] is None
    last = home.progress[-2]
    assert [step.name for step in last.steps][-1] == "Chat memory"
    assert [engine.name for engine in downloaded_engines(home.paths.engines)] == [NAME]
    entries = await home.setup.list_engines()
    assert (entries[0].location.path, entries[0].is_in_use) == (home.program, True)
    fetched = len(github.downloads)
    await home.works()
    assert len(github.downloads) == fetched, "what is here is only tried again"
    await home.setup.install(Backend.VULKAN)
    assert [engine.name for engine in downloaded_engines(home.paths.engines)] == [NAME, "llama.cpp-b11457-vulkan"]
    with pytest.raises(KvchatError, match="No SYCL engine"):
        await home.setup.install(Backend.SYCL)
    asked = len(github.requests)
    monkeypatch.setattr(engine_setup, "detect_graphics", lambda: Graphics("linux", ()))
    with pytest.raises(KvchatError, match="No GPU found"):
        await home.setup.install()
    assert len(github.requests) == asked


async def test_engine_without_gpu_is_kept_for_another_try(home: Home, fake_engine: FakeEngine, github: FakeHub) -> None:
    fake_engine.set(FAKE_EXIT_AT_START="-11:")
    assert "crashed" in (await home.fails()).steps[-1].name
    fake_engine.set(FAKE_EXIT_AT_START=None, FAKE_NO_GPU=1)
    trial = await home.fails()
    assert trial.steps[-1].name == "The engine does not detect the GPU"
    assert "NVIDIA" in trial.steps[-1].detail
    fake_engine.set(FAKE_NO_GPU=None)  # the driver is installed
    github.status = 0
    before = len(github.downloads)
    await home.works()
    assert len(github.downloads) == before


async def refused(home: Home, kind: type[KvchatError]) -> KvchatError:
    """Return the error raised by `get`; nothing may block the next attempt, and the old engine stays in use."""
    with pytest.raises(kind) as caught:
        await home.setup.install()
    assert home.setup.download is None
    assert home.settings.engine_path == "/usr/bin/old"
    assert downloaded_engines(home.paths.engines) == ()
    assert caught.value.detail
    assert caught.value.advice
    return caught.value


async def test_wrong_hash_and_no_network(home: Home, github: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    github.claims[LIBRARIES] = "0" * 64
    error = await refused(home, DownloadFailed)
    assert error.title == "The download is damaged"
    assert "GitHub" in error.detail
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:9")
    assert (await refused(home, Unreachable)).title == "GitHub cannot be reached"
    monkeypatch.setenv("GITHUB_API_URL", github.url)
    github.status = 404
    await refused(home, HubError)
    github.claims.clear()
    github.status = 0
    before = len(github.downloads)
    await home.works()
    assert len(github.downloads) > before


async def test_cancelled_download_resumes(home: Home, github: FakeHub) -> None:
    github.hold_at = 0
    work = asyncio.ensure_future(home.setup.install())
    await asyncio.to_thread(github.held.wait, 240)
    assert await home.setup.install() is None, "one at a time"
    home.setup.cancel_download()
    assert await work is None
    assert home.setup.download is None
    assert home.settings.engine_path == "/usr/bin/old"
    github.hold_at = None
    github.go_on.set()
    await home.works()


async def test_full_disk(home: Home, github: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        assert "Not enough disk space" in (await refused(home, KvchatError)).title
    assert github.downloads == [], "before a byte is fetched"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(engine_setup, "unpack", full)
        assert (await refused(home, KvchatError)).title == "The disk is full"
    assert home.left() == sorted((ARCHIVE, LIBRARIES))
    before = len(github.downloads)
    await home.works()
    assert len(github.downloads) == before


async def test_unsafe_archive(home: Home, github: FakeHub) -> None:
    github.releases["b11457"][ARCHIVE] = tarred({f"llama-b11457/{program_name()}": b"", "../../../outside": b"x"})
    assert "invalid name" in (await refused(home, KvchatError)).detail
    assert home.left() == []
    github.releases["b11457"][ARCHIVE] = tarred({"llama-b11457/README": b""})
    assert "does not contain llama-server" in (await refused(home, KvchatError)).detail


async def test_old_partial_download_is_deleted_and_engine_removed(home: Home) -> None:
    old = home.paths.engines / ".downloads" / "ggml-org" / "llama.cpp" / "llama-b1-bin-ubuntu-cuda-12.8-x64.tar.gz.part"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"1")
    await home.works()
    assert not old.exists()
    await home.setup.remove(NAME)
    assert home.settings.engine_path is None
    assert home.left() == []
    with pytest.raises(KvchatError, match="No downloaded engine is named"):
        await home.setup.remove(NAME)
    for name in ("..", ".", "", "../data", ".downloads"):
        with pytest.raises(KvchatError, match="No downloaded engine"):
            await home.setup.remove(name)


@pytest.mark.skipif(sys.platform != "linux", reason="ldd is Linux's")
async def test_missing_library_is_named(
    home: Home, github: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    github.releases["b11457"][ARCHIVE] = tarred({f"llama-b11457/{program_name()}": b"#!/bin/sh\nexit 127\n"})
    ldd = tmp_path / "bin" / "ldd"
    ldd.parent.mkdir()
    ldd.write_text("#!/bin/sh\necho '\tlibssl.so.3 => not found'\n")
    ldd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ldd.parent}{os.pathsep}{os.environ['PATH']}")
    step = (await home.fails()).steps[-1]
    assert step.name == "The engine cannot run on this computer"
    assert step.detail == "It is missing libssl.so.3. These libraries are part of OpenSSL (Debian: libssl3)."


@pytest.mark.engine
async def test_real_llama_server_in_an_archive(
    home: Home, github: FakeHub, real_llama_server: EngineLocation, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive includes all files next to the program. The trial detects that the build is CPU-only."""
    program = real_llama_server.path.resolve()
    files_there = list(program.parent.iterdir())
    links = {f"llama-b11457/{path.name}": str(path.readlink()) for path in files_there if path.is_symlink()}
    files = {f"llama-b11457/{path.name}": path.read_bytes() for path in files_there if not path.is_symlink()}
    github.releases = {"b11457": {VULKAN: tarred(files, links)}}
    home.settings = Settings(engine_path="/usr/bin/old", model_path=str(smollm2))
    step = (await home.fails(Backend.VULKAN)).steps[-1]
    assert step.name == "The engine does not detect the GPU"
    assert "Vulkan" in step.detail
    on_cpu = partial(engine_setup.try_engine, needs=None)  # as if the processor were enough
    monkeypatch.setattr(engine_setup, "try_engine", lambda *arguments, needs: on_cpu(*arguments))
    trial = await home.setup.install(Backend.VULKAN)
    assert trial.works, trial.steps[-1]
    assert trial.steps[-1].name == "Chat memory"
    assert home.settings.engine_path == str(home.paths.engines / "llama.cpp-b11457-vulkan" / program_name())


async def test_settings_are_checked_and_the_key_is_kept_apart(home: Home, fake_engine: FakeEngine) -> None:
    setup, home.settings = home.setup, replace(home.settings, engine_path=str(fake_engine.path))
    for name, text, reason in (
        ("engine_arguments", "--threads 2", ""),
        ("engine_arguments", "--nope", "does not support the option --nope"),
        ("rpc_workers", "den", '"den" is not a valid name and port'),
        ("engine_url", "http://127.0.0.1:8080", ""),
        ("engine_url", "127.0.0.1", "start with http://"),
    ):
        error = await setup.validation_error(name, text)
        assert (reason in error, bool(error)) == (True, bool(reason))
    assert await setup.save_key("s3cret") is not None
    assert setup.key_store.load()[0] == "s3cret"
    assert "s3cret" not in json.dumps(vars(home.settings))
    assert await setup.save_key("") is None
    assert setup.key_store.load() is None
    trial = await setup.test_engine(fake_engine.location, lambda step: None)
    assert trial.works
    assert str(fake_engine.plan.model) in fake_engine.launches()[0]["arguments"]
    home.settings = replace(home.settings, model_path=None)
    await setup.test_engine(fake_engine.location, lambda step: None)
    assert len(fake_engine.launches()) == 1, "without a model it only asks the engine"
