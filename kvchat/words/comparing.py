"""Comparing texts."""

from __future__ import annotations


def shared_text(one: str, other: str) -> int:
    """Count the leading characters two texts share, by halves: a prompt is long, and slices compare at once."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
