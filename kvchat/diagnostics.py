"""The diagnostic report: the state of this kvchat as one text."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterable, Iterator, Sequence

from kvchat import __version__
from kvchat.engine.speaking.connection import EngineStatus
from kvchat.engine.speaking.vitals import Vitals
from kvchat.engine_host.choice import EngineChoice
from kvchat.settings import Settings
from kvchat.words.wording import per_second, size

_LOG_LINES = 200  # from the engine's log


def report(
    settings: Settings, status: EngineStatus, choice: EngineChoice | None, vitals: Vitals | None, log: Sequence[str]
) -> str:
    rows = [
        ("kvchat", f"{__version__}, Python {platform.python_version()}"),
        ("system", platform.platform()),
        *_engine(status, choice),
        *(_vitals(vitals) if vitals else ()),
    ]
    default = dataclasses.asdict(Settings())
    changed = [f"{name}: {value!r}" for name, value in dataclasses.asdict(settings).items() if value != default[name]]
    parts = [
        "\n".join(f"{label:<10}{text}" for label, text in rows),
        "Settings that are not the default\n" + _block(changed),
        "Engine log, last lines\n" + _block(log[-_LOG_LINES:]),
    ]
    return "\n\n".join(parts) + "\n"


def _engine(status: EngineStatus, choice: EngineChoice | None) -> Iterator[tuple[str, str]]:
    words = status.state.value
    if status.restart_attempt:
        words += f", restarted {status.restart_attempt} times"
    if status.failure:
        words += f": {status.failure.title}. {status.failure.detail}"
    yield "engine", words
    if choice is not None:
        facts = choice.facts
        yield "", str(choice.location)
        yield "model", f"{facts.name}: {facts.architecture}, {facts.quantisation}, {size(facts.size)}"
        yield "context", choice.context.reason


def _vitals(vitals: Vitals) -> Iterator[tuple[str, str]]:
    graphics = f", graphics memory {size(vitals.graphics_memory)}" if vitals.graphics_memory is not None else ""
    if vitals.memory is not None:
        yield "memory", size(vitals.memory) + graphics
    if vitals.slot is not None:
        yield "slot", f"{vitals.slot.tokens} of {vitals.slot.context_size} tokens{', busy' if vitals.slot.busy else ''}"
    rates = (("prefill", vitals.speed.prefill), ("decode", vitals.speed.decode))
    if told := [f"{name} {per_second(rate)}" for name, rate in rates if rate is not None]:
        yield "speed", ", ".join(told)


def _block(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines) or "  (none)"
