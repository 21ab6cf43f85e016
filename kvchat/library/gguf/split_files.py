"""The names of a split model's files: `name-00001-of-00003.gguf` and so on, as llama-gguf-split writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True)
class PartName:
    """One file of a split model. `number` counts from 1."""

    stem: str
    number: int
    count: int

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all parts, in order."""
        return tuple(f"{self.stem}-{number:05}-of-{self.count:05}.gguf" for number in range(1, self.count + 1))


def part_name(name: str) -> PartName | None:
    """What a file name says about being a part; None for a file that is a whole model. Folders in it are kept."""
    match = _PART_NAME.fullmatch(name)
    return PartName(match["stem"], int(match["number"]), int(match["count"])) if match else None
