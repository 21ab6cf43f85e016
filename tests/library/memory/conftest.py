from pathlib import Path

import pytest

from kvchat.library.gguf.facts import GgufFacts
from tests.library.gguf_files import llama_8b


@pytest.fixture
def large(tmp_path: Path) -> GgufFacts:
    return llama_8b(tmp_path)
