"""Two KVCHAT_HOMEs: a box that shares its model with `kvchat serve --share`, and a laptop that is paired with it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvchat.engine.process.plan import free_port
from tests.e2e.home import Home, engine_arguments
from tests.e2e.serving import Serving, serving
from tests.models import tiny_model


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
def shown_pairing(box: Home) -> Iterator[dict[str, Any]]:
    """Run `kvchat pair` on the box, yield its output, and wait until a device has been paired."""
    command, environment = (sys.executable, "-m", "kvchat", "pair", "--json"), {"KVCHAT_HOME": str(box.folder)}
    with subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True) as shown:
        try:
            assert shown.stdout is not None
            text = shown.stdout.readline()
            while not text.rstrip().endswith("}"):
                text += shown.stdout.readline()
            yield json.loads(text)
            assert shown.wait() == 0
        finally:
            shown.kill()


@contextlib.contextmanager
def shown_code(box: Home) -> Iterator[str]:
    with shown_pairing(box) as shown:
        yield shown["code"]


def pair_homes(box: Home, laptop: Home, port: int) -> None:
    with shown_code(box) as code:
        done = laptop.run("pair", f"127.0.0.1:{port}", code)
        assert done.returncode == 0, done.stderr
