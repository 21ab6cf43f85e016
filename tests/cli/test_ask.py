"""`kvchat ask` in its own process, with the fake engine."""

import json
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

from kvchat.chat.turn.tool_calls import DENIED_RESULT
from kvchat.engine.process.plan import free_port
from kvchat.engine_host.engines import server_key
from kvchat.kvstore.savepoint import Bounds
from kvchat.kvstore.store import UNAVAILABLE_TITLE, BlockStore
from kvchat.system.paths import resolve_paths
from tests.e2e.home import Home
from tests.library.gguf_files import LLAMA, write_gguf
from tests.systems import not_on_windows
from tests.users_server import KEY, UsersServer

LONG_REPLY = "word " * 400


def run_ask(
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


@not_on_windows("uses POSIX pipes")
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_the_reply_is_kept_if_the_reader_of_the_output_leaves(home, fake_engine, as_json):
    fake_engine.set(FAKE_REPLY=LONG_REPLY, FAKE_TOKEN_DELAY=0.002)
    with subprocess.Popen(
        [sys.executable, "-m", "kvchat", "ask", "--new", *(["--json"] if as_json else []), "Tell me a long story"],
        env=os.environ | {"KVCHAT_HOME": str(home.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        if not as_json:
            assert process.stdout.read(12) == b"word word wo"
        process.stdout.close()
        errors = process.stderr.read().decode()
        assert process.wait() == 141  # 128 + SIGPIPE
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors
    assert [reply["content"].strip() for reply in home.replies()] == [LONG_REPLY.strip()]
    assert home.kept.absorbed() == 1


@pytest.mark.long
def test_a_restart_with_more_context_is_reported(home, fake_engine, tmp_path, engine_settings):
    """The attachment has more tokens than can be estimated before the engine counts them."""
    fake_engine.set(FAKE_NO_GPU=1, FAKE_REPLY="Sevens.")
    large = LLAMA | {"context_length": 65_536, "attention.key_length": 512, "attention.value_length": 512}
    model = write_gguf(tmp_path / "large.gguf", large)
    home.write_settings(**engine_settings | {"context_size": None, "model_path": str(model)})
    (tmp_path / "numbers.txt").write_text("7 " * 8_500)
    done = home.run("ask", "--new", "--attach", str(tmp_path / "numbers.txt"), "What are they?", code=0)
    sizes = [launch["arguments"][launch["arguments"].index("--ctx-size") + 1] for launch in fake_engine.launches()]
    assert sizes == ["16384", "32768"]
    assert "increasing the context length..." in done.stderr.splitlines()


def test_a_document_too_long_for_the_context_is_looked_up_in(home, fake_engine, tmp_path):
    birds = "".join(f"# Bird {number}\n\nBird {number} lives at lake {number}mere.\n\n" for number in range(2000))
    (tmp_path / "birds.md").write_text(birds)
    done = home.run("ask", "--new", "--attach", str(tmp_path / "birds.md"), "Who lives at lake 1234mere?", code=0)
    assert "“birds.md” does not fit in the model's context. kvchat keeps the text" in done.stderr
    (prompt,) = (request["body"] for request in fake_engine.requests() if "chat/completions" in request["path"])
    assert "lake 1234mere.\n" in prompt["messages"][-1]["content"]
    assert len(prompt["messages"][-1]["content"]) < 8_000


@pytest.mark.long
def test_a_server_that_saves_nothing_is_reported(tmp_path, fake_engine):
    home = Home(tmp_path / "home")
    server = UsersServer(fake_engine.path, fake_engine.plan, saves=False)
    try:
        home.write_settings(engine_url=server.address.url)
        server_key(resolve_paths({"KVCHAT_HOME": str(home.folder)})).save(KEY)
        done = home.run("ask", "--new", "Hello", code=0)
        assert "reprocesses chats instead" in done.stderr
    finally:
        server.close()


@pytest.mark.slow
def test_a_missing_server_is_reported_and_given_up(tmp_path):
    home = Home(tmp_path / "home")
    home.write_settings(engine_url=f"http://127.0.0.1:{free_port('127.0.0.1')}")
    done = home.run("ask", "--new", "Hello", code=1)
    assert "Trying again" in done.stderr
    home.write_settings(engine_url="http://127.0.0.1:80808")
    done = home.run("ask", "--new", "Hello")
    assert "65535" in done.stderr


def test_an_option_overrides_only_its_own_setting(home, fake_engine, engine_settings):
    home.write_settings(**engine_settings, temperature=0.7, max_tokens=5, seed=11)
    home.run("ask", "--new", "--temperature", "0", "Hello", code=0)
    bodies = [request["body"] for request in fake_engine.requests() if "chat/completions" in request["path"]]
    assert [(body["temperature"], body["max_tokens"], body["seed"]) for body in bodies] == [(0, 5, 11)]


def add_newer_version(store: Path) -> None:
    BlockStore(store, Bounds(10**9, 0)).close()
    with closing(sqlite3.connect(store / "index.db")) as db, db:
        db.execute("INSERT INTO migrations VALUES (99, 0)")


@pytest.mark.long
@pytest.mark.parametrize(
    "spoil",
    [
        lambda store: store.write_text("a file"),
        lambda store: (store / "index.db").mkdir(parents=True),
        add_newer_version,
        lambda store: (store.parent.rmdir(), store.parent.write_text("a file")),
    ],
    ids=["file", "index is a folder", "newer version", "parent is a file"],
)
def test_an_unusable_save_points_folder_costs_no_reply(home, fake_engine, spoil):
    store = resolve_paths({"KVCHAT_HOME": str(home.folder)}).save_points
    store.parent.mkdir(parents=True)
    spoil(store)
    for question in ("One", "Two"):
        done = home.run("ask", question)
        assert (done.returncode, done.stdout.strip()) == (0, f"You said: {question}")
        assert done.stderr.lower().count(UNAVAILABLE_TITLE.lower()) <= 2, done.stderr  # also in the receipt
        assert done.stderr.count(UNAVAILABLE_TITLE) == 1
        assert "Traceback" not in done.stderr
    doctor = home.run("doctor")
    assert (doctor.returncode, doctor.stderr) == (1, "")
    assert UNAVAILABLE_TITLE in doctor.stdout
    # It is used again once that is possible.
    if store.is_dir():
        shutil.rmtree(store)
    else:
        (store if store.is_file() else store.parent).unlink()
    assert home.run("ask", "Three").returncode == 0
    assert home.kept.absorbed() == 1


@not_on_windows("passes bytes on the command line")
@pytest.mark.parametrize(
    "locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["utf8", "C"]
)
def test_invalid_utf_8_and_a_terminal_without_unicode_are_handled(home, fake_engine, locale):
    fake_engine.set(FAKE_REPLY="Füß 🌳")
    attached = os.fsencode(home.folder) + b"/n\xe9.txt"
    with open(attached, "w") as file:  # noqa: PTH123
        file.write("An oak.")
    done = run_ask(home, "--attach", attached, b"caf\xe9 \xc3\xa9", environment=locale, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().strip() == ("F?? ?" if locale else "Füß 🌳")
    assert [reply["content"] for reply in home.replies()] == ["Füß 🌳"]
    body = next(request["body"] for request in fake_engine.requests() if "chat/completions" in request["path"])
    question = str(body["messages"])
    assert "caf\ufffd é" in question
    assert "n\ufffd.txt" in question


@not_on_windows("uses POSIX terminals")
@pytest.mark.long
def test_control_characters_of_a_reply_do_not_reach_the_terminal(home, fake_engine):
    reply = "Red: \x1b[31m\x1b]0;title\x07 and \U000e0041 that is all."
    fake_engine.set(FAKE_REPLY=reply)
    ours, theirs = os.openpty()
    done = run_ask(home, "Hello", stdout=theirs)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "␛[31m␛]0;title␇ and  that is all." in shown
    assert "\x1b" not in shown
    assert [message["content"] for message in home.replies()] == [reply]


@pytest.mark.long
def test_a_chat_with_tools_calls_them(home, fake_engine):
    fake_engine.set(FAKE_CALLS='[[{"name": "date_and_time", "arguments": "{}"}]]', FAKE_REPLY="Later than you think.")
    done = home.run("ask", "--tools", "kvchat", "What time is it?", code=0)
    assert done.stdout.count("Later than you think.") == 2  # before the call and after it
    assert "calling kvchat/date_and_time {}" in done.stderr.splitlines()
    unknown = home.run("ask", "--new", "--tools", "kvchat/nothing", "What time is it?")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "There is no tool “nothing” in “kvchat”\n  Tools: " in unknown.stderr
    refused = home.run("ask", "--tools", "kvchat", "--chat", "1", "And now?", code=1)
    assert "--tools works only with new chats" in refused.stderr


@pytest.mark.long
@pytest.mark.slow
def test_a_chat_calls_the_tools_of_an_approved_server(home, fake_engine, tmp_path):
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "garden.txt").write_text("beans")
    launch = [sys.executable, "-m", "mcp_server_git", "--repository", str(repository)]
    (home.folder / "config" / "mcp.json").write_text(
        json.dumps({"mcpServers": {"git": {"command": launch[0], "args": launch[1:]}}})
    )

    def results(tool: str, *options: str, **arguments: object) -> list[str]:
        call = {"name": tool, "arguments": json.dumps({"repo_path": str(repository), **arguments})}
        fake_engine.set(FAKE_CALLS=json.dumps([[call]]), FAKE_REPLY="All is planted.")
        before = len(home.messages())
        home.run("ask", "--new", "--tools", "git", *options, "What is new?", timeout=600, code=0)
        return [message["content"] for message in home.messages()[before:] if message["role"] == "tool"]

    refused = home.run("ask", "--tools", "git", "--allow-tools", "What is new?", code=1)
    assert "kvchat tools approve git" in refused.stderr
    assert home.run("tools", "approve", "git", timeout=600).returncode == 0
    (status,) = results("git_status")  # it only reads
    assert "garden.txt" in status
    assert results("git_add", files=["garden.txt"]) == [f"{DENIED_RESULT} Nobody can be asked."]
    assert not (repository / ".git" / "index").exists()
    assert results("git_add", "--allow-tools", files=["garden.txt"]) == ["Files staged successfully"]
