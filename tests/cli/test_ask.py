"""`kvchat ask` in a process of its own, on the fake engine."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import pytest

from kvchat.engine.process.plan import free_port
from kvchat.engine_host.engines import server_key
from kvchat.kvstore.savepoint import Bounds
from kvchat.kvstore.store import TITLE, BlockStore
from kvchat.system.paths import resolve_paths
from tests.e2e.home import Home
from tests.library.gguf_files import LLAMA, write_gguf
from tests.users_server import KEY, UsersServer

LONG_REPLY = "word " * 400


@pytest.fixture
def chosen(fake_engine, smollm2):
    settings = {"context_size": 8192, "free_floor_bytes": 0}
    return settings | {"model_path": str(smollm2), "engine_path": str(fake_engine.path)}


@pytest.fixture
def home(tmp_path: Path, chosen: dict[str, object]) -> Home:
    home = Home(tmp_path / "home")
    home.write_settings(**chosen)
    return home


def asked(
    home: Home, *arguments: str | bytes, stdout: object, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "kvchat", "ask", "--new", *arguments],
        env={**os.environ, "KVCHAT_HOME": str(home.folder), **environment},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="speaks of pipes as POSIX has them")
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_reader_that_leaves_does_not_cost_the_reply(home, fake_engine, as_json):
    fake_engine.set(FAKE_REPLY=LONG_REPLY, FAKE_TOKEN_DELAY=0.002)
    with subprocess.Popen(
        [sys.executable, "-m", "kvchat", "ask", "--new", *(["--json"] if as_json else []), "Tell me a long story"],
        env=os.environ | {"KVCHAT_HOME": str(home.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as asking:
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
def test_that_the_engine_starts_anew_with_more_room_is_said(home, fake_engine, tmp_path, chosen):
    """A text of more tokens than could be known before an engine counted them."""
    fake_engine.set(FAKE_NO_GPU=1, FAKE_REPLY="Sevens.")
    large = LLAMA | {"context_length": 65_536, "attention.key_length": 512, "attention.value_length": 512}
    model = write_gguf(tmp_path / "large.gguf", large)
    home.write_settings(**chosen | {"context_size": None, "model_path": str(model)})
    (tmp_path / "numbers.txt").write_text("7 " * 8_500)
    done = home.run("ask", "--new", "--attach", str(tmp_path / "numbers.txt"), "What are they?")
    assert done.returncode == 0, done.stderr
    sizes = [launch["arguments"][launch["arguments"].index("--ctx-size") + 1] for launch in fake_engine.launches()]
    assert sizes == ["16384", "32768"]
    assert "increasing the context length..." in done.stderr.splitlines()


@pytest.mark.fake
@pytest.mark.usefixtures("no_keyring")
def test_with_a_server_that_keeps_nothing_it_is_said(tmp_path, fake_engine):
    home = Home(tmp_path / "home")
    theirs = UsersServer(fake_engine.path, fake_engine.plan, saves=False)
    try:
        home.write_settings(engine_url=theirs.address.url)
        server_key(resolve_paths({"KVCHAT_HOME": str(home.folder)})).save(KEY)
        done = home.run("ask", "--new", "Hello")
        assert done.returncode == 0, done.stderr
        assert "reprocesses chats instead" in done.stderr
    finally:
        theirs.end()


@pytest.mark.slow
def test_a_server_that_is_not_there_is_said_at_once_and_soon_given_up(tmp_path):
    home = Home(tmp_path / "home")
    home.write_settings(engine_url=f"http://127.0.0.1:{free_port('127.0.0.1')}")
    done = home.run("ask", "--new", "Hello")
    assert done.returncode == 1
    assert "Trying again" in done.stderr
    home.write_settings(engine_url="http://127.0.0.1:80808")
    done = home.run("ask", "--new", "Hello")
    assert "65535" in done.stderr


def test_an_option_overrides_its_setting_and_no_other(home, fake_engine, chosen):
    home.write_settings(**chosen, temperature=0.7, max_tokens=5, seed=11)
    done = home.run("ask", "--new", "--temperature", "0", "Hello")
    assert done.returncode == 0, done.stderr
    bodies = [request["body"] for request in fake_engine.requests() if "chat/completions" in request["path"]]
    assert [(body["temperature"], body["max_tokens"], body["seed"]) for body in bodies] == [(0, 5, 11)]


def put_a_file_there(store: Path) -> None:
    store.write_text("mine")


def make_its_index_a_folder(store: Path) -> None:
    (store / "index.db").mkdir(parents=True)


def keep_it_with_a_newer_version(store: Path) -> None:
    BlockStore(store, Bounds(10**9, 0)).close()
    with closing(sqlite3.connect(store / "index.db")) as db, db:
        db.execute("INSERT INTO migrations VALUES (99, 0)")


def put_a_file_for_its_parent(store: Path) -> None:
    store.parent.write_text("mine")


@pytest.mark.fake
@pytest.mark.parametrize(
    "spoil", [put_a_file_there, make_its_index_a_folder, keep_it_with_a_newer_version, put_a_file_for_its_parent]
)
def test_a_folder_for_save_points_that_cannot_be_used_costs_no_reply(home, fake_engine, spoil):
    store = resolve_paths({"KVCHAT_HOME": str(home.folder)}).save_points
    if spoil is not put_a_file_for_its_parent:
        store.parent.mkdir(parents=True)
    spoil(store)
    for words in ("One", "Two"):
        done = home.run("ask", words)
        assert (done.returncode, done.stdout.strip()) == (0, f"You said: {words}")
        assert done.stderr.lower().count(TITLE.lower()) <= 2, done.stderr  # and in the receipt
        assert done.stderr.count(TITLE) == 1
        assert "Traceback" not in done.stderr
    doctor = home.run("doctor")
    assert (doctor.returncode, doctor.stderr) == (1, "")
    assert TITLE in doctor.stdout
    # Once it can be used it is.
    if store.is_dir():
        shutil.rmtree(store)
    else:
        (store if store.is_file() else store.parent).unlink()
    assert home.run("ask", "Three").returncode == 0
    assert home.kept.absorbed() == 1


@pytest.mark.skipif(sys.platform == "win32", reason="speaks of bytes on the command line")
@pytest.mark.parametrize(
    "locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["utf8", "C"]
)
def test_words_that_are_no_text_and_a_terminal_that_shows_none_are_no_fault(home, fake_engine, locale):
    fake_engine.set(FAKE_REPLY="Füß 🌳")
    attached = os.fsencode(home.folder) + b"/n\xe9.txt"
    with open(attached, "w") as file:  # noqa: PTH123
        file.write("An oak.")
    done = asked(home, "--attach", attached, b"caf\xe9 \xc3\xa9", environment=locale, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().strip() == ("F?? ?" if locale else "Füß 🌳")
    assert [reply["content"] for reply in home.replies()] == ["Füß 🌳"]
    body = next(request["body"] for request in fake_engine.requests() if "chat/completions" in request["path"])
    question = str(body["messages"])
    assert "caf\ufffd é" in question
    assert "n\ufffd.txt" in question


@pytest.mark.skipif(sys.platform == "win32", reason="speaks of /dev/full")
def test_a_reply_that_cannot_be_told_is_kept_and_the_code_says_so(home, fake_engine):
    fake_engine.set(FAKE_REPLY="Yes.")
    with Path("/dev/full").open("w") as full:
        done = asked(home, "Hello", stdout=full)
    assert done.returncode == 1
    assert b"The output could not be written\n  No space left on device." in done.stderr
    assert [reply["content"] for reply in home.replies()] == ["Yes."]


@pytest.mark.skipif(sys.platform == "win32", reason="speaks of terminals as POSIX has them")
@pytest.mark.fake
def test_a_reply_does_nothing_to_a_terminal(home, fake_engine):
    reply = "Red: \x1b[31m\x1b]0;title\x07 and \U000e0041 that is all."
    fake_engine.set(FAKE_REPLY=reply)
    ours, theirs = os.openpty()
    done = asked(home, "Hello", stdout=theirs)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "␛[31m␛]0;title␇ and  that is all." in shown
    assert "\x1b" not in shown
    assert [one["content"] for one in home.replies()] == [reply]
