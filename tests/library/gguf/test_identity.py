from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.library.gguf.facts import NotAModel, model_identity, read_facts
from tests.library.gguf_files import write_gguf

BIG = 4_000_000  # weights: 16 MB, so that samples leave gaps


def test_a_moved_and_renamed_model_keeps_its_identity(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "one.gguf")
    before = model_identity(path)
    moved = path.rename(tmp_path / "another name.gguf")
    assert model_identity(moved) == before


def test_other_weights_throughout_are_another_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", weights=BIG)
    before, start = model_identity(path), read_facts(path).header_size
    content = bytearray(path.read_bytes())
    content[start::1000] = bytes((byte + 1) % 256 for byte in content[start::1000])  # a fine-tune changes far more
    path.write_bytes(content)
    assert model_identity(path) != before


@pytest.mark.parametrize("where", ["first", "last"])
def test_the_ends_of_the_weights_are_among_the_samples(tmp_path: Path, where: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", weights=BIG)
    before, start = model_identity(path), read_facts(path).header_size
    content = bytearray(path.read_bytes())
    content[start if where == "first" else -1] ^= 1
    path.write_bytes(content)
    assert model_identity(path) != before


def test_another_chat_template_or_length_is_another_model(tmp_path: Path) -> None:
    plain = model_identity(write_gguf(tmp_path / "a.gguf"))
    template = model_identity(write_gguf(tmp_path / "b.gguf", general={"tokenizer.chat_template": "{{ messages }}"}))
    longer = model_identity(write_gguf(tmp_path / "c.gguf", weights=1032))
    assert len({plain, template, longer}) == 3


def test_every_part_of_a_split_model_counts(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2))
    for part in (first, second):
        write_gguf(part, general={"split.count": 2})
    before = model_identity(first)
    second.write_bytes(second.read_bytes()[:-1] + b"\x55")
    assert model_identity(first) != before


def test_what_is_no_model_has_no_identity(tmp_path: Path) -> None:
    with pytest.raises(NotAModel):
        model_identity(tmp_path / "nothing.gguf")
