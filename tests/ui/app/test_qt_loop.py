"""The runtime on Qt's event loop, which differs from asyncio's own."""

from dataclasses import replace
from pathlib import Path

from kvchat.runtime import open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths


async def test_settings_are_changed_again_and_again(tmp_path: Path) -> None:
    """Each change reschedules the purge of deleted chats: timers of Qt's loop do not report their time."""
    runtime = await open_runtime(resolve_paths({"KVCHAT_HOME": str(tmp_path)}), Settings(engine_start="message"))
    try:
        await runtime.start()
        for days in (3, 5):
            await runtime.apply_settings(replace(runtime.settings, keep_deleted_days=days))
    finally:
        await runtime.close()
