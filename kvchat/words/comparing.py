"""How far two texts are the same."""

from __future__ import annotations


def shared_text(one: str, other: str) -> int:
    """How many leading characters two texts share. By halves: a prompt is long, and slices are compared at once."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
