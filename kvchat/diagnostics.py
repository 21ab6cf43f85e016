"""What somebody who helps needs to know of this kvchat, as one text with nothing private in it. Pure."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvchat import __version__
from kvchat.engine.speaking.connection import EngineStatus
from kvchat.engine.speaking.vitals import Vitals
from kvchat.engine_host.choice import EngineChoice
from kvchat.settings import Settings
from kvchat.words.safe_text import Person, redact
from kvchat.words.wording import per_second, size

_LOG_LINES = 200  # of the engine's last ones


@dataclass(frozen=True)
class Facts:
    """Everything there is to tell. None: there is no such thing at the moment."""

    settings: Settings
    status: EngineStatus
    choice: EngineChoice | None
    vitals: Vitals | None
    log: Sequence[str]


def report(facts: Facts, person: Person, secrets: Iterable[str] = ()) -> str:
    """The text. `secrets` are keys known to the caller; they are taken out wherever they stand."""
    parts = [
        _head(facts),
        "Settings that are not the default\n" + _block(_settings(facts.settings)),
        "Engine log, last lines\n" + _block(facts.log[-_LOG_LINES:]),
    ]
    return redact("\n\n".join(parts) + "\n", person, secrets)


def _head(facts: Facts) -> str:
    rows = [
        ("kvchat", f"{__version__}, Python {platform.python_version()}"),
        ("system", platform.platform()),
        ("engine", _status(facts.status)),
        *(_choice(facts.choice) if facts.choice else ()),
        *(_vitals(facts.vitals) if facts.vitals else ()),
    ]
    return "\n".join(f"{label:<10}{text}" for label, text in rows)


def _status(status: EngineStatus) -> str:
    words = status.state.value
    if status.restart_attempt:
        words += f", restarted {status.restart_attempt} times"
    if status.failure:
        words += f": {status.failure.title}. {status.failure.detail}"
    return words


def _choice(choice: EngineChoice) -> Iterator[tuple[str, str]]:
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


def _settings(settings: Settings) -> list[str]:
    default = dataclasses.asdict(Settings())
    return [f"{name}: {value!r}" for name, value in dataclasses.asdict(settings).items() if value != default[name]]


def _block(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines) or "  (none)"
