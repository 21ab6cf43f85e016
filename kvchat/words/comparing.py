"""Text comparison."""

from __future__ import annotations


def shared_text(first: str, second: str) -> int:
    """Return the length of the common prefix. Bisects: prompts are long, and comparing slices is fast."""
    least, most = 0, min(len(first), len(second))
    while least < most:
        middle = (least + most + 1) // 2
        if first[least:middle] == second[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
