"""A model download from a fake Hugging Face, killed halfway, continued, and used."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.home import Home
from tests.e2e.waiting import wait_until
from tests.library import fake_hub
from tests.library.fake_hub import FakeHub

pytestmark = pytest.mark.e2e
REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF"
FILE = "SmolLM2-135M-Instruct-Q4_1.gguf"


@pytest.fixture
def hub(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub.serving() as hub:
        hub.repositories[REPOSITORY] = {FILE: smollm2.read_bytes()}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield hub


def test_a_killed_download_is_continued_and_the_model_used(hub, tmp_path, smollm2):
    home = Home(tmp_path / "home")
    whole = smollm2.stat().st_size
    path = home.folder / "data" / "models" / REPOSITORY / FILE
    partial = path.with_name(FILE + ".part")
    hub.hold_at = whole // 2
    get = ("models", "get", f"{REPOSITORY}:Q4_1", "--use")
    first = subprocess.Popen([sys.executable, "-m", "kvchat", *get], env=os.environ | {"KVCHAT_HOME": str(home.folder)})
    try:
        assert hub.held.wait(240)
        wait_until(lambda: partial.exists() and partial.stat().st_size > whole // 3, what="a third of the file")
    finally:
        first.kill()
        first.wait()
    arrived = partial.stat().st_size
    assert whole // 3 < arrived < whole
    hub.hold_at = None
    hub.go_on.set()
    again = home.run(*get)
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"{path}\n"
    assert hub.downloads[-1].headers["range"] == f"bytes={arrived}-"
    assert "SmolLM2-135M-Instruct" in home.run("models").stdout
    assert home.ask("--new", "Name a fruit.")["reply"]
