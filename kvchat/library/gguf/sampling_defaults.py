"""How replies are drawn where nobody says: as the model's author wishes, else so that small models do not loop."""

from __future__ import annotations

from kvchat.engine.speaking.wire import ENGINE_DEFAULTS, Sampling
from kvchat.library.gguf.facts import GgufFacts

SMALL_MODEL = 1_500_000_000  # bytes of weights

# Ten replies of 400 tokens by the starter model (SmolLM2-135M, 5 questions, 2 seeds, b11434): at the engine's defaults
# 2 of 10 fell into a loop, at its author's temperature 0.2 and top-p 0.9 6 of 10, with these none.
OF_SMALL_MODELS = Sampling(temperature=0.7, repeat_penalty=1.1)
OF_OTHERS = Sampling(temperature=0.7)


def recommended_sampling(facts: GgufFacts) -> Sampling:
    """What to draw with. The engine itself heeds a GGUF's `general.sampling.*`, which then stands."""
    if facts.names_sampling:
        return ENGINE_DEFAULTS
    return OF_SMALL_MODELS if facts.size < SMALL_MODEL else OF_OTHERS
