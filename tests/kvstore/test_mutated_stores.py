"""Stores with something wrong in them cost a colder start, whatever it is."""

from __future__ import annotations

import pytest

from tests.kvstore import mutating


def test_some_mutated_stores_are_no_worse_than_empty_ones() -> None:
    seen = mutating.run(30, 11)
    assert seen["restored"] > 10


@pytest.mark.slow
def test_hundreds_of_mutated_stores_are_no_worse_than_empty_ones() -> None:
    """`packaging/soak` has as many as it is asked for."""
    seen = mutating.run(400, 12)
    assert seen["restored"] > 120
