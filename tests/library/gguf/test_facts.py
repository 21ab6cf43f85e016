import contextlib
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.library.gguf.facts import model_identity, read_facts
from kvchat.library.gguf.kv_cache import kv_bytes, kv_bytes_per_token
from kvchat.library.gguf.parser import TENSOR_TYPES, NotAModel, read_header
from tests.library.gguf_files import LLAMA, write_gguf
from tests.systems import ONLINE_ONLY, WINDOWS, make_online_only


def test_smollm2_facts(smollm2: Path) -> None:
    facts = read_facts(smollm2)
    assert (facts.architecture, facts.name) == ("llama", "Smollm2 135M 8k Lc100K Mix1 Ep2")
    assert (facts.quantisation, facts.size, len(facts.parts)) == ("Q4_1", smollm2.stat().st_size, 1)
    assert (facts.trained_context, facts.block_count, facts.embedding_length) == (8192, 30, 576)
    assert (facts.heads, facts.key_length, facts.value_length, facts.original_context) == (9, 64, 64, 0)
    assert [layer.keys for layer in facts.kv.layers] == [3 * 64] * 30
    assert (facts.kv.window, facts.kv.is_recurrent) == (0, False)
    assert kv_bytes(facts.kv, 8192) == 23_040 * 8192
    assert kv_bytes_per_token(facts.kv, "q8_0", "q8_0") == 23_040 / 2 * 34 / 32
    assert kv_bytes_per_token(facts.kv, "f32", "q4_0") == 30 * 3 * 64 * (4 + 18 / 32)
    with pytest.raises(ValueError, match="q3_5"):
        kv_bytes_per_token(facts.kv, "q3_5")
    started = time.process_time()
    read_header(smollm2)
    assert time.process_time() - started < 0.3, "a real vocabulary is skipped quickly"


@pytest.mark.slow
def test_header_agrees_with_llama_cpp(tiny_model: Callable[[str], Path]) -> None:
    path = tiny_model("llama")
    header, reference = read_header(path), gguf.GGUFReader(path)
    assert header.data_offset == reference.data_offset
    for ours, theirs in zip(header.tensors, reference.tensors, strict=True):
        assert (ours.name, ours.shape, ours.bytes) == (theirs.name, tuple(theirs.shape), theirs.n_bytes)
    keys = {key for key in reference.fields if not key.startswith("GGUF.")}
    assert keys >= set(header.values), "long arrays are skipped"
    for key in header.values:
        theirs = reference.fields[key].contents()
        assert header.values[key] == (tuple(theirs) if isinstance(theirs, list) else theirs), key


def test_type_tables_agree_with_llama_cpp(tmp_path: Path) -> None:
    for tensor_type, (per_block, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        assert TENSOR_TYPES[tensor_type.value] == (tensor_type.name, per_block, block_bytes)
    for kind in set(gguf.LlamaFileType) - {gguf.LlamaFileType.GUESSED}:
        path = write_gguf(tmp_path / "model.gguf", general={"general.file_type": kind.value})
        name = kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        assert read_facts(path).quantisation == name.replace("MXFP4_MOE", "MXFP4")


def test_missing_fields_and_per_layer_lists(tmp_path: Path) -> None:
    fields = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
    path = write_gguf(tmp_path / "odd.gguf", fields | {"attention.head_count_kv": [2, 0, 1, 0]}, tokens=5000)
    facts = read_facts(path)
    assert facts.name == "odd"
    assert facts.quantisation == "F32", "the commonest tensor type"
    assert [layer.keys // 16 for layer in facts.kv.layers] == [2, 0, 1, 0]
    assert facts.key_length == facts.value_length == 16


def refusal(path: Path) -> NotAModel:
    with pytest.raises(NotAModel) as caught:
        read_facts(path)
    assert caught.value.title
    return caught.value


def test_files_that_are_not_gguf_truncated_or_hostile(tmp_path: Path) -> None:
    assert "missing" in refusal(tmp_path / "nothing.gguf").title
    assert "folder" in refusal(tmp_path).title
    path = write_gguf(tmp_path / "model.gguf", tokens=200)
    whole = path.read_bytes()
    for kept in (0, 0.02, 0.5, 0.999):
        path.write_bytes(whole[: int(len(whole) * kept)])
        assert "ends before the last weights" in refusal(path).detail
    for content, words in (
        (b"\x89PNG" + bytes(1000), "not a GGUF"),
        (b"<!doctype html><title>Log in to download</title>", "not a GGUF"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), "version"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(64), "string too long"),
    ):
        path.write_bytes(content)
        assert words in str(refusal(path))
    assert ("missing" if WINDOWS else "cannot be read") in refusal(path / "below.gguf").title


@pytest.mark.parametrize("mark", ONLINE_ONLY)
def test_file_stored_online_only_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: tuple[str, int]
) -> None:
    path = write_gguf(tmp_path / "cloud.gguf")
    make_online_only(monkeypatch, path, mark)
    assert "stored online only" in refusal(path).title


def test_files_that_are_not_chat_models(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    for kind, words in (("mmproj", "image"), ("adapter", "LoRA"), ("imatrix", "importance")):
        assert words in refusal(write_gguf(path, general={"general.type": kind})).title
    assert "image" in refusal(write_gguf(path, architecture="clip", fields={})).title
    assert "embedding" in refusal(write_gguf(path, architecture="nomic-bert")).title
    assert "embedding" in refusal(write_gguf(path, LLAMA | {"pooling_type": 3}, architecture="qwen3")).title
    assert "not a language model" in refusal(write_gguf(path, architecture="flux", fields={})).title


def split(folder: Path, count: int) -> list[Path]:
    return [
        write_gguf(folder / f"big-{number:05}-of-{count:05}.gguf", general={"split.count": count})
        for number in range(1, count + 1)
    ]


def test_split_model_is_read_by_its_first_part_and_cached_until_a_file_changes(tmp_path: Path) -> None:
    parts = split(tmp_path, 3)
    facts = read_facts(parts[0])
    assert read_facts(parts[0]) is facts
    assert facts.parts == tuple(parts)
    assert facts.size == sum(part.stat().st_size for part in parts)
    assert parts[0].name in refusal(parts[1]).advice
    os.utime(parts[1], ns=(0, 0))
    assert read_facts(parts[0]) is not facts
    parts[2].unlink()
    assert "missing" in refusal(parts[0]).title
    assert "one part" in refusal(parts[0].rename(tmp_path / "renamed.gguf")).title


@pytest.mark.slow
@settings(max_examples=200)
@given(position=st.integers(4, 1200), value=st.integers(0, 255))
def test_damaged_byte_is_read_or_refused(position: int, value: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / "damaged.gguf"
    damaged = bytearray(write_gguf(path, LLAMA | {"attention.head_count_kv": [2, 2, 2, 2]}, tokens=20).read_bytes())
    damaged[position % len(damaged)] = value
    path.write_bytes(damaged)
    with contextlib.suppress(NotAModel):  # any other exception, or a read that never ends, fails the test
        assert kv_bytes_per_token(read_facts(path).kv) >= 0


BIG = 4_000_000  # weights: 16 MB, so that samples leave gaps


def test_identity_covers_weights_header_and_all_parts_but_not_names(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", weights=BIG)
    whole, start = path.read_bytes(), read_facts(path).header_size
    identities = {model_identity(path)}
    for places in ([start], [len(whole) - 1], range(start, len(whole), 1000)):
        content = bytearray(whole)
        for place in places:
            content[place] ^= 1
        path.write_bytes(content)
        identities.add(model_identity(path))
    template = {"tokenizer.chat_template": "{{ messages }}"}
    identities.add(model_identity(write_gguf(path, general=template, weights=BIG)))
    assert len(identities) == 5
    first, second = split(tmp_path, 2)
    before = model_identity(first)
    for part in (first, second):
        part.rename(tmp_path / part.name.replace("big", "renamed"))
    first, second = (tmp_path / part.name.replace("big", "renamed") for part in (first, second))
    assert model_identity(first) == before
    second.write_bytes(second.read_bytes()[:-1] + b"\x55")
    assert model_identity(first) != before
