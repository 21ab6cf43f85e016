from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.engine_choice import EngineChoice, choose_engine
from kvchat.settings import Settings
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import LLAMA, write_gguf

LONG_ROPE = LLAMA | {"context_length": 131_072, "rope.scaling.original_context_length": 4096}


def chosen(folder: Path, fake: FakeEngine, fields: dict[str, object], context_size: int) -> EngineChoice:
    model = write_gguf(folder / "model.gguf", fields)
    settings = Settings(model_path=str(model), engine_path=str(fake.path), context_size=context_size)
    return choose_engine(settings, folder)


@pytest.mark.parametrize(("context_size", "rope"), [(2048, "short"), (4096, "short"), (4352, "long"), (8192, "long")])
def test_the_context_size_picks_the_rope_factors(
    tmp_path: Path, fake_engine: FakeEngine, context_size: int, rope: str
) -> None:
    choice = chosen(tmp_path, fake_engine, LONG_ROPE, context_size)
    assert choice.plan.context_size == context_size
    assert choice.fingerprint.rope == rope


def test_without_a_second_set_every_context_size_is_alike(tmp_path: Path, fake_engine: FakeEngine) -> None:
    short, long = (chosen(tmp_path, fake_engine, dict(LLAMA), size) for size in (2048, 4096))
    assert short.fingerprint == long.fingerprint
    assert short.fingerprint.rope == ""


def test_the_other_factors_are_another_fingerprint_and_said_in_words(tmp_path: Path, fake_engine: FakeEngine) -> None:
    short, long = (chosen(tmp_path, fake_engine, LONG_ROPE, size) for size in (4096, 8192))
    words = ["context size, which changes how this model counts positions"]
    assert short.fingerprint.differences(long.fingerprint) == words
