"""Text of PDF, Office, EPUB and HTML files, extracted by a child process within limits of time and memory.

Such files come from strangers, and damaged ones make parsers crash or run forever. The child runs this file as a
script, without importing kvchat: the file on standard input, its format as the argument, the text on standard output.
PDF pages are separated by form feeds; other formats become Markdown.
"""

import io
import os
import posixpath
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from html.parser import HTMLParser
from urllib.parse import unquote
from xml.etree import ElementTree

FLAG = "--extract-text"  # makes a bundled kvchat run as the child: `kvchat --extract-text FORMAT`
PAGE_BREAK = "\n\f\n"
OFFICE_FORMATS = ("docx", "xlsx", "pptx", "doc", "xls", "ppt")
TIMEOUT_S = 60.0
MAX_CHARACTERS = 32_000_000  # more than any context holds
MAX_UNPACKED_BYTES = 500_000_000
MAX_MEMORY_BYTES = 4_000_000_000  # address space; not limited on Windows and macOS

EXIT_DAMAGED = 65
EXIT_PASSWORD = 66
EXIT_TOO_LONG = 67


class ExtractionFailed(Exception):
    """Raised with the child's exit code (None: it took too long) and its output."""

    def __init__(self, code: int | None, detail: str = "") -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


def extract_text(data: bytes, format: str, timeout_s: float = TIMEOUT_S, creation_flags: int = 0) -> str:
    """Return a file's text. Blocking. Raises ExtractionFailed."""
    frozen = getattr(sys, "frozen", False)
    command = [sys.executable, FLAG, format] if frozen else [sys.executable, "-P", __file__, format]
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=timeout_s, check=False, creationflags=creation_flags
        )
    except subprocess.TimeoutExpired:
        raise ExtractionFailed(None) from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ExtractionFailed(done.returncode, lines[-1][:200] if lines else "")
    return done.stdout.decode("utf-8", "replace")


def main(arguments: Sequence[str]) -> int:
    try:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (int(TIMEOUT_S), int(TIMEOUT_S)))  # if kvchat has been killed
    except (ImportError, ValueError, OSError):
        pass
    with os.fdopen(0, "rb", closefd=False) as file:  # `sys.stdin` may be None in a program without a console
        data = file.read()
    try:
        text = _extract(data, arguments[0])
    except PermissionError:
        return EXIT_PASSWORD
    except BaseException as error:  # a damaged file can raise anything, a Rust panic too
        print(type(error).__name__, file=sys.stderr)
        return EXIT_TOO_LONG if isinstance(error, OverflowError) else EXIT_DAMAGED
    if len(text) > MAX_CHARACTERS:
        return EXIT_TOO_LONG
    with os.fdopen(1, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "replace"))
    return 0


def _extract(data: bytes, format: str) -> str:
    """Raises PermissionError if the file is password-protected, OverflowError if it is too large."""
    if data.startswith(b"PK") or format == "epub":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_UNPACKED_BYTES:
                raise OverflowError
            return _epub_text(archive) if format == "epub" else _office_text(data, format)
    if format in OFFICE_FORMATS:
        if format.endswith("x") and "EncryptedPackage".encode("utf-16-le") in data:
            raise PermissionError
        return _office_text(data, format)
    if format == "pdf":
        return _pdf_text(data)
    html = _decode_html(data)
    return (html_text(html, _PAGE_SKIPPED) if format == "page" else "") or html_text(html)


def _office_text(data: bytes, format: str) -> str:
    from office_oxide import Document

    return str(Document.from_bytes(data, format).to_markdown())  # type: ignore[arg-type]


def _pdf_text(data: bytes) -> str:
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").addHandler(logging.NullHandler())  # pypdf would print warnings
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise PermissionError
    pages = [page.extract_text().strip() for page in reader.pages]
    return PAGE_BREAK.join(pages) if any(pages) else ""


def _epub_text(archive: zipfile.ZipFile) -> str:
    """Return the chapters in reading order (EPUB 3.3, sections 4.2 and 5)."""
    container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
    package = next(element.get("full-path", "") for element in container.iter() if element.tag.endswith("}rootfile"))
    root = ElementTree.fromstring(archive.read(package))
    places = {e.get("id"): e.get("href", "") for e in root.iter() if e.tag.endswith("}item")}
    spine = [places.get(e.get("idref"), "") for e in root.iter() if e.tag.endswith("}itemref")]
    names = [posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(href))) for href in spine if href]
    known = set(archive.namelist())
    return "\n\n".join(filter(None, (html_text(_decode_html(archive.read(name))) for name in names if name in known)))


def _decode_html(data: bytes) -> str:
    declared = re.search(rb"""(?:charset|encoding)\s*=\s*["']?([\w-]+)""", data[:1024])
    try:
        return data.decode(declared[1].decode() if declared else "utf-8", "replace")
    except LookupError:
        return data.decode("utf-8", "replace")


_SKIPPED = frozenset(("script", "style", "template", "svg", "noscript", "head"))
_PAGE_SKIPPED = _SKIPPED | {"aside", "button", "dialog", "footer", "nav"}  # in a web page beside what it is about
_BLOCKS = re.compile(
    "address|article|aside|blockquote|br|d[dlt]|div|fieldset|figcaption|figure|footer|form|h[1-6r]|header|li|main|nav"
    "|[ou]l|p|pre|section|table|tr"
)


class _HtmlReader(HTMLParser):
    def __init__(self, skipped: frozenset[str]) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._left_out = skipped
        self._skipped: list[str] = []  # open elements that are left out
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._left_out:
            self._skipped.append(tag)
        if _BLOCKS.fullmatch(tag):
            self.parts.append("\n" if tag in ("br", "tr", "li", "dt", "dd") else "\n\n")
        if tag[0] == "h" and tag[1:].isdigit():
            self.parts.append("#" * int(tag[1:]) + " ")
        elif tag == "li":
            self.parts.append("- ")
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        self._preformatted += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skipped:
            del self._skipped[self._skipped.index(tag) :]
        if _BLOCKS.fullmatch(tag):
            self.parts.append("\n" if tag in ("tr", "li") else "\n\n")
        self._preformatted -= tag == "pre" and self._preformatted > 0

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.parts.append(data if self._preformatted else re.sub(r"\s+", " ", data))


def html_text(html: str, skipped: frozenset[str] = _SKIPPED) -> str:
    """Return a page's text with its headings as Markdown."""
    reader = _HtmlReader(skipped)
    reader.feed(html)
    reader.close()
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]*\n[ \t]*(?=\n|\S)", "\n", "".join(reader.parts))).strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
