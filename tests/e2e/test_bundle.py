"""The downloadable bundle: built, it chats and quits without anything else; then on a bare system."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from office_oxide import create_from_markdown

from kvchat.engine.process.plan import free_port
from kvchat.library.remote.starter import starter_path
from kvchat.system.paths import resolve_paths
from tests.e2e import bare_system
from tests.e2e.desktop import Desktop
from tests.e2e.home import Home
from tests.e2e.serving import serving
from tests.e2e.window import left_behind, open_window

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the bundle."""
    dist = tmp_path_factory.mktemp("dist")
    build = [ROOT / "packaging" / "build-bundle", "--python", sys.executable, "--dist", dist]
    subprocess.run(build, check=True, timeout=400, stdin=subprocess.DEVNULL)
    return dist / "kvchat" / "kvchat"


def test_the_bundle_works_without_python(program, tmp_path, smollm2):
    check_doctor(program, with_starter(tmp_path / "one", smollm2))
    check_ask(program, with_starter(tmp_path / "two", smollm2))
    check_serve(program, with_starter(tmp_path / "three", smollm2), smollm2)
    check_window(program, with_starter(tmp_path / "four", smollm2))


def with_starter(folder: Path, smollm2: Path) -> Home:
    home = Home(folder)
    models = resolve_paths({"KVCHAT_HOME": str(home.folder)}).models
    models.mkdir(parents=True)
    starter_path(models).symlink_to(smollm2)
    return home


def run_without_python(program: Path, *arguments: str, home: Home) -> str:
    """Run the bundle without anything in its environment that could provide a Python."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home.folder), "KVCHAT_HOME": str(home.folder)}
    done = subprocess.run(
        [program, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_doctor(program: Path, home: Home) -> None:
    found = json.loads(run_without_python(program, "doctor", "--json", home=home))
    assert found["engine"]["found"] is True
    devices = run_without_python(program, "--embedded-engine", "--devices", home=home)
    assert [device["name"] for device in json.loads(devices)]


def check_ask(program: Path, home: Home) -> None:
    ask = ("ask", "--starter", "--json", "--max-tokens", "8", "--temperature", "0")
    first = json.loads(run_without_python(program, *ask, "--new", "Name a fruit.", home=home))
    letter = home.folder / "letter.docx"
    create_from_markdown("# Fruit\n\nPears and plums.\n", "docx", letter)
    second = json.loads(run_without_python(program, *ask, "--attach", str(letter), "And another one.", home=home))
    assert second["chat_id"] == first["chat_id"]
    assert second["receipt"]["source"] == "disk"
    assert second["receipt"]["cached_tokens"] > 0
    assert not left_behind(home)


def check_serve(program: Path, home: Home, smollm2: Path) -> None:
    with serving(home, "--model", str(smollm2), port=free_port("127.0.0.1"), program=[program]) as at:
        asked = {"messages": [{"role": "user", "content": "Name a fruit."}], "max_tokens": 8}
        answer = httpx2.post(f"{at.url}/v1/chat/completions", json=asked, timeout=120)
        assert answer.json()["choices"][0]["message"]["content"]
        assert at.end() == 0
    assert not left_behind(home)


def check_window(program: Path, home: Home) -> None:
    with Desktop() as desktop, open_window(desktop, home, program, "--starter") as window:
        assert window.exchange("Say hello in one short sentence.")
        desktop.screenshot().save(Path(os.environ.get("KVCHAT_TEST_PICTURES", home.folder)) / "bundle.png")
        window.quit()


def test_the_package_works_on_a_bare_system(program, tmp_path):
    if why_not := bare_system.why_not():
        pytest.skip(why_not)
    dist = program.parents[1]
    build = [ROOT / "packaging" / "build-packages", "--quick", "--python", sys.executable, "--dist", dist]
    subprocess.run(build, check=True, timeout=300, stdin=subprocess.DEVNULL)
    (package,) = dist.glob("*.deb")
    system = bare_system.BareSystem(tmp_path / "root")
    bare = system.files()
    assert not [
        name for name in bare if name.startswith(("usr/bin/python", "usr/bin/gcc", "usr/bin/cc", "usr/bin/c++"))
    ]
    system.run("apt-get", "install", "-y", "--no-install-recommends", package)
    assert system.run("kvchat", "--version").startswith("kvchat ")
    home = Home(tmp_path / "home")
    home.write_settings()
    (system.root / "etc" / "resolv.conf").unlink(missing_ok=True)  # no network from here on
    command = system.command("kvchat", "--starter")
    with Desktop() as desktop:
        with open_window(desktop, home, *command) as window:
            assert window.exchange("Name three fruits, and say one sentence on each.")
            window.wait_for_saves(1)
            window.quit()
        with open_window(desktop, home, *command) as window:
            window.open_conversation("Name three fruits")
            window.wait_for_strip("loaded")
            window.send("And three trees?")
            receipt = window.replies(2)[-1]["receipt"]
            assert (receipt["source"], receipt["cached_tokens"] > 0) == ("disk", True)
            desktop.screenshot().save(Path(os.environ.get("KVCHAT_TEST_PICTURES", home.folder)) / "bare.png")
            window.quit()
    installed = system.files()
    system.run("apt-get", "purge", "-y", "--autoremove", "kvchat")
    others = {"usr/share/bash-completion/completions/kvchat", "usr/lib/systemd/user/kvchat.service"}
    assert {"usr/bin/kvchat"} | others <= installed
    assert {name for name in system.files() - bare if not name.startswith("root/")} == set()
    assert home.replies()
