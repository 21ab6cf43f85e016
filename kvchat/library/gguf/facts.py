"""Properties of a model file, from its GGUF header."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from blake3 import blake3

from kvchat.library.gguf.kv_cache import KvLayout, head_lengths, kv_layout
from kvchat.library.gguf.parser import TENSOR_TYPES, GgufHeader, NotAModel, read_header, unreadable
from kvchat.library.gguf.template_options import template_variables
from kvchat.system.files import file_stamp, open_regular_file
from kvchat.text.language import N_, _

# Names of the values of llama_ftype (include/llama.h in llama.cpp), as in file names.
_FILE_TYPES = (
    "0:F32 1:F16 2:Q4_0 3:Q4_1 7:Q8_0 8:Q5_0 9:Q5_1 10:Q2_K 11:Q3_K_S 12:Q3_K_M 13:Q3_K_L 14:Q4_K_S "
    "15:Q4_K_M 16:Q5_K_S 17:Q5_K_M 18:Q6_K 19:IQ2_XXS 20:IQ2_XS 21:Q2_K_S 22:IQ3_XS 23:IQ3_XXS 24:IQ1_S "
    "25:IQ4_NL 26:IQ3_S 27:IQ3_M 28:IQ2_S 29:IQ2_M 30:IQ4_XS 31:IQ1_M 32:BF16 36:TQ1_0 37:TQ2_0 38:MXFP4 "
    "39:NVFP4 40:Q1_0"
)
FILE_TYPES = {int(number): name for number, name in (entry.split(":") for entry in _FILE_TYPES.split())}
MAX_BLOCKS = 4096  # more layers than any model has; bounds the lists of a damaged header
_COMPANION_FILES = {
    "adapter": N_("This is a LoRA adapter, not a model"),
    "imatrix": N_("This is an importance matrix, not a model"),
}
_LAYER_TENSOR = re.compile(r"blk\.(?P<layer>\d{1,9})\.")

_EMBEDDING_POOLINGS = (1, 2, 3)  # llama_pooling_type of models that return one vector per text

FileStamps = tuple[tuple[int, int, int], ...]  # per file: size, modification time in ns, inode


class EmbeddingModel(NotAModel):
    def __init__(self, architecture: str, trained_context: int) -> None:
        self.architecture, self.trained_context = architecture, trained_context
        super().__init__(
            _("This is an embedding model"),
            _("It cannot chat. kvchat uses it to find passages in long documents."),
            _("Choose a chat model."),
        )


@dataclass(frozen=True)
class Weights:
    """Sizes in bytes of a model's tensors, grouped by the memory that holds them."""

    layer_bytes: int
    embedding_bytes: int  # always in main memory
    output_bytes: int  # on the device of the last layer
    output_is_embedding: bool  # the GPU that computes the output then has a copy of the embedding


@dataclass(frozen=True)
class GgufFacts:
    """Properties of a model file. Lengths are numbers of values, contexts are in tokens, sizes in bytes."""

    path: Path
    architecture: str
    name: str
    quantisation: str  # e.g. "Q4_K_M"
    size: int  # of all parts
    trained_context: int
    original_context: int  # before RoPE scaling, 0 if unknown; a longer context changes the keys
    block_count: int
    embedding_length: int
    inner_length: int  # values per token inside a layer: feed-forward, active experts, recurrent part
    heads: int
    key_length: int
    value_length: int
    kv: KvLayout
    weights: Weights
    parts: tuple[Path, ...]  # more than one for a split model
    header_size: int
    has_sampling_defaults: bool = False  # the file sets sampling defaults, which the engine uses
    template_variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # known options and their values


def read_facts(path: Path) -> GgufFacts:
    """Read the properties of a model and check that its files are complete. Raises NotAModel.

    Pass the first part of a split model. Results are cached until a file changes.
    """
    part = part_name(path.name)
    return _read_facts(path, file_stamps([path.with_name(name) for name in part.all_names] if part else [path]))


@lru_cache(maxsize=1000)
def _read_facts(path: Path, _stamps: FileStamps) -> GgufFacts:
    header = read_header(path)
    _check_kind(header)
    parts = _parts(path, header)
    headers = [header, *(read_header(part) for part in parts[1:])]
    general = header.fields("general")
    fields = header.fields(general.text("architecture"))
    blocks = fields.number("block_count")
    key_length, value_length = head_lengths(fields)
    experts = fields.number("expert_used_count") * fields.number("expert_feed_forward_length")
    type_bytes: Counter[int] = Counter()
    for tensor in header.tensors:
        type_bytes[tensor.type] += tensor.bytes
    commonest_type = max(type_bytes, key=type_bytes.__getitem__, default=-1)
    type_name = TENSOR_TYPES[commonest_type][0] if commonest_type in TENSOR_TYPES else "unknown"
    return GgufFacts(
        path=path,
        architecture=fields.prefix,
        name=general.text("name") or path.stem,
        quantisation=FILE_TYPES.get(general.number("file_type", -1)) or type_name,
        size=sum(part.stat().st_size for part in parts),
        trained_context=fields.number("context_length"),
        original_context=fields.number("rope.scaling.original_context_length"),
        block_count=blocks,
        embedding_length=fields.number("embedding_length"),
        inner_length=max(fields.number("feed_forward_length"), experts) + fields.number("ssm.inner_size"),
        heads=fields.number("attention.head_count"),
        key_length=key_length,
        value_length=value_length,
        kv=kv_layout(fields),
        weights=_weights(headers, blocks),
        parts=parts,
        header_size=header.data_offset,
        has_sampling_defaults=any(name.startswith("general.sampling.") for name in header.values),
        template_variables=template_variables(header.fields("tokenizer").text("chat_template")),
    )


def _check_kind(header: GgufHeader) -> None:
    kind, architecture = header.fields("general").text("type"), header.fields("general").text("architecture")
    fields = header.fields(architecture)
    if kind == "mmproj" or architecture == "clip":
        raise NotAModel(
            _("This file only adds image or audio input to a model"),
            _("It is a multimodal projector (mmproj)."),
            _("Choose the model file that came with it."),
        )
    if kind in _COMPANION_FILES:
        raise NotAModel(_(_COMPANION_FILES[kind]), "", _("Choose the model it was made for."))
    if not architecture or not fields.number("context_length"):
        raise NotAModel(
            _("This is not a language model"),
            _("The GGUF file does not specify an architecture and a context length."),
            _("Choose a text model."),
        )
    nonsense = ""
    if not 0 < fields.number("block_count") <= MAX_BLOCKS:
        nonsense = _("Its number of layers is invalid.")
    elif any(count < 0 for count in fields.per_layer("attention.head_count_kv", MAX_BLOCKS)):
        nonsense = _("Its number of attention heads is invalid.")
    if nonsense:
        raise NotAModel(_("This is not a GGUF model"), nonsense, _("Download it again."))
    if fields.number("pooling_type") in _EMBEDDING_POOLINGS:
        raise EmbeddingModel(architecture, fields.number("context_length"))
    if "bert" in architecture or architecture in ("t5encoder", "gemma-embedding"):  # e.g. a reranker
        raise NotAModel(_("This is an embedding model"), "", _("Choose a chat model."))


def _parts(path: Path, header: GgufHeader) -> tuple[Path, ...]:
    """Return all files of the model whose first file is `path`. Raises NotAModel for a later part."""
    count = header.fields("split").number("count")
    if count < 2:
        return (path,)
    part = part_name(path.name)
    if part is None or part.count != count:
        raise NotAModel(
            _("This file is one part of a model"),
            _("{name} is one of {count} parts, but its name does not say which one.", name=path.name, count=count),
            _("Restore the original file names."),
        )
    if part.number != 1:
        raise NotAModel(
            _("This is a later part of a split model"),
            path.name,
            _("Choose the first part, {all_names}.", all_names=part.all_names[0]),
        )
    return (path, *(path.with_name(name) for name in part.all_names[1:]))


def _weights(headers: Sequence[GgufHeader], blocks: int) -> Weights:
    """Add up the tensor sizes by the memory in which llama.cpp puts the tensors (llama_model_base::load_tensors)."""
    layers = embedding = output = 0
    for tensor in (tensor for header in headers for tensor in header.tensors):
        match = _LAYER_TENSOR.match(tensor.name)
        if match and int(match["layer"]) < blocks:
            layers += tensor.bytes
        elif tensor.name == "token_embd.weight":
            embedding += tensor.bytes
        else:
            output += tensor.bytes
    has_output = any(tensor.name == "output.weight" for header in headers for tensor in header.tensors)
    return Weights(layers, embedding, output, output_is_embedding=not has_output)


# `name-00001-of-00003.gguf`, as llama-gguf-split writes them.
_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True)
class PartName:
    """Name of one file of a split model. Numbers start at 1."""

    stem: str
    number: int
    count: int

    @property
    def all_names(self) -> tuple[str, ...]:
        return tuple(f"{self.stem}-{number:05}-of-{self.count:05}.gguf" for number in range(1, self.count + 1))


def part_name(name: str) -> PartName | None:
    """Parse the name of a part of a split model. Return None for the name of a whole model."""
    match = _PART_NAME.fullmatch(name)
    return PartName(match["stem"], int(match["number"]), int(match["count"])) if match else None


SAMPLE_COUNT = 64
SAMPLE_BYTES = 64 * 1024
_HEADER_BYTES = 1024 * 1024  # hashed as a whole in files that are not parsed


def model_identity(path: Path) -> str:
    """Return a BLAKE3 digest, in hex, of a model's header, sizes and 64 evenly spaced samples of 64 KiB per file.

    Hashing a whole 16 GB model would delay every start. The samples suffice: another quantisation or architecture
    differs in size and header, and a fine-tune changes nearly every weight, so some of the 4 MiB differ. The header
    has the vocabulary, RoPE settings and chat template. Cached until a file changes. Raises NotAModel.
    """
    facts = read_facts(path)
    try:
        files = [part.stat() for part in facts.parts]
        stamps = tuple((file.st_size, file.st_mtime_ns, file.st_ctime_ns, file.st_ino) for file in files)
        return _identity(facts.parts, facts.header_size, stamps)
    except OSError as error:
        raise unreadable(path, error) from None


@lru_cache(maxsize=1000)
def _identity(parts: tuple[Path, ...], header_size: int, _stamps: tuple[tuple[int, ...], ...]) -> str:
    digest = blake3()
    for part in parts:
        _add_part(digest, part, header_size)
    return digest.hexdigest()


def file_identity(path: Path) -> str:
    """Return the same kind of digest for a file that is not a model, such as a projector. Raises OSError."""
    digest = blake3()
    _add_part(digest, path, _HEADER_BYTES)
    return digest.hexdigest()


def _add_part(digest: blake3, path: Path, header_size: int) -> None:
    with open_regular_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest.update(size.to_bytes(8, "little"))
        digest.update(file.read(header_size))
        for number in range(SAMPLE_COUNT):
            # The first sample starts after the header; the last ends with the file.
            first, last = header_size, max(header_size, size - SAMPLE_BYTES)
            file.seek(first + (last - first) * number // (SAMPLE_COUNT - 1))
            digest.update(file.read(SAMPLE_BYTES))


def file_stamps(files: Iterable[Path]) -> FileStamps:
    return tuple(file_stamp(file) for file in files)
