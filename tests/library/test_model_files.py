"""Search for models in folders with the layouts of other programs."""

import json
import os
from pathlib import Path
from threading import Event

import pytest

from kvchat.library.model_files import (
    ModelFolder,
    Source,
    match_projector,
    model_folders,
    name_from_path,
    ollama_name,
)
from kvchat.library.model_library import FoundModel, UnreadableFolder, find_models
from tests.library.gguf_files import write_gguf
from tests.systems import needs_links


def find(*folders: ModelFolder | Path) -> list[FoundModel]:
    models, unreadable = search(*folders)
    assert not unreadable
    return models


def search(*folders: ModelFolder | Path) -> tuple[list[FoundModel], list[UnreadableFolder]]:
    places = [f if isinstance(f, ModelFolder) else ModelFolder(Source.CHOSEN, f) for f in folders]
    unreadable: list[UnreadableFolder] = []
    return list(find_models(places, Event(), unreadable)), unreadable


def model_in(folder: Path, name: str = "Llama-3.2-3B-Q4_K_M.gguf", **more: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_gguf(folder / name, **more)  # type: ignore[arg-type]


def projector_in(folder: Path, name: str) -> Path:
    return model_in(folder, name, fields={}, architecture="clip", general={"general.type": "mmproj"})


def split_in(folder: Path, stem: str, count: int) -> list[Path]:
    return [
        model_in(folder, f"{stem}-{number:05}-of-{count:05}.gguf", general={"split.count": count})
        for number in range(1, count + 1)
    ]


def ollama_model(folder: Path, place: str, model: Path, projector: Path | None = None) -> Path:
    """Store a model the way Ollama does; return its blob."""
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    layers = [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00", "size": 1}]
    blobs = []
    for kind, file in (("model", model), ("projector", projector)):
        if file is not None:
            digest = f"{abs(hash(str(file))):064x}"
            blobs.append(file.rename(folder / "blobs" / f"sha256-{digest}"))
            layer = {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}", "size": 1}
            layers.append(layer)
    manifest = folder / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blobs[0]


def test_unreadable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked, scandir = tmp_path / "locked", os.scandir
    locked.mkdir()

    def refused(path: str | int) -> object:
        if str(path) == str(locked):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)  # the mode alone would not keep root out
    nowhere = tmp_path / "nowhere"
    models, unreadable = search(tmp_path, nowhere, ModelFolder(Source.OLLAMA, nowhere))
    assert (models, unreadable) == ([], [UnreadableFolder(locked, "Permission denied")])


@pytest.mark.parametrize("missing", [0, 1])
def test_split_model_is_listed_once_even_without_a_part(tmp_path: Path, missing: int) -> None:
    parts = split_in(tmp_path, "Big-Q8_0", 3)
    (found,) = find(tmp_path)
    assert (found.path, found.name) == (parts[0], "Big-Q8_0")
    assert found.size == sum(part.stat().st_size for part in parts)
    assert found.facts is not None
    assert found.facts.parts == tuple(parts)
    parts[missing].unlink()
    (found,) = find(tmp_path)
    assert found.facts is None
    assert found.path == parts[0]
    assert found.problem is not None
    assert parts[missing].name in found.problem.detail
    assert found.size == 2 * parts[2].stat().st_size


@needs_links
def test_links_are_listed_once_and_broken_files_with_the_reason(tmp_path: Path) -> None:
    path = model_in(tmp_path / "a")
    os.link(path, tmp_path / "a" / "hard.gguf")
    (tmp_path / "a" / "soft.gguf").symlink_to(path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert len(find(tmp_path, tmp_path / "a", tmp_path / "b")) == 1
    whole = model_in(tmp_path, "cut.gguf")
    os.truncate(whole, whole.stat().st_size - 1000)
    (tmp_path / "page.gguf").write_text("<html>Not found</html>")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "gone")
    titles = {model.name: model.problem.title for model in find(tmp_path) if model.problem}
    assert titles == {
        "cut": "The model file is incomplete",
        "page": "This is not a GGUF model",
        "dangling": "The model file is missing",
    }


@needs_links
def test_hugging_face_snapshot_of_main_comes_first(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--Thing-GGUF"
    (repository / "blobs").mkdir(parents=True)
    for number, revision in enumerate(("aaaaaaa", "bbbbbbb", "ccccccc")):
        folder = repository / "snapshots" / revision
        folder.mkdir(parents=True)
        if revision != "ccccccc":  # two revisions with other bytes, and one with the bytes of the second
            model_in(repository / "blobs", "x.gguf", weights=1000 + number).rename(repository / "blobs" / revision)
        (folder / "model-Q4_0.gguf").symlink_to(f"../../blobs/{min(revision, 'bbbbbbb')}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("ccccccc")
    found = find(ModelFolder(Source.HUGGING_FACE, tmp_path))
    assert [model.path.parent.name for model in found] == ["ccccccc", "aaaaaaa"]
    assert {model.name for model in found} == {"org/Thing-GGUF"}
    assert all(model.facts for model in found)


def test_ollama_blobs_have_ollama_names(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    blob = ollama_model(folder, "registry.ollama.ai/library/llama3.2/3b", model_in(tmp_path))
    ollama_model(folder, "registry.ollama.ai/me/tuned/latest", model_in(tmp_path, "b.gguf"))
    sight = projector_in(tmp_path, "p.gguf")
    ollama_model(folder, "hf.co/org/Eyes-GGUF/Q4_0", model_in(tmp_path, "c.gguf"), sight)
    broken = folder / "manifests" / "registry.ollama.ai" / "library" / "broken"
    broken.mkdir()
    (broken / "1b").write_text("{")
    (folder / "manifests" / ".DS_Store").write_text("")
    before = sorted(folder.rglob("*"))
    found = {model.name: model for model in find(ModelFolder(Source.OLLAMA, folder))}
    assert set(found) == {"llama3.2:3b", "me/tuned:latest", "hf.co/org/Eyes-GGUF:Q4_0"}
    assert found["llama3.2:3b"].path == blob
    assert all(model.facts for model in found.values())
    assert found["hf.co/org/Eyes-GGUF:Q4_0"].projector is not None
    assert sorted(folder.rglob("*")) == before
    assert ollama_name(blob) == "llama3.2:3b"
    assert ollama_name(tmp_path / "b.gguf") is None
    blob.unlink()
    assert [m.name for m in find(ModelFolder(Source.OLLAMA, folder)) if m.problem] == ["llama3.2:3b"]


def test_projector_belongs_to_its_model(tmp_path: Path) -> None:
    for name in ("gemma-3-4b-it-Q4_K_M.gguf", "gemma-3-4b-it-Q8_0.gguf"):
        model_in(tmp_path / "gemma", name)
    both = [projector_in(tmp_path / "gemma", f"mmproj-{kind}.gguf") for kind in ("BF16", "F16")]
    alone = projector_in(tmp_path / "alone", "mmproj-model-f16.gguf")
    found = find(tmp_path)
    assert [model.projector for model in found if model.facts] == [both[1]] * 2
    (lonely,) = [model for model in found if model.facts is None]
    assert lonely.path == alone
    assert lonely.problem is not None
    assert "image" in lonely.problem.title


def test_projector_for() -> None:
    llama, qwen, qwen_sight = "Llama-3-8B.gguf", "Qwen2.5-VL-7B-Q4_K_M.gguf", "mmproj-Qwen2.5-VL-7B-f16.gguf"
    assert match_projector(qwen, [qwen, llama], [qwen_sight]) == qwen_sight
    assert match_projector(llama, [qwen, llama], [qwen_sight]) is None
    assert match_projector(llama, [qwen, llama], ["mmproj-F16.gguf"]) is None
    assert match_projector("Qwen2.5-VL-72B-Q4_0.gguf", ["Qwen2.5-VL-72B-Q4_0.gguf"], [qwen_sight]) is None


def test_name_from_path() -> None:
    assert name_from_path(Path("/m/Foo.Q4_1.gguf")) == "Foo.Q4_1"
    assert name_from_path(Path("/m/Foo-Q8_0-00001-of-00002.gguf")) == "Foo-Q8_0"
    assert name_from_path(Path("/Jan/models/janhq/Jan-v1-4B/model.gguf")) == "Jan-v1-4B"
    assert name_from_path(Path("/hub/models--a--b/snapshots/abcdef0/ggml-model-q4_0.gguf")) == "a/b"


def places(home: Path, source: Source, platform: str = "linux", **environment: str) -> list[str]:
    """Return one program's model folders, relative to the home folder if below it."""
    found = model_folders(home / "own", [], environment, home, platform)
    paths = [folder.path for folder in found if folder.source is source]
    return [path.relative_to(home).as_posix() if path.is_relative_to(home) else path.as_posix() for path in paths]


def test_model_folders_of_other_programs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert places(home, Source.HUGGING_FACE) == [".cache/huggingface/hub"]
    assert places(home, Source.HUGGING_FACE, HF_HOME="/big/hf")[0] == "/big/hf/hub"
    assert places(home, Source.HUGGING_FACE, HF_HUB_CACHE="~/hub", HF_HOME="/big/hf")[:2] == ["hub", "/big/hf/hub"]
    assert places(home, Source.LLAMA_CPP, LLAMA_CACHE="/big/llama")[0] == "/big/llama"
    assert places(home, Source.LLAMA_CPP, "darwin") == ["Library/Caches/llama.cpp"]
    assert places(home, Source.LLAMA_CPP, "win32", LOCALAPPDATA="/local") == ["/local/llama.cpp"]
    assert places(home, Source.OLLAMA, OLLAMA_MODELS="/big/ollama")[:2] == ["/big/ollama", ".ollama/models"]
    assert "/usr/share/ollama/.ollama/models" in places(home, Source.OLLAMA)
    assert places(home, Source.OLLAMA, "darwin") == [".ollama/models"]
    assert {"jan/models", ".local/share/Jan/data/llamacpp/models"} <= set(places(home, Source.JAN))
    assert "Library/Application Support/Jan/data/models" in places(home, Source.JAN, "darwin")
    assert places(home, Source.LM_STUDIO) == [".lmstudio/models", ".cache/lm-studio/models"]
    (home / ".lmstudio").mkdir(parents=True)
    (home / ".lmstudio" / "settings.json").write_text('{"downloadsFolder": "/big/models"}')
    assert places(home, Source.LM_STUDIO)[0] == "/big/models"
    (home / ".lmstudio-home-pointer").write_bytes("/elsewhere\r\n".encode("utf-8-sig"))
    assert places(home, Source.LM_STUDIO)[0] == "/elsewhere/models"
    (home / ".lmstudio" / "settings.json").write_text("[]")
    assert "/big/models" not in places(home, Source.LM_STUDIO)
