"""Files and folders of the store: private to the user, on disk before they count, never half there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from pathlib import Path

from blake3 import blake3

from kvchat.system.paths import resolve_paths

_RUN = secrets.token_hex(8)  # of this process


def private_folder(folder: Path) -> Path:
    """Make `folder` with mode 0700 (also when it was there with a wider one). Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def listing(folder: Path) -> list[Path]:
    """Return the entries of a folder; none when it is gone or cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`, which is made if it is missing. Raises OSError."""
    return shutil.disk_usage(private_folder(folder)).free


def hash_file(path: Path) -> str:
    """Return the BLAKE3 of the file, hexadecimal. Raises OSError.

    Read in pieces, not memory-mapped: a bad disk sector, or another process cutting the file, is then an OSError and
    not a SIGBUS that ends the app.
    """
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, lambda: blake3(max_threads=blake3.AUTO)).hexdigest()  # type: ignore


def link_or_copy(source: Path, target: Path) -> None:
    """Give `source` a second name, or make a copy with mode 0600 where links are impossible. Raises OSError."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        _copy(source, target)


def move(source: Path, target: Path) -> None:
    """Rename, or copy and delete between file systems. The target has mode 0600 either way. Raises OSError."""
    try:
        source.rename(target)
        target.chmod(0o600)
    except FileNotFoundError:
        raise
    except OSError:
        _copy(source, target)
        source.unlink()


def _copy(source: Path, target: Path) -> None:
    try:
        target.touch(0o600)
        shutil.copyfile(source, target)
    except OSError:
        remove(target)
        raise


def temporary_name() -> str:
    return secrets.token_hex(8)


def name_for_engine() -> str:
    """Return a fresh name, marked as ours, in a folder that an engine saves into: it may be the user's own."""
    return f"{_own_prefix()}{_RUN}-{secrets.token_hex(4)}"


def remove_stale_for_engine(folder: Path) -> None:
    """Delete what earlier processes named by `name_for_engine`; only one process at a time owns the data folder."""
    for entry in listing(folder):
        if entry.name.startswith(_own_prefix()) and not entry.name.startswith(f"{_own_prefix()}{_RUN}"):
            remove(entry)


def _own_prefix() -> str:
    home = str(resolve_paths().data).encode()
    return f"kvchat-{blake3(home).hexdigest(length=4)}-"


def remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def allotted(found: os.stat_result) -> int:
    """Return the bytes a file or folder takes on disk, where the system says so; else its length."""
    blocks: int | None = getattr(found, "st_blocks", None)  # of 512 bytes, whatever the disk's are; not on Windows
    return found.st_size if blocks is None else 512 * blocks


def tree_size(path: Path) -> int:
    """Return the bytes on disk of a file, or of a folder and all in it; 0 when it is gone."""
    with contextlib.suppress(OSError):
        return allotted(path.lstat()) + sum(map(tree_size, listing(path) if path.is_dir() else ()))
    return 0
