"""Longest blocks of the window's thread by user action: `python -m tests.blocks [--chats N]`.

A private desktop, the real window, a real llama-server. `own` excludes waiting for a free core.
"""

import argparse
import asyncio
import json
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
from tests.blocks.app import ABSORB_GB, LONG
from tests.blocks.watch import Block
from tests.chat.library import fill
from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home, engine_path, notes
from tests.models import tiny_model

LIMIT_MS = 50.0
SECONDS = 420.0
SHORT = ("The first of the others", "第二个对话 🚀", "A third", "The fourth one", "Number five")


def main() -> None:
    """Measure and print. Exit code 1 if a block was too long or the window unusable."""
    parser = argparse.ArgumentParser(prog="python -m tests.blocks", description=__doc__)
    parser.add_argument("--chats", type=int, default=0, help="number of other chats, never opened")
    parser.add_argument("--over", type=float, default=LIMIT_MS, metavar="MS", help="show the stacks of longer blocks")
    parser.add_argument("--absorb-gb", type=float, default=2.0, metavar="GB", help="size of the absorbed slot file")
    parser.add_argument("phases", nargs="*", help="measure only these, such as crowd; default: all")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # its children end with it
    with tempfile.TemporaryDirectory(prefix="kvchat-blocks-") as folder:
        result = measure(Path(folder), options.chats, options.phases, options.absorb_gb)
    blocks = [Block(**block) for block in result["blocks"]]
    print(report(blocks, result["beats"], options.over))
    print(result["fault"] or "done", flush=True)
    sys.exit(bool(result["fault"]) or any(block.own > LIMIT_MS for block in blocks))


def measure(folder: Path, chats: int, phases: list[str], absorb_gb: float = 2.0) -> dict[str, Any]:
    home = Home(folder / "home")
    settings = {"model_path": str(tiny_model("llama")), "engine_path": engine_path("llama-server")}
    others = {"api_server": True, "api_port": free_port("127.0.0.1")}
    home.write_settings(**settings, **others, max_tokens=500, read_ahead="always", context_size=16384, **GREEDY)
    asyncio.run(_fill(home, settings, chats))
    out = folder / "blocks.json"
    # The X server has a higher priority, as on a real desktop: painting waits for it.
    command = ["nice", "-n", "5", sys.executable, "-m", "tests.blocks.app", str(out), *phases]
    environment = {"KVCHAT_HOME": str(home.folder), ABSORB_GB: str(absorb_gb)}
    with Desktop() as desktop:
        desktop.environment.pop("QT_LINUX_ACCESSIBILITY_ALWAYS_ON")  # accessibility changes the times
        output = folder / "output"
        with desktop.application(*command, output=output, **environment) as process:
            process.wait(SECONDS)
        printed = output.read_text("utf-8", "replace")
    if not out.exists():
        raise RuntimeError(printed)
    return json.loads(out.read_text("utf-8"))


async def _fill(home: Home, settings: dict[str, str], chats: int) -> None:
    """Create short chats and a long one with save points, and `chats` more in the database only."""
    paths = resolve_paths({"KVCHAT_HOME": str(home.folder)})
    runtime = await open_runtime(paths, Settings(**settings, context_size=16384, model_titles=False))
    sampling = Sampling(max_tokens=60, temperature=0.0, seed=1)
    try:
        for title in (*SHORT, LONG):
            chat = await runtime.chat.new_conversation()
            text = notes(450 if title == LONG else 8, start=len(title))
            await runtime.chat.send(chat.id, f"{title}\n{text}", sampling)
            await runtime.chat.rename(chat.id, title)
        await runtime.chat.wait_until_idle()
        file = runtime._database.file
    finally:
        await runtime.close()
    if chats:
        database = Database(file)
        fill(database, chats)
        database.close()


def report(blocks: list[Block], beats: dict[str, int], over: float) -> str:
    """Return a line per user action, and the stacks of long blocks."""
    lines = [f"{'':<14}{'own':>8}{'wall':>8}{'cpu':>8}  ms, longest; rounds of the event loop"]
    for phase, count in beats.items():
        own_blocks = [block for block in blocks if block.phase == phase]
        if worst := max(own_blocks, key=lambda block: block.own, default=None):
            lines.append(f"{phase:<14}{worst.own:>8.0f}{worst.wall:>8.0f}{worst.cpu:>8.0f}  {count:,}")
        else:
            lines.append(f"{phase:<14}{'–':>8}{'–':>8}{'–':>8}  {count:,}")
    long = sorted((block for block in blocks if block.own > over), key=lambda block: -block.own)
    for block in long:
        lines += ["", f"{block.phase}: {block.own:.0f} ms own, {block.wall:.0f} wall, {block.cpu:.0f} cpu", block.stack]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
