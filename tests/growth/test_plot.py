"""The plot is well-formed, and its lines are where its scale says."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest

from tests.growth.plot import HEIGHT, LABEL_HEIGHT, WIDTH, Line, Panel, draw, scale_step

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*lines: Line) -> ElementTree.Element:
    return ElementTree.fromstring(draw("Disk & time", (Panel("Disk used", lines),), "turns"))


def points(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]


@pytest.mark.parametrize(
    ("highest", "step"), [(1, 0.2), (5, 1), (5.1, 2), (10, 2), (11, 5), (30, 10), (1_294_000_000, 500_000_000)]
)
def test_a_scale_has_round_steps_and_few_of_them(highest: float, step: float) -> None:
    assert scale_step(highest) == pytest.approx(step)


def test_a_line_ends_where_its_value_stands_on_the_scale() -> None:
    picture = drawn(Line("whole files", (100_000_000, 200_000_000, 400_000_000), "#123456"))
    (line,) = picture.iter(f"{SVG}polyline")
    assert points(line) == [(93.3, 157.5), (186.7, 105.0), (WIDTH, 0)]
    words = [text.text for text in picture.iter(f"{SVG}text")]
    for word in ("whole files", "Disk used", "turns", "100 MB", "400 MB", "0"):
        assert word in words
    assert picture.findtext(f"{SVG}title") == "Disk & time"


def test_end_labels_never_lie_upon_each_other() -> None:
    picture = drawn(*(Line(f"line {n}", (1_000_000, 10_000_000 + n), "#123456") for n in range(4)))
    ends = sorted(float(text.attrib["y"]) for text in picture.iter(f"{SVG}text") if "style" in text.attrib)
    assert len(ends) == 4
    assert all(below - above >= LABEL_HEIGHT for above, below in itertools.pairwise(ends))


def test_nothing_yet_is_a_flat_line() -> None:
    picture = drawn(Line("nothing", (0, 0), "#123456"))
    (line,) = picture.iter(f"{SVG}polyline")
    assert {y for _, y in points(line)} == {HEIGHT}
