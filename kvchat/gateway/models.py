"""The models that clients may name, and what a made-up name means."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from kvchat.gateway.dialects.asked import Refused

IN_USE = ("", "default", "kvchat")  # names for whatever model is in use
LOOKED_S = 30.0  # so long it is believed which files there are
MOST_NAMED = 40  # models in a refusal


@dataclass(frozen=True)
class Model:
    """A model as clients know it."""

    name: str
    path: str | None  # None: of a server of the user's, which has the one it has


@dataclass
class Catalogue:
    """Which models there are. What is in use is asked anew each time."""

    in_use: Callable[[], Model | None]
    look: Callable[[], Awaitable[list[Model]]]  # through the folders of this computer
    any_name: Callable[[], bool]  # whether a name that no model has means the one in use
    _found: list[Model] = field(default_factory=list)
    _looked_at: float = field(default=-LOOKED_S)

    async def all(self) -> list[Model]:
        """The one in use first."""
        now, ours = time.monotonic(), self.in_use()
        if now - self._looked_at >= LOOKED_S:
            self._found, self._looked_at = await self.look(), now
        first = [ours] if ours else []
        if ours and ours.path is None:
            return first
        return first + [model for model in self._found if model.path != (ours.path if ours else None)]

    async def find(self, name: str) -> Model | None:
        """Return the model that answers a client that names this one, None before any was chosen. Raises Refused."""
        ours, wanted = self.in_use(), name.strip().lower()
        if wanted in IN_USE or (ours and wanted == ours.name.lower()):
            return ours
        models = await self.all()
        for model in models:
            if model.name.lower() == wanted:
                return model
        if self.any_name() and ours:
            return ours
        names = [model.name for model in models]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        there = f"There are: {', '.join(names[:MOST_NAMED])}{more}." if names else "There is none."
        raise Refused(404, f"There is no model “{name[:100]}”. {there}", "model_not_found")

    async def listed(self) -> dict[str, Any]:
        """As `/v1/models` has it, for OpenAI's clients and Anthropic's."""
        data = [as_json(model) for model in await self.all()]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return {"object": "list", "data": data, "has_more": False} | ends


def as_json(model: Model) -> dict[str, Any]:
    """One model, in the words of both dialects."""
    openai = {"id": model.name, "object": "model", "created": 0, "owned_by": "kvchat"}
    return openai | {"type": "model", "display_name": model.name, "created_at": "1970-01-01T00:00:00Z"}
