"""Tools that list and read files in folders that the user chose."""

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from kvchat.system.files import read_regular_file, run_with_timeout
from kvchat.text.formatting import one_line
from kvchat.tools.built_in.definition import START, BuiltInTool, ReadText, define, extracted_text, part_of
from kvchat.tools.tool import ToolFailed, ToolResult

MAX_FILE_BYTES = 10_000_000
MAX_ENTRIES = 500  # per folder

T = TypeVar("T")


def file_tools(folders: Callable[[], Sequence[str]], read_text: ReadText) -> tuple[BuiltInTool, BuiltInTool]:
    async def list_files(arguments: Mapping[str, Any]) -> ToolResult:
        path, allowed = arguments.get("path", ""), folders()
        if not path and len(allowed) > 1:
            return ToolResult("\n".join(f"{folder}{os.sep}" for folder in allowed))
        return ToolResult(await _with_path(path or ".", lambda: _listing(find_path(allowed, path or "."))))

    async def read_file(arguments: Mapping[str, Any]) -> ToolResult:
        def read() -> str:
            found = find_path(folders(), path)
            return extracted_text(read_text, one_line(found.name), read_regular_file(found, MAX_FILE_BYTES))

        path = arguments["path"]
        return ToolResult(part_of(await _with_path(path, read), arguments.get("start", 0)))

    def is_offered() -> bool:
        return bool(folders())

    path = {"type": "string", "maxLength": 4000, "description": "Path as listed, or relative to a folder"}
    listing = define("list_files", "List the files in a folder that the user shares.", {}, {"path": path})
    reading = define(
        "read_file",
        "Return the text of a file in a folder that the user shares: text, code, PDF, Office, EPUB or HTML.",
        {"path": path},
        {"start": START},
    )
    return (
        BuiltInTool(replace(listing, read_only=True), list_files, is_offered),
        BuiltInTool(replace(reading, read_only=True), read_file, is_offered),
    )


async def _with_path(path: str, function: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(function)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a null character; RuntimeError: a loop of links
        reason = (error.strerror if isinstance(error, OSError) else None) or "The path is not valid"
        raise ToolFailed(f"{one_line(path)} cannot be read", f"{reason}.") from error


def find_path(folders: Sequence[str], path: str) -> Path:
    """Return the real path of a file or folder in one of the folders. Raises ToolFailed, OSError and RuntimeError.

    Nothing outside the folders is accessed: checking a path such as `\\\\server\\share` would sign in to the server.
    Hidden files are excluded, because programs keep passwords and keys in them.
    """
    missing: OSError | None = None
    for folder in folders:
        named = Path(folder).expanduser().absolute()
        try:
            root = _resolve(named)
            for base in dict.fromkeys((named, root)):
                candidate = Path(os.path.normpath(base / path))
                if not candidate.is_relative_to(base):
                    continue
                real = _resolve(candidate)
                if real.is_relative_to(root) and not any(part[0] == "." for part in real.relative_to(root).parts):
                    return real
        except OSError as error:
            missing = error
    if missing is not None:
        raise missing
    shared = ", ".join(folders) or "none"
    raise ToolFailed(f"{one_line(path)} is not in a folder that the user shares", f"Folders: {shared}.")


def _resolve(path: Path) -> Path:
    return run_with_timeout(lambda: path.resolve(strict=True))


def _listing(folder: Path) -> str:
    def entries() -> list[tuple[str, bool, int]]:
        with os.scandir(folder) as found:
            visible = (entry for entry in found if not entry.name.startswith("."))
            first = itertools.islice(visible, MAX_ENTRIES + 1)
            return [(each.name, each.is_dir(), each.stat(follow_symlinks=False).st_size) for each in first]

    listed = run_with_timeout(entries)
    lines = []
    for name, is_dir, size in sorted(listed):
        shown = one_line(os.fsencode(name).decode("utf-8", "replace"))
        lines.append(f"{shown}{os.sep}" if is_dir else f"{shown} ({size} bytes)")
    if len(lines) > MAX_ENTRIES:
        lines[MAX_ENTRIES:] = [f"[Only {MAX_ENTRIES} entries are listed.]"]
    return "\n".join([f"{folder}{os.sep}", *lines] if lines else [f"{folder} is empty"])
