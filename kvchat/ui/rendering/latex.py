"""LaTeX to an outline in SVG, by ziamath (which reads the formula with latex2mathml and sets it in STIX Two Math).

No Qt and no browser. Slow (a quarter of a second to import, then milliseconds per formula), so it runs in a thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

_EM = 100.0  # the size formulas are set at; outlines scale
_INK = "#010203"  # stands for the colour until it is known
_LONGEST = 1_500  # characters; what is longer is no formula to be read
_DEEPEST = 30  # braces inside braces, far below Python's recursion limit
_UNBRACED = re.compile(r"(\\math(?:bb|cal|frak|bf|rm|sf|tt|it|scr))\s+([A-Za-z0-9])")  # latex2mathml overlooks them
_LOST = ("\\mathop",)  # what it leaves out without a word
# Scripts the mathematical font has no letters for: everything from Hebrew on but symbols and mathematical letters.
_NO_GLYPHS = re.compile("[\u0590-\u1fff\u2c00-\U0001d3ff\U0001d800-\U0010ffff]")


@dataclass(frozen=True)
class Outline:
    """A drawn formula. Measures in em; `ascent` and `descent` from the line the text stands on."""

    svg: str
    width: float
    ascent: float
    descent: float

    def in_colour(self, colour: str) -> str:
        """The SVG in `colour` ("#rrggbb")."""
        return self.svg.replace(_INK, colour)


def outline(tex: str, display: bool) -> Outline | None:
    """The formula drawn; None for one that cannot be drawn in full, which is better shown as it was written."""
    if len(tex) > _LONGEST or _depth(tex) > _DEEPEST or _NO_GLYPHS.search(tex) or any(word in tex for word in _LOST):
        return None
    try:
        from ziamath.config import config  # not at the top: most replies have no formula
        from ziamath.tex import tex2mml
        from ziamath.zmath import Math

        config.svg2 = False  # QtSvg knows SVG 1.2 Tiny
        root = ElementTree.fromstring(tex2mml(_UNBRACED.sub(r"\1{\2}", tex), inline=not display))
        if "\\" in "".join(root.itertext()):
            return None  # a command it does not know stands there as text
        root.set("mathcolor", _INK)
        drawn = Math(root, size=_EM, margin=0.02 * _EM)
        box = drawn.node.bbox
        svg = drawn.svg()
    except Exception:  # a parser of other people's text: whatever it raises means the same
        return None
    margin = drawn.margin
    width, ascent, descent = box.xmax - box.xmin + 2 * margin, box.ymax + margin, margin - box.ymin
    return Outline(svg, width / _EM, ascent / _EM, descent / _EM)


def _depth(tex: str) -> int:
    depth = deepest = 0
    for letter in tex:
        depth += (letter == "{") - (letter == "}")
        deepest = max(deepest, depth)
    return deepest
