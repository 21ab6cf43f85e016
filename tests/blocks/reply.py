"""Processor use of the window while a reply arrives: `python -m tests.blocks.reply [--runs N]`.

A private desktop and the fake engine, which sends 1,000 words of Markdown at 40 per second. Only kvchat's own process
counts.
"""

import argparse
import json
import re
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from kvchat.chat.events import ReplyFinished
from kvchat.engine.api.connection import EngineState
from tests.blocks import app
from tests.blocks.app import User
from tests.e2e.desktop import Desktop
from tests.e2e.home import Home
from tests.engine_fixtures import make_fake_engine
from tests.models import tiny_model

LIMIT = 0.10  # of a core
WORDS, WORDS_PER_SECOND = 1000, 40
CODE = "\n".join(f"    total_{line} = measure(bridge, {line}, unit='m')  # length" for line in range(60))
TABLE = "| bridge | length | year |\n|---|---|---|\n" + "| the old stone bridge | 371 m | 1894 |\n" * 12
LIST = "\n".join(f"- **Point {point}:** the bridge carries `{point}` lanes across the river." for point in range(12))
PROSE = "The bridge spans *the whole valley* and rests on two piers of granite. " * 8
MARKDOWN = f"# Bridges\n\n{PROSE}\n\n## List\n\n{LIST}\n\n{TABLE}\n\n```python\n{CODE}\n```\n\n" + PROSE * 9

_SETTLE_S, _TIMEOUT_S = 4.0, 120.0


class Reader(User):
    def _run(self) -> None:
        self.watch.end()  # it uses the processor itself
        self.until(lambda: self.runtime.engine.status.state is EngineState.READY, "the engine")
        time.sleep(_SETTLE_S)
        self.xdotool("key", "ctrl+n")
        self.xdotool("type", "--delay", "10", "--", "Bridges")
        time.sleep(_SETTLE_S)
        core, wall = time.process_time(), time.monotonic()
        self.xdotool("key", "Return")
        self.until(lambda: self.count(ReplyFinished), "the reply")
        core, wall = time.process_time() - core, time.monotonic() - wall
        self._out.write_text(json.dumps([core, wall]), "utf-8")
        self.call(self._app.quitting.set)


def main() -> None:
    """Measure and print. Exit code 1 if the limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.blocks.reply", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # its children end with it
    shares = list[float]()
    for _ in range(parser.parse_args().runs):
        with tempfile.TemporaryDirectory(prefix="kvchat-reply-") as folder:
            core, wall = measure(Path(folder))
        shares.append(core / wall)
        print(f"{core:.2f} s of a core in {wall:.1f} s: {core / wall:.1%}", flush=True)
    print(f"median {statistics.median(shares):.1%} of a core; allowed is {LIMIT:.0%}")
    sys.exit(statistics.median(shares) > LIMIT)


def measure(folder: Path) -> tuple[float, float]:
    """Return the seconds of a core and of the clock that one reply takes."""
    engine, home, out = make_fake_engine(folder), Home(folder / "home"), folder / "reply.json"
    engine.set(FAKE_REPLY="".join(re.findall(r"\s*\S+", MARKDOWN)[:WORDS]), FAKE_TOKEN_DELAY=1 / WORDS_PER_SECOND)
    home.write_settings(
        model_path=str(tiny_model("llama")), engine_path=str(engine.path), context_size=32768, max_tokens=30000
    )
    command = [sys.executable, "-m", "tests.blocks.reply", str(out)]
    with Desktop() as desktop:
        desktop.environment.pop("QT_LINUX_ACCESSIBILITY_ALWAYS_ON")  # accessibility changes the times
        with desktop.application(*command, output=folder / "output", KVCHAT_HOME=str(home.folder)) as process:
            process.wait(_TIMEOUT_S)
        if not out.exists():
            raise RuntimeError((folder / "output").read_text("utf-8", "replace"))
    core, wall = json.loads(out.read_text("utf-8"))
    return core, wall


if __name__ == "__main__":
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        app.main(Path(sys.argv[1]), [], Reader)  # the window, started by `measure`
    else:
        main()
