"""Models, search results and files as rows of a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.library.local.files import quantisation_in
from kvchat.library.memory.machine import MemoryFacts
from kvchat.library.memory.verdict import Judgement, Verdict, judge_size
from kvchat.library.model_library import JudgedModel
from kvchat.library.remote.hub import HubFile, HubModel
from kvchat.library.remote.starter import Suggestion
from kvchat.ui.base.building import left_to_right
from kvchat.ui.widgets.lists import Row, Tone
from kvchat.words.language import N_, _, beside, ended, number
from kvchat.words.wording import size, tokens_short

_TONES = {Verdict.FITS: Tone.GOOD, Verdict.TIGHT: Tone.WARN, Verdict.NO: Tone.BAD}
_CHIPS = {Verdict.FITS: N_("fits"), Verdict.TIGHT: N_("tight"), Verdict.NO: N_("does not fit")}


def found_row(one: JudgedModel, used: Path | None) -> Row:
    """A model on this computer. `used` is the one in use."""
    model, facts, path = one.model, one.model.facts, left_to_right(str(one.model.path))
    if facts is None or one.judgement is None:
        problem = model.problem or KvchatError(_("It cannot be used"))
        why = "\n".join(part for part in (problem.detail, problem.advice, path) if part)
        return Row(model.path, model.name, ended(problem.title), _("unusable"), Tone.BAD, why)
    context = _("{tokens} context", tokens=tokens_short(facts.trained_context))
    parts = [
        "" if quantisation_in(model.name) else facts.quantisation,
        size(model.size),
        context,
        _(model.source.value),
    ]
    parts += [_("can see or hear")] if model.projector else []
    chip, tone = (_("in use"), Tone.GOOD) if model.path == used else _chip(one.judgement)
    tip = [one.judgement.reason, path]
    return Row(model.path, model.name, beside(parts), chip, tone, "\n".join(tip))


def told_apart(models: Sequence[tuple[str, Path]]) -> list[str]:
    """The names of models; of those that are called alike, with the folder that one lies in, or else its file."""
    alike = Counter(name for name, _ in models)
    there = Counter((name, path.parent.name) for name, path in models)
    places = (path.parent.name if there[name, path.parent.name] == 1 else path.name for name, path in models)
    names = (name for name, _ in models)
    return [name if alike[name] == 1 else beside((name, place)) for name, place in zip(names, places, strict=True)]


def in_order(one: JudgedModel) -> tuple[bool, str, int]:
    """How models are sorted: those that cannot be used last, else by name and size."""
    return one.judgement is None, one.model.name.lower(), one.model.size


def suggestion_row(one: Suggestion, memory: MemoryFacts) -> Row:
    """A model worth trying."""
    judgement = judge_size(one.size, memory)
    words = _("{why} {quantisation}, about {size}.", why=_(one.why), quantisation=one.quantisation, size=size(one.size))
    return Row(one, one.repository, words, *_chip(judgement), judgement.reason)


def result_row(one: HubModel) -> Row:
    """A repository that a search has found."""
    parts = [
        _("{downloads} downloads a month", downloads=number(one.downloads)),
        _("{likes} likes", likes=number(one.likes)),
    ]
    parts += [_("updated {updated}", updated=f"{one.updated:%Y-%m-%d}")] if one.updated else []
    return Row(one, one.repository, beside(parts), _("asks who you are") if one.gated else "")


def file_row(file: HubFile, memory: MemoryFacts, *, here: bool) -> Row:
    """A model in a repository. `here`: it has been downloaded already."""
    judgement = judge_size(file.size, memory)
    words, parts = size(file.size), len(file.parts)
    if parts > 1:
        words = _("{size} in {count} files", size=words, count=parts)
    words = beside((words, _("can see or hear") if file.projector else ""))
    chip, tone = (_("on this computer"), Tone.GOOD) if here else _chip(judgement)
    return Row(file, file.name, words, chip, tone, judgement.reason)


def _chip(judgement: Judgement) -> tuple[str, Tone]:
    return _(_CHIPS[judgement.verdict]), _TONES[judgement.verdict]
