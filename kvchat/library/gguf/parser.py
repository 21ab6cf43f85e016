"""Parser for a GGUF file's header: its key/value pairs and tensor list, never the weights.

Written by hand because the `gguf` package's GGUFReader turns every vocabulary entry into a numpy array (2.2 s for
the 49,152 tokens of SmolLM2, measured), while skipping the big arrays takes a few hundredths of a second.
Format: docs/gguf.md in ggml-org/ggml, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kvchat.errors import KvchatError
from kvchat.system.files import NotAFile, is_online_only, open_regular_file
from kvchat.text.language import _

HEADER_LIMIT = 512 * 1024 * 1024  # bytes; the largest known headers have about 30 MB
MAX_KEPT_ARRAY_LENGTH = 4096  # longer numeric arrays are skipped; per-layer lists are far shorter
STRING_LIMIT = 16 * 1024 * 1024  # bytes; chat templates are well under 1 MB
DEFAULT_ALIGNMENT = 32
FIRST_READ_BYTES = 1024 * 1024

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]

_STRING, _ARRAY = 8, 9
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALARS = {kind: struct.Struct(f"<{code}") for kind, code in _CODES.items()}
_U32, _U64 = _SCALARS[4], _SCALARS[10]

_TENSOR_TYPES = (
    "0:F32:1:4 1:F16:1:2 2:Q4_0:32:18 3:Q4_1:32:20 6:Q5_0:32:22 7:Q5_1:32:24 8:Q8_0:32:34 9:Q8_1:32:40 "
    "10:Q2_K:256:84 11:Q3_K:256:110 12:Q4_K:256:144 13:Q5_K:256:176 14:Q6_K:256:210 15:Q8_K:256:292 "
    "16:IQ2_XXS:256:66 17:IQ2_XS:256:74 18:IQ3_XXS:256:98 19:IQ1_S:256:50 20:IQ4_NL:32:18 21:IQ3_S:256:110 "
    "22:IQ2_S:256:82 23:IQ4_XS:256:136 24:I8:1:1 25:I16:1:2 26:I32:1:4 27:I64:1:8 28:F64:1:8 29:IQ1_M:256:56 "
    "30:BF16:1:2 34:TQ1_0:256:54 35:TQ2_0:256:66 39:MXFP4:32:17 40:NVFP4:64:36 41:Q1_0:128:18"
)
TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    int(kind): (name, int(weights), int(size))
    for kind, name, weights, size in (entry.split(":") for entry in _TENSOR_TYPES.split())
}


class NotAModel(KvchatError):
    """The file is not a GGUF chat model. The message says what is wrong with it."""


class ModelFileMissing(NotAModel):
    def __init__(self, path: Path) -> None:
        super().__init__(
            _("The model file is missing"), str(path), _("The file may have been moved. Choose the model again.")
        )


class _BadHeader(ValueError):
    """The header is invalid. The message is a few technical words."""


class _TruncatedFileError(ValueError):
    """The file is shorter than its header says."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor in the header. `offset` is in bytes from the start of the tensor data."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def bytes(self) -> int:
        """Size of the data in the file; 0 for an unknown type."""
        if self.type not in TENSOR_TYPES:
            return 0
        _name, per_block, block_bytes = TENSOR_TYPES[self.type]
        return math.prod(self.shape) // per_block * block_bytes


@dataclass(frozen=True)
class GgufFields:
    """The values of a header whose keys start with one prefix, such as "llama".

    `number("block_count")` then reads `llama.block_count`.
    """

    values: Mapping[str, Value]
    prefix: str

    def text(self, key: str) -> str:
        value = self.values.get(f"{self.prefix}.{key}")
        return value if isinstance(value, str) else ""

    def number(self, key: str, default: int = 0) -> int:
        value = self.values.get(f"{self.prefix}.{key}")
        if isinstance(value, tuple):
            return max((entry for entry in value if isinstance(entry, int)), default=default)
        return value if isinstance(value, int) else default

    def has(self, key: str) -> bool:
        return f"{self.prefix}.{key}" in self.values

    def numbers(self, key: str) -> tuple[int, ...] | None:
        value = self.values.get(f"{self.prefix}.{key}")
        return tuple(item if isinstance(item, int) else 0 for item in value) if isinstance(value, tuple) else None

    def per_layer(self, key: str, layers: int, default: int = 0) -> tuple[int, ...]:
        """Return a number for each layer. A list that is too short is filled up with its largest number."""
        numbers = self.numbers(key)
        if numbers is None:
            return (self.number(key, default),) * layers
        return numbers[:layers] + (max(numbers, default=default),) * (layers - len(numbers))


@dataclass(frozen=True)
class GgufHeader:
    """The header of a GGUF file, without long arrays such as the vocabulary."""

    values: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    data_offset: int  # bytes from the start of the file to the first tensor

    def fields(self, prefix: str) -> GgufFields:
        return GgufFields(self.values, prefix)


def read_header(path: Path) -> GgufHeader:
    """Read the header and check that the file is long enough for its tensors. Raises NotAModel."""
    try:
        status = path.stat()
        if is_online_only(status):
            raise NotAModel(
                _("The model file is stored online only"),
                _("{path} is in OneDrive, iCloud or similar storage, but not on this computer.", path=path),
                _("Keep the file on this device (in the menu of your file manager), then try again."),
            )
        size = status.st_size
        with open_regular_file(path) as file:
            header = _parse(_Reader(file, size), path)
        if header.data_offset + max((tensor.offset + tensor.bytes for tensor in header.tensors), default=0) <= size:
            return header
    except FileNotFoundError:
        raise ModelFileMissing(path) from None
    except _TruncatedFileError:
        pass
    except _BadHeader as error:
        advice = _("Choose a file in llama.cpp's GGUF format.")
        raise NotAModel(_("This is not a GGUF model"), f"{path}: {error}.", advice) from None
    except NotAFile as error:
        advice = _("Choose a file whose name ends in .gguf.")
        raise NotAModel(_("This is {kind}, not a model", kind=error.kind), str(path), advice) from None
    except OSError as error:
        raise unreadable(path, error) from None
    raise NotAModel(
        _("The model file is incomplete"),
        _("{path} ends before the last weights. The download may be incomplete.", path=path),
        _("Download the model again, or wait until the download finishes."),
    )


def unreadable(path: Path, error: OSError) -> NotAModel:
    return NotAModel(
        _("The model file cannot be read"), f"{path}: {error.strerror}", _("Check its permissions and its disk.")
    )


def _parse(reader: _Reader, path: Path) -> GgufHeader:
    if reader.read(4) != b"GGUF":
        raise _BadHeader("no GGUF magic")
    version = reader.number(_U32)
    if version in (2 << 24, 3 << 24):
        advice = _("Choose the little-endian GGUF file of this model.")
        raise NotAModel(_("This model is for big-endian machines"), str(path), advice)
    if version not in (2, 3):
        raise NotAModel(
            _("This GGUF version is not supported"),
            _("{path} is GGUF version {version}; kvchat supports versions 2 and 3.", path=path, version=version),
            _("Look for a newer GGUF file of this model."),
        )
    n_tensors, n_values = reader.number(_U64), reader.number(_U64)
    values: dict[str, Value] = {}
    for _index in range(n_values):
        key, kind = reader.string(), reader.number(_U32)
        if kind != _ARRAY:
            values[key] = reader.scalar(kind)
            continue
        element, length = reader.number(_U32), reader.number(_U64)
        if element == _STRING:
            reader.skip_strings(length)
        elif element not in _SCALARS:
            raise _BadHeader(f"unknown array type {element}")
        elif length <= MAX_KEPT_ARRAY_LENGTH:
            values[key] = tuple(reader.scalar(element) for _index in range(length))
        else:
            reader.skip(length * _SCALARS[element].size)
    tensors = []
    for _index in range(n_tensors):
        name, n_dimensions = reader.string(), reader.number(_U32)
        if n_dimensions > 8:  # ggml allows 4
            raise _BadHeader("bad tensor shape")
        shape = tuple(reader.number(_U64) for _index in range(n_dimensions))
        tensors.append(TensorInfo(name, shape, reader.number(_U32), reader.number(_U64)))
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise _BadHeader("bad alignment")
    return GgufHeader(values, tuple(tensors), -(-reader.position // alignment) * alignment)


class _Reader:
    """Sequential reader that stops at the end of the file and at HEADER_LIMIT, however large a length field is."""

    def __init__(self, file: BinaryIO, file_size: int) -> None:
        self._file, self._file_size = file, file_size
        self._buffer = bytearray()
        self.position = 0

    def skip(self, n: int) -> None:
        self._fill(self.position + n)
        self.position += n

    def read(self, n: int) -> bytes:
        self.skip(n)
        return bytes(self._buffer[self.position - n : self.position])

    def number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self.read(layout.size))[0]

    def string(self) -> str:
        length = self.number(_U64)
        if length > STRING_LIMIT:
            raise _BadHeader("string too long")
        return self.read(length).decode("utf-8", "replace")

    def scalar(self, kind: int) -> Scalar:
        if kind == _STRING:
            return self.string()
        if kind not in _SCALARS:
            raise _BadHeader(f"unknown value type {kind}")
        value: Scalar = self.number(_SCALARS[kind])
        return value

    def skip_strings(self, count: int) -> None:
        """Skip `count` strings. The loop uses local variables for speed: a vocabulary has hundreds of thousands."""
        position, buffer, length_at = self.position, self._buffer, _U64.unpack_from
        for _index in range(count):
            if position + 8 > len(buffer):
                self._fill(position + 8)
            position += 8 + length_at(buffer, position)[0]
        self._fill(position)
        self.position = position

    def _fill(self, end: int) -> None:
        if end > self._file_size:
            raise _TruncatedFileError
        if end > HEADER_LIMIT:
            raise _BadHeader("header too long")
        while len(self._buffer) < end:
            more = self._file.read(max(FIRST_READ_BYTES, len(self._buffer), end - len(self._buffer)))
            if not more:
                raise _TruncatedFileError
            self._buffer += more
