"""Attaching documents, and the errors for unsupported files."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from office_oxide import create_from_markdown
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from kvchat.chat.attachments import LONG_PAGE_BYTES, AttachmentError, read_attachment
from kvchat.chat.extraction import MAX_UNPACKED_BYTES, ExtractionFailed, extract_text

CHINESE = "姓名,城市,電話\n王小明,臺北,02-1234\n陳美麗,高雄,07-5678\n林志強,臺中,04-9876\n黃淑芬,新竹,03-4567\n"


def pdf(path: Path, *pages: str, password: str = "") -> Path:
    """Return a PDF with a line of text on each page; an empty string gives a page without text."""
    writer = PdfWriter()
    for words in pages:
        page = writer.add_blank_page(200, 200)
        font = DictionaryObject(
            {
                NameObject("/Type"): NameObject("/Font"),
                NameObject("/Subtype"): NameObject("/Type1"),
                NameObject("/BaseFont"): NameObject("/Helvetica"),
            }
        )
        fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        if words:
            stream = DecodedStreamObject()
            stream.set_data(f"BT /F1 12 Tf 20 100 Td ({words}) Tj ET".encode())
            page[NameObject("/Contents")] = writer._add_object(stream)
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030", "big5"])
def test_text_encodings(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "people.csv"
    file.write_bytes((CHINESE * 4).replace("\n", "\r\n").encode(encoding))
    read = read_attachment(file)
    assert (read.text, read.name, read.size) == (CHINESE * 4, "people.csv", file.stat().st_size)


def test_pdf_text(tmp_path: Path) -> None:
    read = read_attachment(pdf(tmp_path / "two.pdf", "The heron stands.", "The river runs."))
    assert read.text == "The heron stands.\n\f\nThe river runs."


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("photo.png", b"\x89PNG\r\n\x1a\n" + bytes(20), "damaged"),
        ("letter.docx", b"PK\x03\x04" + bytes(20), "damaged or not supported (BadZipFile)"),
        ("old.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "damaged"),
        ("book.epub", b"no archive", "damaged"),
        ("text.odt", b"PK\x03\x04" + bytes(20), "Save it as a PDF"),
        ("program", b"\x7fELF\0\0\0" + bytes(range(256)), "no text"),
        ("empty.txt", b" \n", "contains no text"),
        ("broken.pdf", b"%PDF-1.7\nnothing here", "damaged"),
    ],
)
def test_file_without_text_is_refused(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(AttachmentError) as refusal:
        read_attachment(tmp_path / name)
    assert words in str(refusal.value)
    assert name in refusal.value.title


@pytest.mark.parametrize("format", ["docx", "xlsx", "pptx"])
def test_office_files_become_markdown(tmp_path: Path, format: str) -> None:
    file = tmp_path / f"birds.{format}"
    create_from_markdown("# Birds\n\nHerons stand.\n\n| Bird | Count |\n| --- | --- |\n| Heron | 12 |\n", format, file)
    text = read_attachment(file).text
    assert "# " in text
    assert "Heron" in text


def test_epub_chapters_follow_the_spine(tmp_path: Path) -> None:
    package = """<package xmlns="http://www.idpf.org/2007/opf"><manifest><item id="b" href="b%20two.xhtml"/>
        <item id="a" href="a.xhtml"/><item id="gone" href="gone.xhtml"/></manifest>
        <spine><itemref idref="a"/><itemref idref="gone"/><itemref idref="b"/></spine></package>"""
    with ZipFile(tmp_path / "book.epub", "w") as book:
        container = '<c xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfile full-path="in/book.opf"/></c>'
        book.writestr("META-INF/container.xml", container)
        book.writestr("in/book.opf", package)
        book.writestr("in/a.xhtml", "<head><title>No</title></head><h1>One</h1><p>Café &amp; lake.</p>")
        book.writestr("in/b two.xhtml", "<h2>Two</h2><ul><li>A <b>heron</b></li></ul><script>no()</script>")
    assert read_attachment(tmp_path / "book.epub").text == "# One\n\nCafé & lake.\n\n## Two\n\n- A heron"


def test_only_long_web_pages_lose_their_markup(tmp_path: Path) -> None:
    page, file = "<!doctype html><style>p {}</style><h1>Herons</h1><p>They stand.</p>", tmp_path / "page.html"
    file.write_text(page)
    assert read_attachment(file).text == page
    file.write_text(page + "<script>" + "x" * LONG_PAGE_BYTES + "</script>")
    assert read_attachment(file).text == "# Herons\n\nThey stand."


def test_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "bomb.docx", "w", ZIP_DEFLATED) as bomb, bomb.open("word/document.xml", "w") as entry:
        for _ in range(MAX_UNPACKED_BYTES // 10_000_000 + 1):
            entry.write(bytes(10_000_000))
    with pytest.raises(AttachmentError, match="too much text"):
        read_attachment(tmp_path / "bomb.docx")


def test_reader_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    file = pdf(tmp_path / "one.pdf", "The heron stands.")
    with pytest.raises(ExtractionFailed) as failure:
        extract_text(file.read_bytes(), "pdf", timeout_s=0.0)
    assert failure.value.code is None


def test_scanned_and_locked_pdf_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AttachmentError, match="images without text"):
        read_attachment(pdf(tmp_path / "scan.pdf", "", ""))
    with pytest.raises(AttachmentError, match="password"):
        read_attachment(pdf(tmp_path / "locked.pdf", "Secret.", password="heron"))


def test_folder_and_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.txt"):
        with pytest.raises(AttachmentError):
            read_attachment(path)


def test_damaged_pdf_prints_nothing(tmp_path: Path) -> None:
    writer, file = PdfWriter(), tmp_path / "broken.pdf"
    writer.add_blank_page(100, 100)
    writer.write(file)
    file.write_bytes(file.read_bytes().replace(b"startxref\n", b"startxref\n1"))
    program = "import sys; from pathlib import Path; from kvchat.chat.attachments import read_attachment\n"
    program += "try: read_attachment(Path(sys.argv[1]))\nexcept Exception as error: print(type(error).__name__)"
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("AttachmentError\n", "")
