"""Archives like those of llama.cpp's releases."""

import io
import tarfile
import zipfile
from collections.abc import Mapping


def tarred(files: Mapping[str, bytes], links: Mapping[str, str] | None = None, *, links_first: bool = False) -> bytes:
    """Make a .tar.gz with symbolic links, and the server executable."""
    named = [(name, content, "") for name, content in files.items()]
    linked = [(name, b"", target) for name, target in (links or {}).items()]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content, target in linked + named if links_first else named + linked:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if name.endswith("llama-server") else 0o644
            if target:
                entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
