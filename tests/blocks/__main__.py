"""The longest times that the window's thread was held up, by what the user did: `python -m tests.blocks [--chats N]`.

A desktop of its own, the real window, a real llama-server. Where other processes have the cores, `own` leaves that out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvchat.chat.record.database import Database
from kvchat.engine.api.wire import Sampling
from kvchat.engine.process.plan import free_port
from kvchat.runtime import open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.blocks.app import LONG
from tests.blocks.watch import Block
from tests.chat.library import fill
from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home, engine_path, notes
from tests.models import tiny_model

LIMIT_MS = 50.0
SECONDS = 230.0
SHORT = ("The first of the others", "第二个对话 🚀", "A third", "The fourth one", "Number five")


def main() -> None:
    """Measure and print. Exit code 1 where a block was longer than allowed, or the window could not be used."""
    parser = argparse.ArgumentParser(prog="python -m tests.blocks", description=__doc__)
    parser.add_argument("--chats", type=int, default=0, help="so many others, that were never opened")
    parser.add_argument("--over", type=float, default=LIMIT_MS, metavar="MS", help="show the stacks of these")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # and what it has started ends with it
    with tempfile.TemporaryDirectory(prefix="kvchat-blocks-") as folder:
        found = measure(Path(folder), asked.chats)
    blocks = [Block(**one) for one in found["blocks"]]
    print(told(blocks, found["beats"], asked.over))
    print(found["fault"] or "done", flush=True)
    # Beside a crowd it cannot be quicker than where the crowd is somebody else's.
    allowed = {"crowd": max([LIMIT_MS, *(1.5 * block.own for block in blocks if block.phase == "crowd elsewhere")])}
    allowed["crowd elsewhere"] = math.inf
    sys.exit(bool(found["fault"]) or any(block.own > allowed.get(block.phase, LIMIT_MS) for block in blocks))


def measure(folder: Path, chats: int) -> dict[str, Any]:
    home = Home(folder / "home")
    settings = {"model_path": str(tiny_model("llama")), "engine_path": engine_path("llama-server")}
    others = {"api_server": True, "api_port": free_port("127.0.0.1")}
    home.write_settings(**settings, **others, max_tokens=500, read_ahead="always", context_size=16384, **GREEDY)
    asyncio.run(_fill(home, settings, chats))
    out = folder / "blocks.json"
    command = [sys.executable, "-m", "tests.blocks.app", str(out)]
    with Desktop() as desktop:
        desktop.environment.pop("QT_LINUX_ACCESSIBILITY_ALWAYS_ON")  # who is read to has other times
        printed = folder / "output"
        with desktop.application(*command, output=printed, KVCHAT_HOME=str(home.folder)) as process:
            process.wait(SECONDS)
        complaints = printed.read_text("utf-8", "replace")
    if not out.exists():
        raise RuntimeError(complaints)
    return json.loads(out.read_text("utf-8"))


async def _fill(home: Home, settings: dict[str, str], chats: int) -> None:
    """Some short chats and a long one, with their save points; and so many that are rows only."""
    paths = resolve_paths({"KVCHAT_HOME": str(home.folder)})
    runtime = await open_runtime(paths, Settings(**settings, context_size=16384, model_titles=False))
    sampling = Sampling(max_tokens=60, temperature=0.0, seed=1)
    try:
        for title in (*SHORT, LONG):
            chat = await runtime.chat.new_conversation()
            text = notes(450 if title == LONG else 8, start=len(title))
            await runtime.chat.send(chat.id, f"{title}\n{text}", sampling)
            await runtime.chat.rename(chat.id, title)
        await runtime.chat.idle()
        file = runtime._database.file
    finally:
        await runtime.close()
    if chats:
        database = Database(file)
        fill(database, chats)
        database.close()


def told(blocks: list[Block], beats: dict[str, int], over: float) -> str:
    """A line for each thing that was done; and the stacks of what is too long."""
    lines = [f"{'':<14}{'own':>8}{'wall':>8}{'cpu':>8}  ms, the longest; how often it came round"]
    for phase, count in beats.items():
        mine = [block for block in blocks if block.phase == phase]
        if worst := max(mine, key=lambda block: block.own, default=None):
            lines.append(f"{phase:<14}{worst.own:>8.0f}{worst.wall:>8.0f}{worst.cpu:>8.0f}  {count:,}")
        else:
            lines.append(f"{phase:<14}{'–':>8}{'–':>8}{'–':>8}  {count:,}")
    long = sorted((block for block in blocks if block.own > over), key=lambda block: -block.own)
    for block in long:
        lines += ["", f"{block.phase}: {block.own:.0f} ms own, {block.wall:.0f} wall, {block.cpu:.0f} cpu", block.stack]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
