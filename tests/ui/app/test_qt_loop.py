"""The runtime on Qt's loop, which is not asyncio's own in everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvchat.runtime import open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths


async def test_settings_are_changed_again_and_again(tmp_path: Path) -> None:
    """Each change has what was deleted looked after: Qt's timers do not tell when they ring."""
    runtime = await open_runtime(resolve_paths({"KVCHAT_HOME": str(tmp_path)}), Settings(engine_start="message"))
    try:
        await runtime.start()
        for days in (3, 5):
            await runtime.apply_settings(replace(runtime.settings, keep_deleted_days=days))
    finally:
        await runtime.close()
