"""`kvchat ask` in a process of its own, on the fake engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvchat.engine.invocation import free_port
from kvchat.paths import resolve_paths
from kvchat.rooms.desk import server_key
from tests.e2e.home import Home
from tests.engine_fixtures import FakeEngine
from tests.theirs import KEY, Theirs

LONG_REPLY = "word " * 400


@pytest.fixture
def chosen(fake_engine: FakeEngine, smollm2: Path) -> dict[str, object]:
    """Settings that suit the fake engine."""
    return {
        "model_path": str(smollm2),
        "engine_path": str(fake_engine.path),
        "context_size": 8192,
        "free_floor_bytes": 0,
    }


@pytest.fixture
def home(tmp_path: Path, chosen: dict[str, object]) -> Home:
    home = Home(tmp_path / "home")
    home.write_settings(**chosen)
    return home


@pytest.mark.skipif(sys.platform == "win32", reason="speaks of pipes as POSIX has them")
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_reader_that_leaves_does_not_cost_the_reply(home: Home, fake_engine: FakeEngine, as_json: bool) -> None:
    fake_engine.set(FAKE_REPLY=LONG_REPLY, FAKE_TOKEN_DELAY=0.002)
    with subprocess.Popen(
        [sys.executable, "-m", "kvchat", "ask", "--new", *(["--json"] if as_json else []), "Tell me a long story"],
        env=os.environ | {"KVCHAT_HOME": str(home.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as asking:
        assert asking.stdout is not None
        assert asking.stderr is not None
        if not as_json:
            assert asking.stdout.read(12) == b"word word wo"
        asking.stdout.close()
        said = asking.stderr.read().decode()
        assert asking.wait() == 141  # 128 + SIGPIPE: nobody has heard it all
    assert "Traceback" not in said
    assert "BrokenPipe" not in said
    assert [reply["content"].strip() for reply in home.replies()] == [LONG_REPLY.strip()]
    assert home.kept.absorbed() == 1


@pytest.mark.fake
def test_with_a_server_that_keeps_nothing_it_is_said(tmp_path: Path, fake_engine: FakeEngine) -> None:
    home = Home(tmp_path / "home")
    theirs = Theirs(fake_engine.path, fake_engine.plan, saves=False)
    try:
        home.write_settings(engine_url=theirs.address.url)
        server_key(resolve_paths({"KVCHAT_HOME": str(home.folder)})).save(KEY)
        done = home.run("ask", "--new", "Hello")
        assert done.returncode == 0, done.stderr
        assert "nothing is kept of them" in done.stderr
    finally:
        theirs.end()


@pytest.mark.slow
def test_a_server_that_is_not_there_is_said_at_once_and_soon_given_up(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.write_settings(engine_url=f"http://127.0.0.1:{free_port('127.0.0.1')}")
    done = home.run("ask", "--new", "Hello")
    assert done.returncode == 1
    assert "Trying again" in done.stderr
    home.write_settings(engine_url="http://127.0.0.1:80808")
    done = home.run("ask", "--new", "Hello")
    assert "65535" in done.stderr


def test_an_option_overrides_its_setting_and_no_other(
    home: Home, fake_engine: FakeEngine, chosen: dict[str, object]
) -> None:
    home.write_settings(**chosen, temperature=0.7, max_tokens=5, seed=11)
    done = home.run("ask", "--new", "--temperature", "0", "Hello")
    assert done.returncode == 0, done.stderr
    bodies = [request["body"] for request in fake_engine.requests() if "chat/completions" in request["path"]]
    assert [(body["temperature"], body["max_tokens"], body["seed"]) for body in bodies] == [(0, 5, 11)]
