"""`kvchat models` with a fake Hugging Face."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.__main__ import main
from kvchat.cli.models import select_file
from kvchat.errors import KvchatError
from kvchat.library.memory.demand import DeviceMemory, MemoryFacts
from kvchat.library.remote.hub import HubFile, HubPart, HubRepository
from kvchat.library.remote.starter import SUGGESTIONS, tier_for
from kvchat.settings import Settings, load_settings, save_settings
from kvchat.system.paths import Paths
from tests.library import fake_hub
from tests.library.fake_hub import REVISION, TOKEN, FakeHub
from tests.library.gguf_files import write_gguf

REPOSITORY = "org/Thing-7B-GGUF"


@pytest.fixture(autouse=True)
def user_home(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the home folder of a user without models of other programs."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "HF_TOKEN", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    return tmp_path / "user"


@pytest.fixture
def hub(user_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    model = write_gguf(user_home / "thing.gguf").read_bytes()
    with fake_hub.serving() as hub:
        hub.repositories[REPOSITORY] = {f"Thing-7B-{kind}.gguf": model for kind in ("Q4_K_M", "Q8_0")}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield hub


def test_models_on_this_machine_are_listed(user_home, tmp_path, run_json, run):
    studio = user_home / ".lmstudio" / "models" / "org" / "Thing"
    studio.mkdir(parents=True)
    write_gguf(studio / "Thing-F32.gguf")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "half.gguf").write_bytes(b"GGUF")
    thing, half = run_json("models", "--folder", str(tmp_path / "mine"))["models"]
    assert (thing["name"], thing["source"], thing["verdict"]) == ("Thing-F32", "LM Studio", "fits")
    assert (thing["trained_context"], thing["quantisation"]) == (4096, "F32")
    assert half["problem"].startswith("The model file is incomplete")
    text = run("models", "--folder", str(tmp_path / "mine")).out
    assert "Thing-F32  F32" in text
    assert "half: The model file is incomplete." in text


@pytest.mark.parametrize(("free", "tier"), [(0, 0), (6.0, 0), (7.2, 8), (11.5, 12), (15.6, 16), (23.5, 24), (80, 24)])
def test_suggestions_suit_the_gpu(free, tier):
    devices = (DeviceMemory("GPU", int(free * 10**9)),) if free else ()
    assert tier_for(MemoryFacts(16 * 10**9, devices=devices)) == tier
    for suggestion in SUGGESTIONS:
        assert suggestion.reason.endswith(".")
        assert suggestion.size < (suggestion.memory_gb or 32) * 10**9


def test_a_model_is_searched_listed_and_downloaded(hub, paths, run_json, run):
    answer = run_json("models", "suggest")
    assert set(answer["suggestions"][0]) == {"memory_gb", "repository", "quantisation", "size", "why"}
    assert {suggestion["memory_gb"] for suggestion in answer["suggestions"]} == {answer["memory_gb"]}
    assert hub.requests == [], "suggestions need no network"
    (hit,) = run_json("models", "search", "thing")["models"]
    assert hit["repository"] == REPOSITORY
    assert set(hit) == {"repository", "downloads", "likes", "updated", "gated"}
    files = run_json("models", "files", f"https://huggingface.co/{REPOSITORY}")["files"]
    assert {(file["quantisation"], file["verdict"]) for file in files} == {("Q4_K_M", "fits"), ("Q8_0", "fits")}
    assert set(files[0]) == {"name", "quantisation", "size", "parts", "verdict"}
    assert set(files[0]["parts"][0]) == {"path", "size", "sha256"}
    for arguments in (["search", "thing"], ["files", REPOSITORY]):
        assert "Thing-7B" in run("models", *arguments).out
    path = paths.models / REPOSITORY / "Thing-7B-Q8_0.gguf"
    assert run("models", "get", f"{REPOSITORY}:q8_0", "--use").out == f"{path}\n"
    assert load_settings(paths.settings_file).model_path == str(path)
    assert [model["source"] for model in run_json("models")["models"]] == ["kvchat"]
    assert "unheard of" in run("models", "search", "unheard", "of").out


def test_a_token_is_read_from_standard_input_and_used(hub, paths, capsys, monkeypatch, catalogues):
    save_settings(paths.ensure().settings_file, Settings(language="de"))
    hub.gated.add(REPOSITORY)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{TOKEN}\n"))
    assert main(["models", "token"]) == 0
    assert main(["models", "get", REPOSITORY]) == 0
    assert main(["models", "token", "--forget"]) == 0
    printed = capsys.readouterr()
    assert "Gespeichert in einer Datei, die nur du lesen kannst" in printed.out
    assert TOKEN not in printed.out + printed.err


def repository(*kinds: str) -> HubRepository:
    files = (HubFile(f"Thing-{kind}", kind, (HubPart(f"Thing-{kind}.gguf", 1, "0"),)) for kind in kinds)
    return HubRepository(REPOSITORY, REVISION, False, tuple(files))


def test_a_file_is_selected_by_quantisation_or_name():
    assert select_file(repository("Q4_K_M", "Q8_0"), "").quantisation == "Q4_K_M"
    assert select_file(repository("Q8_0"), "").quantisation == "Q8_0"
    for name in ("q8_0", "Thing-Q8_0"):
        assert select_file(repository("Q4_K_M", "Q8_0"), name).quantisation == "Q8_0"
    with pytest.raises(KvchatError, match="no such file") as caught:
        select_file(repository("Q4_K_M", "Q8_0"), "Q2_K")
    assert "Q4_K_M, Q8_0" in caught.value.detail
    with pytest.raises(KvchatError, match="No file"):
        select_file(repository("Q5_0", "Q8_0"), "")


def test_a_local_model_is_chosen_by_part_of_its_name_or_its_path(paths, tmp_path, run_json, run):
    models = paths.models
    models.mkdir(parents=True)
    big, small, elsewhere = models / "Heron-7B-Q4_K_M.gguf", models / "Heron-1B-Q8_0.gguf", tmp_path / "stork.gguf"
    for path in (big, small, elsewhere):
        write_gguf(path)
    for name, path in (("heron-7b", big), ("HERON-1B", small), (str(elsewhere), elsewhere)):
        assert run_json("models", "use", name) == {"model_path": str(path)}
        assert load_settings(paths.settings_file).model_path == str(path)
    assert "Available: Heron-1B-Q8_0, Heron-7B-Q4_K_M" in run("models", "use", "heron", code=1).err
    assert main(["models", "use", "pelican"]) == 1
    assert load_settings(paths.settings_file).model_path == str(elsewhere)


def test_listing_models_uses_no_network():
    """Importing an HTTP client would be a sign of it."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kvchat", "models"], capture_output=True, text=True, check=True
    )
    assert "0 models" in ended.stdout
    assert "kvchat models suggest" in ended.stdout
    assert "huggingface_hub" not in ended.stderr
    assert "httpx2" not in ended.stderr
