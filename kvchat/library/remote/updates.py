"""Whether there is a newer kvchat: asked of GitHub once a day at most, where that is wanted. Fetches nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

from kvchat import __version__
from kvchat.errors import KvchatError
from kvchat.library.remote.github import GitHub

REPOSITORY = "kvchat/kvchat"
ONCE_IN_S = 86_400.0
_LOOK_EVERY_S = 600.0
_ASKED = "asked-for-updates"  # in the state folder; its time is when that was


async def watch(state: Path, wanted: Callable[[], bool], tell: Callable[[str, str], None]) -> None:
    """Without end: `tell` of a newer version, by its number and the page it is on, whenever one was found."""
    while True:
        if wanted() and _due(state / _ASKED):
            with contextlib.suppress(KvchatError):  # nobody asked for it now: tomorrow is another day
                if tag := await newer_tag():
                    tell(_number(tag), f"{GitHub().page(REPOSITORY)}/tag/{tag}")
        await asyncio.sleep(_LOOK_EVERY_S)


async def newer_tag() -> str:
    """The newest release's tag if it is newer than this kvchat, else nothing. Raises KvchatError."""
    tags = [release.tag for release in await GitHub().releases(REPOSITORY) if not release.preview]
    newest = max(tags, key=_order, default="")
    return newest if _order(newest) > _order(__version__) else ""


def _due(asked: Path) -> bool:
    """Whether it is time to ask; then it counts as asked, whatever comes of it."""
    with contextlib.suppress(OSError):
        if asked.exists() and 0 <= time.time() - asked.stat().st_mtime < ONCE_IN_S:
            return False
        asked.touch()
        return True
    return False


def _number(tag: str) -> str:
    return tag.removeprefix("v")


def _order(tag: str) -> tuple[int, ...]:
    """What versions are ordered by; a tag of another form comes before all."""
    return tuple(map(int, match[1].split("."))) if (match := re.fullmatch(r"v?(\d+(?:\.\d+)*)", tag)) else ()
