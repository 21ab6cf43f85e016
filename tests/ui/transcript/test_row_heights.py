"""The arithmetic behind a page whose rows are mostly guessed."""

from __future__ import annotations

from kvchat.ui.transcript.message_column import RowHeights


def rows(*heights: int) -> RowHeights:
    made = RowHeights()
    made.keep(0, heights)
    return made


def test_where_rows_stand() -> None:
    page = rows(10, 20, 30)
    assert [page.top(row) for row in range(4)] == [0, 10, 30, 60]
    assert page.total == 60
    assert [page.at(position) for position in (-5, 0, 9, 10, 29, 30, 1000)] == [0, 0, 0, 1, 1, 2, 2]


def test_measuring_moves_what_is_below() -> None:
    page = rows(10, 20, 30)
    assert page.measure(1, 25) == 5
    assert page.top(2) == 35
    assert page.is_measured(1)
    assert page.measure(1, 25) == 0
    page.doubt_all()
    assert not page.is_measured(1)
    assert page[1] == 25


def test_rows_come_and_go_at_the_end() -> None:
    page = rows(10, 20, 30)
    page.measure(0, 11)
    page.keep(1, [5, 6])
    assert (len(page), page.total) == (3, 22)
    assert [page.is_measured(row) for row in range(3)] == [True, False, False]
    assert rows().total == 0
