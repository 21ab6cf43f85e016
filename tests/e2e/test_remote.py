"""Two kvchat installations: the laptop's chats use the model of the box, and the box remembers them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.engine.process.plan import free_port
from tests.e2e.home import Home, engine_arguments, notes
from tests.e2e.serving import Serving, serving
from tests.models import tiny_model

pytestmark = pytest.mark.e2e


def make_homes(folder: Path) -> tuple[Home, Home]:
    box, laptop = Home(folder / "box"), Home(folder / "laptop")
    box.write_settings(
        free_floor_bytes=0, model_path=str(tiny_model("llama")), engine_path=engine_arguments("llama-server")[1]
    )
    laptop.write_settings(free_floor_bytes=0)
    return box, laptop


def sharing(box: Home, port: int) -> contextlib.AbstractContextManager[Serving]:
    return serving(box, "--share", "--share-port", str(port), port=free_port("127.0.0.1"))


@contextlib.contextmanager
def shown_code(box: Home) -> Iterator[str]:
    """Run `kvchat pair` on the box, yield its code, and wait until a device has used it."""
    command, environment = (sys.executable, "-m", "kvchat", "pair", "--json"), {"KVCHAT_HOME": str(box.folder)}
    with subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True) as shown:
        try:
            assert shown.stdout is not None
            text = shown.stdout.readline()
            while not text.rstrip().endswith("}"):
                text += shown.stdout.readline()
            yield json.loads(text)["code"]
            assert shown.wait() == 0
        finally:
            shown.kill()


def pair(box: Home, laptop: Home, port: int) -> None:
    with shown_code(box) as code:
        done = laptop.run("pair", f"127.0.0.1:{port}", code)
        assert done.returncode == 0, done.stderr


def test_laptop_chats_with_the_memory_of_the_box(tmp_path):
    box, laptop = make_homes(tmp_path)
    port = free_port("127.0.0.1")
    with sharing(box, port) as at:
        pair(box, laptop, port)
        first = laptop.ask("--new", notes(120))
        assert first["receipt"]["source"] == "cold"
        again = laptop.ask("And the first?")
        assert again["receipt"]["cached_tokens"] >= 0.98 * first["receipt"]["prompt_tokens"]
        assert again["receipt"]["source"] in ("hot", "warm")
        at.requests()
        (device,) = json.loads(box.run("devices", "--json").stdout)
        assert device["last_used_at"]
    box.make_prefill_expensive()
    with sharing(box, port) as at:
        after = laptop.ask("And the second?")
        receipt = after["receipt"]
        assert receipt["source"] in ("warm", "disk"), receipt
        assert receipt["cached_tokens"] >= 0.98 * again["receipt"]["prompt_tokens"]
        assert receipt["restore_ms"] > 0
        at.requests()
        assert box.run("devices", "remove", device["id"]).returncode == 0
        refused = laptop.run("ask", "Hello?")
        assert refused.returncode == 1
        assert "rejected the API key" in refused.stderr
    assert not list((laptop.folder / "cache").rglob("*.block"))


def test_wrong_code_and_changed_certificate(tmp_path):
    box, laptop = make_homes(tmp_path)
    port = free_port("127.0.0.1")
    with sharing(box, port):
        with shown_code(box) as code:
            wrong = f"{(int(code) + 1) % 1_000_000:06d}"
            failed = laptop.run("pair", f"127.0.0.1:{port}", wrong)
            assert failed.returncode == 1
            assert "The code is wrong or has expired" in failed.stderr
            assert laptop.run("pair", f"127.0.0.1:{port}", code).returncode == 0
        replayed = laptop.run("pair", f"127.0.0.1:{port}", code)
        assert replayed.returncode == 1
        assert "The code is wrong or has expired" in replayed.stderr
    (box.folder / "config" / "certificate.pem").unlink()
    with sharing(box, port):
        refused = laptop.run("ask", "--new", "Hello?")
        assert refused.returncode == 1
        assert "certificate has changed" in refused.stderr
