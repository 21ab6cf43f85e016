"""A chat exported with its memory continues in another home without reprocessing."""

import pytest

from kvchat.transfer.memory_file import NOT_VERIFIED
from tests.e2e.home import Home, notes
from tests.models import tiny_model

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(("architecture", "window"), [("llama", None), ("gemma3", 1024), ("qwen35", None)])
def test_a_chat_with_its_memory_is_warm_in_another_home(tmp_path, architecture, window):
    here, there = Home(tmp_path / "here"), Home(tmp_path / "there")
    model = tiny_model(architecture, window, heeds=True)
    for home in (here, there):
        home.write_settings(model_path=str(model))
    chat = here.ask("--new", "--system", notes(60), "Which is the longest?")["chat_id"]
    file, secret = tmp_path / "chat.kvchat", tmp_path / "secret"
    secret.write_text("correct horse\n", "utf-8")
    out = here.run("export", "--chat", chat, "--with-memory", "--passphrase-file", str(secret), str(file))
    assert (out.returncode, out.stderr) == (0, "")
    refused = there.run("import", str(file))
    assert refused.returncode == 1
    assert "requires a passphrase" in refused.stderr
    imported = there.run("import", "--passphrase-file", str(secret), str(file))
    assert (imported.returncode, imported.stderr) == (0, "")
    assert f"created with {model.name}. {NOT_VERIFIED}" in imported.stdout
    assert "A test on this computer succeeded" in imported.stdout
    first, second = (home.ask("--chat", chat, "And the shortest?") for home in (here, there))
    assert second["receipt"]["source"] == "disk"
    # An unfinished reply may be saved a few tokens before the turn boundary (see `Settling.run`).
    assert second["receipt"]["cached_tokens"] >= 0.975 * second["receipt"]["prompt_tokens"]
    assert second["reply"] == first["reply"]
