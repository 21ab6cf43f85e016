"""Tells one model from another by its content, so that a moved or renamed file keeps its save points."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from blake3 import blake3

from kvchat.library.gguf.facts import read_facts, unreadable
from kvchat.system.files import open_plain, stamp_of

FileStamps = tuple[tuple[int, int, int], ...]  # of each file: size, modification time in ns, inode

SAMPLES = 64
SAMPLE_BYTES = 64 * 1024
_HEADER_BYTES = 1024 * 1024  # read whole of a file whose header is not looked into


def model_identity(path: Path) -> str:
    """A BLAKE3 digest, in hex, of a model's sizes, its whole header and 64 evenly spaced samples of 64 KiB.

    Hashing all of a 16 GB model would keep the user waiting for its read from disk at every start. Samples are enough:
    another quantisation or architecture differs in size and header, and a fine-tune changes nearly every weight, so
    that it cannot agree with the original in all of 4 MiB spread over the file. The header is hashed whole because
    vocabulary, RoPE settings and chat template stand there. Raises NotAModel.
    """
    facts = read_facts(path)
    digest = blake3()
    try:
        for part in facts.parts:
            _add_part(digest, part, facts.header_size)
    except OSError as error:
        raise unreadable(path, error) from None
    return digest.hexdigest()


def file_identity(path: Path) -> str:
    """The same of a file that is no model by itself, such as a projector. Raises OSError."""
    digest = blake3()
    _add_part(digest, path, _HEADER_BYTES)
    return digest.hexdigest()


def _add_part(digest: blake3, path: Path, header_size: int) -> None:
    """Feed one file's size, first `header_size` bytes and samples into the digest."""
    with open_plain(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest.update(size.to_bytes(8, "little"))
        digest.update(file.read(header_size))
        for number in range(SAMPLES):
            # The last sample ends with the file, the first begins right after the header.
            first, last = header_size, max(header_size, size - SAMPLE_BYTES)
            file.seek(first + (last - first) * number // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))


def file_stamps(files: Sequence[Path]) -> FileStamps:
    """The stamp of each; zeros for one that is gone."""
    return tuple(stamp_of(file) for file in files)
