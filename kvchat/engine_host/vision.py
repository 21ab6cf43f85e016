"""Whether a model can be shown pictures: the projector that belongs to it, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.library.local.files import display_name, projector_of

_OWN = frozenset(("-mm", "--mmproj", "-mmu", "--mmproj-url"))  # the user's own arguments that load one


class CannotSee(KvchatError):
    """Pictures cannot be shown to the model in use."""

    def __init__(self, model: str, why: str = "", advice: str = "") -> None:
        super().__init__(
            f"{model} cannot see pictures",
            why or "The file it sees with (it has “mmproj” in its name) does not lie beside it.",
            advice or "Choose a model that can see. If this one can, download it again: that file comes with it.",
        )


def find_projector(model: Path, extra: Sequence[str]) -> Path | None:
    """The projector to load with a model, None where the user's arguments load one. Raises CannotSee."""
    if any(word in _OWN for word in extra):
        return None
    projector = projector_of(model)
    if projector is None:
        raise CannotSee(display_name(model))
    return projector
