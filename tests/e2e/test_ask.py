"""`kvchat ask` in its own processes, with real engines and models of every memory kind."""

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.home import Home, engine_arguments, notes
from tests.models import tiny_model
from tests.store_contents import spoil

pytestmark = pytest.mark.e2e

QUESTION = "Which note was the first?"
ENGINES = ("embedded", "llama-server")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("architecture", ["llama", "qwen35", "gemma3"])
def test_a_second_process_continues_where_the_first_ended(home, tmp_path, architecture, engine):
    """The hybrid model needs a save at the turn boundary, the sliding window (llama-server b11434) added older rows."""
    common = ("--model", str(tiny_model(architecture)), *engine_arguments(engine))
    cold = home.ask("--new", *common, notes(250))
    assert cold["receipt"]["source"] == "cold"
    untouched = home.copy(tmp_path / "without save points")
    shutil.rmtree(untouched.kept.folder)
    restored = home.ask("--chat", cold["chat_id"], *common, QUESTION)
    receipt = restored["receipt"]
    assert receipt["source"] == "disk", receipt
    assert receipt["cached_tokens"] >= 0.98 * receipt["prompt_tokens"]
    assert receipt["miss_reason"] is None
    from_scratch = untouched.ask("--chat", cold["chat_id"], *common, QUESTION)
    assert from_scratch["receipt"]["source"] == "cold"
    assert from_scratch["receipt"]["prompt_tokens"] == receipt["prompt_tokens"]
    assert from_scratch["reply"] == restored["reply"]


@pytest.fixture(scope="module")
def saved_chat(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, str]:
    home = Home(tmp_path_factory.mktemp("begun") / "home")
    return home, home.ask("--new", "--model", str(tiny_model("llama")), notes(60))["chat_id"]


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "foreign", "missing"])
def test_a_damaged_store_costs_only_a_prefill(saved_chat, tmp_path, damage):
    model, chat = ("--model", str(tiny_model("llama"))), saved_chat[1]
    home = saved_chat[0].copy(tmp_path / "home")
    for file in home.kept.block_files():
        spoil(file, damage)
    receipt = home.ask("--chat", chat[:8], *model, QUESTION)["receipt"]
    assert receipt["source"] == "cold"
    assert receipt["miss_reason"]
    again = home.ask("--chat", chat, *model, "And the last?")["receipt"]
    assert again["source"] == "disk"


def test_missing_or_unreadable_models_and_chats_are_reported(home, tmp_path):
    model, garbage, half = tiny_model("llama"), tmp_path / "garbage.gguf", tmp_path / "half.gguf"
    garbage.write_bytes(b"not a model" * 1000)
    half.write_bytes(model.read_bytes()[: model.stat().st_size // 2])
    for arguments, problem in (
        ((), "--starter"),
        (("--model", str(model), "--chat", "nobody"), "No chat has the id nobody"),
        *((("--model", str(path)), path.name) for path in (garbage, half, tmp_path / "absent.gguf")),
    ):
        done = home.run("ask", *arguments, "Hello")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("kvchat: ")
        assert "Traceback" not in done.stderr
        assert problem in done.stderr
    assert [message["content"] for message in home.messages()] == ["Hello"] * 3, "the messages are stored all the same"


def test_bench_measures_the_users_model(home):
    done = home.run("bench", "--json", "--tokens", "600", "--model", str(tiny_model("llama")))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["outputs_agree"] is True
    assert figures["cached_tokens"] >= 0.95 * figures["prompt_tokens"] > 500
    assert 0 < figures["new_rows_bytes_last_reply"] < figures["disk_bytes"] / 4
    assert figures["last_reply_bytes_written"] < figures["disk_bytes"] / 4, "only the last reply, not the whole file"
    assert figures["disk_ratio"] >= 1
    assert not home.messages(), "the user's own chats are not touched"
    assert not list((home.folder / "cache").glob("bench-*"))


def test_bench_shares_a_system_prompt(home):
    figures = home.bench("shared-prompt", "--chats", "3", "--tokens", "600", "--model", str(tiny_model("llama")))
    assert figures["chats"] == 3
    assert 500 < figures["system_tokens"] < 700
    assert 150 < figures["own_tokens"] < 260
    assert figures["disk_ratio"] == figures["disk_bytes"] / figures["unique_rows_bytes"]
    assert figures["disk_bytes"] < 0.7 * figures["whole_files_bytes"], "the system prompt's rows are kept once"
    assert figures["cached_tokens"] >= 0.9 * figures["prompt_tokens"], "a new chat begins where the prompt ends"


def test_bench_of_a_person_starts_chats_on_prepared_documents(home):
    figures = home.bench("person", "--part", "documents", "--tokens", "600", "--model", str(tiny_model("llama")))
    assert (figures["switch"], figures["paste"], figures["busy_prediction_error"]) == (None, None, None)
    documents = figures["documents"]
    assert 500 < documents["tokens"] < 700
    assert documents["chats"] == 20
    # With so small a model the overhead counts; stored once per chat, the rows would be four times as large.
    assert documents["disk_bytes"] < 1.2 * documents["unique_rows_bytes"], "the documents' rows are kept once"
    assert figures["prediction_error"] is not None
