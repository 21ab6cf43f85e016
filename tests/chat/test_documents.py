"""Attaching documents, and the errors for unsupported files."""

import subprocess
import sys
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from kvchat.chat.attachments import AttachmentError, read_attachment

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
    assert read.text == "The heron stands.\n\nThe river runs."


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("photo.png", b"\x89PNG\r\n\x1a\n" + bytes(20), "damaged"),
        ("letter.docx", b"PK\x03\x04" + bytes(20), "Save it as a PDF"),
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
