"""File operations for the store; all files and folders are private to the user."""

import contextlib
import hashlib
import os
import secrets
import shutil
from pathlib import Path

from blake3 import blake3

from kvchat.system.files import replace_file
from kvchat.system.paths import resolve_paths

BLOCKS, INDEX, STAGING = "blocks", "index.db", "staging"  # in the store's folder
_RUN_ID = secrets.token_hex(8)  # per process


def private_folder(folder: Path) -> Path:
    """Create `folder` if missing, set its mode to 0700 and return it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def free_bytes(folder: Path) -> int:
    """Return the free disk space at `folder`, which is created if missing. Raises OSError."""
    return shutil.disk_usage(private_folder(folder)).free


def hash_file(path: Path) -> str:
    """Return the file's BLAKE3 hash in hex. Raises OSError.

    The file is read in pieces, not memory-mapped: with a mapping, a bad disk sector or a truncation by another
    process would kill the app (SIGBUS) instead of raising OSError.
    """
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, lambda: blake3(max_threads=blake3.AUTO)).hexdigest()  # type: ignore


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link `source`, or copy it with mode 0600 if links are impossible. Raises OSError."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        try:
            target.touch(0o600)
            shutil.copyfile(source, target)
        except OSError:
            remove(target)
            raise


def move(source: Path, target: Path) -> None:
    """Rename a file, or copy and delete it across file systems. The target gets mode 0600. Raises OSError."""
    try:
        replace_file(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        link_or_copy(source, target)
        source.unlink()
    target.chmod(0o600)


def temporary_name() -> str:
    return secrets.token_hex(8)


def engine_file_name() -> str:
    """Return a new file name with kvchat's prefix, because an engine's slot folder may belong to the user."""
    return f"{_own_prefix()}{_RUN_ID}-{secrets.token_hex(4)}"


def remove_stale_engine_files(folder: Path) -> None:
    """Delete the `engine_file_name` files of earlier kvchat processes with the same data folder."""
    prefix = _own_prefix()
    for entry in list_folder(folder):
        if entry.name.startswith(prefix) and not entry.name.startswith(prefix + _RUN_ID):
            remove(entry)


def _own_prefix() -> str:
    home = str(resolve_paths().data).encode()
    return f"kvchat-{blake3(home).hexdigest(length=4)}-"


def remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def disk_usage(status: os.stat_result) -> int:
    """Return a file's or folder's disk usage in bytes, or its length if the system does not report usage."""
    blocks: int | None = getattr(status, "st_blocks", None)  # always 512-byte units; absent on Windows
    return status.st_size if blocks is None else 512 * blocks


def tree_size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return disk_usage(path.lstat()) + sum(map(tree_size, list_folder(path) if path.is_dir() else ()))
    return 0
