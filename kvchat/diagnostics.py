"""The diagnostic report: the state of this kvchat as one text."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterable, Sequence

from kvchat import __version__
from kvchat.engine.api.connection import EngineStatus
from kvchat.engine.api.vitals import Vitals
from kvchat.engine_host.choice import EngineChoice
from kvchat.settings import Settings
from kvchat.text.formatting import format_rate, format_size

_LOG_LINES = 200  # from the engine's log


def report(
    settings: Settings, status: EngineStatus, choice: EngineChoice | None, vitals: Vitals | None, log: Sequence[str]
) -> str:
    rows = [("kvchat", f"{__version__}, Python {platform.python_version()}"), ("system", platform.platform())]
    words = status.state.value
    if status.restart_attempt:
        words += f", restarted {status.restart_attempt} times"
    if status.failure:
        words += f": {status.failure.title}. {status.failure.detail}"
    rows.append(("engine", words))
    if choice is not None:
        facts = choice.facts
        model = f"{facts.name}: {facts.architecture}, {facts.quantisation}, {format_size(facts.size)}"
        rows += [("", str(choice.location)), ("model", model), ("context", choice.context.reason)]
    if vitals is not None:
        if vitals.memory is not None:
            graphics = vitals.graphics_memory
            more = "" if graphics is None else f", graphics memory {format_size(graphics)}"
            rows.append(("memory", format_size(vitals.memory) + more))
        if (slot := vitals.slot) is not None:
            rows.append(("slot", f"{slot.tokens} of {slot.context_size} tokens{', busy' if slot.busy else ''}"))
        rates = (("prefill", vitals.speed.prefill), ("decode", vitals.speed.decode))
        if speeds := [f"{name} {format_rate(rate)}" for name, rate in rates if rate is not None]:
            rows.append(("speed", ", ".join(speeds)))
    default = dataclasses.asdict(Settings())
    changed = [f"{name}: {value!r}" for name, value in dataclasses.asdict(settings).items() if value != default[name]]
    parts = [
        "\n".join(f"{label:<10}{text}" for label, text in rows),
        "Settings that are not the default\n" + _block(changed),
        "Engine log, last lines\n" + _block(log[-_LOG_LINES:]),
    ]
    return "\n\n".join(parts) + "\n"


def _block(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines) or "  (none)"
