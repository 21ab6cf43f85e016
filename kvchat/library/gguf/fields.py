"""The values of a GGUF header that share a prefix, most often the architecture's name, by their short names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvchat.library.gguf.header import Value


@dataclass(frozen=True)
class GgufFields:
    """With the prefix "llama", `fields.number("block_count")` is the header's `llama.block_count`."""

    values: Mapping[str, Value]
    prefix: str

    def number(self, key: str, default: int = 0) -> int:
        """A whole number; of a per-layer list its largest, so that estimates err on the high side."""
        value = self.values.get(f"{self.prefix}.{key}")
        if isinstance(value, tuple):
            return max((entry for entry in value if isinstance(entry, int)), default=default)
        return value if isinstance(value, int) else default

    def has(self, key: str) -> bool:
        """Whether the header has such a value at all."""
        return f"{self.prefix}.{key}" in self.values

    def listed(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers or flags as it stands there; None where there is none."""
        value = self.values.get(f"{self.prefix}.{key}")
        if not isinstance(value, tuple):
            return None
        return tuple(entry if isinstance(entry, int) else 0 for entry in value)

    def per_layer(self, key: str, layers: int, default: int = 0) -> tuple[int, ...]:
        """One number per layer, from a list or from one number for all.

        A list that is too short is filled up with its largest number.
        """
        listed = self.listed(key)
        if listed is None:
            return (self.number(key, default),) * layers
        return listed[:layers] + (max(listed, default=default),) * (layers - len(listed))
