"""This machine's measured rates, and whether a restore beats reading: pure but for what it remembers."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_GAIN = 32  # tokens; below that nothing is worth a restore, whatever the rates
LEAST_MEASURED = 64  # tokens; a shorter prefill says more about overheads than about the rate


@dataclass
class Rates:
    """Measured in this run, or recalled from an earlier one with the same model; None before that."""

    prefill_ms_per_token: float | None = None
    restore_ms_per_byte: float | None = None

    def learn_prefill(self, tokens: int, ms: float) -> None:
        """A request read `tokens` in `ms`."""
        if tokens >= LEAST_MEASURED:
            self.prefill_ms_per_token = ms / tokens

    def learn_restore(self, size: int, ms: float) -> None:
        """A slot file of `size` bytes was put together and restored in `ms`."""
        if size:
            self.restore_ms_per_byte = ms / size

    def prefill_ms(self, tokens: int) -> float:
        """An estimate of reading so many tokens; 0 where nothing was measured."""
        return tokens * (self.prefill_ms_per_token or 0.0)

    def worth(self, gain: int, size: int) -> bool:
        """Whether restoring `size` bytes beats reading `gain` tokens. Until both were measured, it is tried."""
        if gain < LEAST_GAIN:
            return False
        if self.prefill_ms_per_token is None or self.restore_ms_per_byte is None:
            return True
        return size * self.restore_ms_per_byte < gain * self.prefill_ms_per_token
