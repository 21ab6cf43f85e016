"""kvchat's logo: a speech bubble with a bookmark, for the place where one left off. Source of `assets/`."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path

# The logo on a 32 x 32 grid; edges fall on even numbers, so that 16 px stays crisp.
_BUBBLE = "M8 2 H24 A6 6 0 0 1 30 8 V18 A6 6 0 0 1 24 24 H15 L8 30 V24 A6 6 0 0 1 2 18 V8 A6 6 0 0 1 8 2 Z"
_OUTLINE = (
    "M8.3 3.3 H23.7 A5 5 0 0 1 28.7 8.3 V17.7 A5 5 0 0 1 23.7 22.7 H14.5 L9.3 27.2 V22.7 H8.3"
    " A5 5 0 0 1 3.3 17.7 V8.3 A5 5 0 0 1 8.3 3.3 Z"
)
_LOWER_HALF = "M2 13 H30 V18 A6 6 0 0 1 24 24 H15 L8 30 V24 A6 6 0 0 1 2 18 Z"
_RIBBON = "M18 2 H24 V17 L21 14 L18 17 Z"
_DOTS = "".join(f"M{x - 2.4} 13 a2.4 2.4 0 1 0 4.8 0 a2.4 2.4 0 1 0 -4.8 0 Z" for x in (8.6, 16, 23.4))
_BANG = "M14 6 H18 L17.4 14.5 H14.6 Z M13.9 18.6 a2.1 2.1 0 1 0 4.2 0 a2.1 2.1 0 1 0 -4.2 0 Z"

# Middle tones: at least 3:1 against both a white and a near-black panel.
TEAL, GREY, RED = "#12907e", "#7c847f", "#d9483b"
_GOLD = "#f2b84b"


class LogoState(Enum):
    """What the tray shows."""

    STOPPED = "stopped"
    LOADING = "loading"
    READY = "ready"
    BUSY = "busy"
    FAILED = "failed"


def app_svg() -> str:
    """The application's icon."""
    ground = f'<rect width="64" height="64" rx="14" fill="{TEAL}"/>'
    bubble = f'<path d="{_BUBBLE}" fill="#fdfdfb"/><path d="{_RIBBON}" fill="{_GOLD}"/>'
    return _svg(f'{ground}<g transform="translate(9.6 10) scale(1.4)">{bubble}</g>', 64)


def tray_svg(state: LogoState) -> str:
    """The tray's icon for a state. The shapes differ as well as the colours."""
    match state:
        case LogoState.STOPPED:
            return _svg(_outline(GREY) + _filled(_RIBBON, GREY))
        case LogoState.LOADING:
            return _svg(_outline(TEAL) + _filled(_LOWER_HALF, TEAL))
        case LogoState.READY:
            return _svg(_filled(_BUBBLE + _RIBBON, TEAL))
        case LogoState.BUSY:
            return _svg(_filled(_BUBBLE + _DOTS, TEAL))
        case LogoState.FAILED:
            return _svg(_filled(_BUBBLE + _BANG, RED))


def asset_files() -> dict[str, str]:
    """The SVG files of the folder `assets/` by name; `python -m kvchat.ui.base.logo FOLDER` writes them."""
    files = {f"kvchat-tray-{state.value}.svg": tray_svg(state) for state in LogoState}
    return {"kvchat.svg": app_svg(), **files}


def _outline(colour: str) -> str:
    return f'<path d="{_OUTLINE}" fill="none" stroke="{colour}" stroke-width="2.6" stroke-linejoin="round"/>'


def _filled(path: str, colour: str) -> str:
    return f'<path d="{path}" fill="{colour}" fill-rule="evenodd"/>'


def _svg(body: str, grid: int = 32) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {grid} {grid}">{body}</svg>\n'


if __name__ == "__main__":
    for name, svg in asset_files().items():
        (Path(sys.argv[1]) / name).write_text(svg, "utf-8")
