"""Why a program's prompt was read again, and what mends it. No input or output, no Qt: values go in, values come out.

A prompt is reused as far as it is equal to one before it. `recent.py` keeps the last ones of each program (in memory
alone, and bounded), `partings.py` finds the closest and where both part, `causes.py` says why, by the part of
the request's body (`body.py`) that stands there. Known breakers are mended before the prompt is rendered, each by a
rule of `rules.py`, off until it is switched on: it changes its place in the body's text (`located.py`) and nothing
else, byte for byte, and both texts are told. Nothing of a prompt is ever written to disk here.
"""

from kvchat.gateway.medicine.causes import MENDED_BY
from kvchat.gateway.medicine.medicine import Medicine, Treated
from kvchat.gateway.medicine.partings import Parting, Prompt
from kvchat.gateway.medicine.rules import RULES, Change, Rule

__all__ = ["MENDED_BY", "RULES", "Change", "Medicine", "Parting", "Prompt", "Rule", "Treated"]
