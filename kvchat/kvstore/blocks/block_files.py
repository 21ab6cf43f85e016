"""Block files, named by the BLAKE3 of their content. After a crash, a block is either complete or absent.

Blocks of rows are uncompressed; blocks of residue, the rest of a slot file, may be deflated.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash
from blake3 import blake3

from kvchat.kvstore import disk
from kvchat.kvstore.blocks.recipe import RESIDUE_CHUNK_BYTES, BlockUse
from kvchat.system.files import replace_file

_NAME = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = "temporary"
# Bytes per write call. For large writes Linux must find large pages first; small pages come from a free list. On ext4
# (6.18, a busy virtual machine) this is 3 to 6 times as fast as 1 MiB at once; on tmpfs it is the same.
_WRITE_BYTES = 1 << 15
_RAW, _DEFLATED = b"\0", b"\1"  # first byte of a residue block
_SAMPLE_BYTES = 1 << 16
_MAX_DEFLATED_RATIO = 0.8


class FileChanged(Exception):
    """A slot file changed before or while it was split into blocks."""


class DamagedBlock(Exception):
    """A block that is missing, truncated or does not match its name."""


@dataclass(frozen=True)
class WrittenBlock:
    """A block that was written to a temporary file and must be committed."""

    name: bytes
    xxh3: bytes
    size: int
    temporary: Path | None  # path of the temporary file, or None if the block already exists


class BlockFiles:
    """The folder of block files `<first 2 hex digits>/<64 hex digits>`. All methods raise OSError."""

    def __init__(self, folder: Path, *, sync: bool = True) -> None:
        """With `sync=False`, blocks are not flushed to disk, and a power failure may lose save points."""
        self.folder = disk.private_folder(folder)
        self._temporary = disk.private_folder(folder / _TEMPORARY)
        self.sync = sync
        self.new_block_sizes: dict[bytes, int] = {}  # disk bytes of blocks in no recipe yet

    def path(self, block: bytes) -> Path:
        name = block.hex()
        return self.folder / name[:2] / name

    def disk_usage(self, block: bytes, size: int | None = None) -> int | None:
        """Return the block's disk usage, or None if it does not exist or its size is not `size`."""
        try:
            status = self.path(block).stat()
        except FileNotFoundError:
            return None
        return disk.disk_usage(status) if size in (None, status.st_size) else None

    def disk_usages(self, sizes: Mapping[bytes, int]) -> dict[bytes, int] | None:
        """Return the disk usage of each block, or None if a block is missing or its size differs from `sizes`."""
        on_disk: dict[bytes, int] = {}
        for block, size in sizes.items():
            is_found = self.disk_usage(block, size)
            if is_found is None:
                return None
            on_disk[block] = is_found
        return on_disk

    def forget_new_blocks(self, blocks: Iterable[bytes]) -> None:
        for block in blocks:
            self.new_block_sizes.pop(block, None)

    def write(self, content: Iterable[bytes | memoryview]) -> WrittenBlock:
        """Write a block to a temporary file for `commit`. If the block already exists, delete the temporary file."""
        temporary = disk.private_folder(self._temporary) / disk.temporary_name()
        name, xxh3, size = blake3(), xxhash.xxh3_128(), 0
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
                for part in content:
                    name.update(part)
                    xxh3.update(part)
                    view = memoryview(part)
                    while view:
                        view = view[os.write(file.fileno(), view[:_WRITE_BYTES]) :]
                    size += len(part)
            written = WrittenBlock(name.digest(), xxh3.digest(), size, temporary)
            if self.disk_usage(written.name, size) is None:
                return written
            temporary.unlink()
            return replace(written, temporary=None)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def commit(self, block: WrittenBlock) -> int:
        """Flush the temporary file and rename it to the block's name; return the bytes written."""
        if block.temporary is None:
            return 0
        try:
            if self.sync:
                with block.temporary.open("rb+", buffering=0) as file:
                    os.fsync(file.fileno())
            path = self.path(block.name)
            if not path.parent.is_dir():
                disk.private_folder(path.parent)
            replace_file(block.temporary, path)
            self.new_block_sizes[block.name] = disk.disk_usage(path.stat())
        except BaseException:
            self.discard(block)
            raise
        return block.size

    def discard(self, block: WrittenBlock) -> None:
        if block.temporary is not None:
            with contextlib.suppress(OSError):
                block.temporary.unlink(missing_ok=True)

    def find_fault(self, block: bytes, size: int) -> str | None:
        """Read the whole block; return a description of its fault, or None if it is intact."""
        path = self.path(block)
        try:
            actual = path.stat().st_size
            if actual != size:
                return "truncated" if actual < size else "the file became longer"
            return None if disk.hash_file(path) == block.hex() else "hash differs"
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            return f"read error: {error.strerror}"

    def overhead_bytes(self) -> int:
        """Return the disk usage of folders and temporary files in bytes."""
        total = sum(map(disk.tree_size, disk.list_folder(self._temporary)))
        for folder in (self.folder, *disk.list_folder(self.folder)):
            with contextlib.suppress(OSError):
                total += disk.disk_usage(folder.stat())
        return total

    def remove(self, block: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path(block).unlink()

    def unknown_blocks(self, known_blocks: Collection[bytes]) -> Iterator[bytes]:
        """Yield the names of block files that are neither in `known_blocks` nor in `new_block_sizes`."""
        for folder in disk.list_folder(self.folder):
            for path in disk.list_folder(folder):
                name = bytes.fromhex(path.name) if _NAME.fullmatch(path.name) else None
                if name is not None and name not in known_blocks and name not in self.new_block_sizes:
                    yield name

    def remove_temporary(self) -> None:
        for path in disk.list_folder(self._temporary):
            disk.remove(path)


def pack_residue(raw: bytes, *, deflate: bool) -> tuple[bytes, bytes]:
    """Return a residue block's content: a format byte and the data. With `deflate`, compress it if worthwhile."""
    middle = max(0, len(raw) // 2 - _SAMPLE_BYTES // 2)
    sample = raw[middle : middle + _SAMPLE_BYTES]
    if deflate and len(zlib.compress(sample, 1)) < _MAX_DEFLATED_RATIO * len(sample):
        return _DEFLATED, zlib.compress(raw, 1)
    return _RAW, raw


def read_residue(use: BlockUse, blocks: BlockFiles) -> bytes:
    """Read, verify and inflate a residue block. Raises DamagedBlock."""
    try:
        with blocks.path(use.block).open("rb") as file:
            stored = file.read(min(use.size, RESIDUE_CHUNK_BYTES + 1) + 1)
    except OSError as error:
        raise DamagedBlock from error
    if xxhash.xxh3_128(stored).digest() != use.xxh3 and blake3(stored).digest() != use.block:
        raise DamagedBlock
    raw = stored[1:]
    if stored[:1] == _DEFLATED:
        raw = zlib.decompressobj().decompress(raw, use.rows + 1)
    if stored[:1] not in (_RAW, _DEFLATED) or len(raw) != use.rows:
        raise DamagedBlock
    return raw
