"""A small line plot of byte counts, as SVG: no ground of its own, colours that read on light and on dark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from kvchat.words.wording import size

INK = "#757e88"  # text and axes: enough contrast on white and on black
WIDTH, HEIGHT = 280, 210  # of a panel's plane, in pixels
LEFT, RIGHT, TOP, BOTTOM = 66, 62, 74, 48  # around it: the scale, the last values, the legend, the turns
LABEL_HEIGHT = 14
MOST_STEPS = 5  # of a scale


@dataclass(frozen=True)
class Line:
    """One value after each turn, in bytes."""

    name: str
    values: Sequence[int]
    colour: str
    dashed: bool = False  # so that a line beneath shows

    @property
    def stroke(self) -> str:
        """How it is drawn, as SVG attributes."""
        return f'stroke="{self.colour}" stroke-width="2.5"' + (' stroke-dasharray="4 5"' if self.dashed else "")


@dataclass(frozen=True)
class Panel:
    """Lines that share a scale."""

    title: str
    lines: Sequence[Line]


def draw(title: str, panels: Sequence[Panel], x_label: str) -> str:
    """The panels side by side under one legend."""
    width, height = len(panels) * (LEFT + WIDTH + RIGHT), TOP + HEIGHT + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        *_legend(panels),
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number * (LEFT + WIDTH + RIGHT) + LEFT} {TOP})">')
        parts += [*_panel(panel, x_label), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def scale_step(highest: float) -> float:
    """The round distance of a scale's marks: 1, 2 or 5 times a power of ten, and at most five of them."""
    magnitude = 10.0 ** math.floor(math.log10(max(highest, 1) / MOST_STEPS))
    return next(step * magnitude for step in (1, 2, 5, 10) if highest <= MOST_STEPS * step * magnitude)


def _legend(panels: Sequence[Panel]) -> Iterator[str]:
    strokes = {line.name: line.stroke for panel in panels for line in panel.lines}
    x = LEFT
    for name, stroke in strokes.items():
        yield f'<path d="M{x} 16h22" {stroke}/>{_text(x + 28, 20, name)}'
        x += 28 + 7 * len(name) + 18


def _panel(panel: Panel, x_label: str) -> Iterator[str]:
    highest = max(1, *(max(line.values) for line in panel.lines))
    turns = max(len(line.values) for line in panel.lines)
    step = scale_step(highest)
    top = step * math.ceil(highest / step)
    yield _text(0, -18, panel.title, extra=' font-weight="600"')
    for mark in range(round(top / step) + 1):
        y = HEIGHT * (1 - mark * step / top)
        yield f'<path d="M0 {y:.1f}h{WIDTH}" stroke="{INK}" stroke-opacity="{0.25 if mark else 1}"/>'
        yield _text(-8, y + 4, size(mark * step) if mark else "0", "end")
    for turn in sorted({1, *range(10, turns + 1, 10), turns} if turns > 10 else {1, turns}):
        yield _text(_x(turn, turns), HEIGHT + 18, str(turn), "middle")
    yield _text(WIDTH / 2, HEIGHT + 38, x_label, "middle")
    ends = [(HEIGHT * (1 - line.values[-1] / top), line) for line in panel.lines]
    for line in panel.lines:
        yield _polyline(line, turns, top)
    for y, line in _apart(ends):
        yield _text(WIDTH + 6, y + 4, size(line.values[-1]), extra=f' style="fill:{line.colour}"')


def _polyline(line: Line, turns: int, top: float) -> str:
    points = " ".join(
        f"{_x(turn, turns):.1f},{HEIGHT * (1 - value / top):.1f}" for turn, value in enumerate(line.values, 1)
    )
    return f'<polyline points="{points}" fill="none" {line.stroke} stroke-linejoin="round"/>'


def _x(turn: int, turns: int) -> float:
    """Where a turn stands: the axis begins at turn 0."""
    return WIDTH * turn / turns


def _apart(ends: Sequence[tuple[float, Line]]) -> Iterator[tuple[float, Line]]:
    """The labels from the bottom up, each at its line's end or as far above it as the one below needs."""
    below = math.inf
    for y, line in sorted(ends, key=lambda end: -end[0]):
        below = min(y, below - LABEL_HEIGHT)
        yield below, line


def _text(x: float, y: float, words: str, anchor: str = "start", *, extra: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'
