"""Pictures attached to a message: accepted formats, place in the prompt, export and import."""

import json
import struct
from pathlib import Path

import pytest

from kvchat.chat.attachments import MAX_PICTURE_BYTES, AttachmentError, picture_attachment, read_attachment
from kvchat.chat.record.messages import needs_vision, prompt_messages
from kvchat.engine.api.pictures import image_size
from kvchat.engine.api.wire import Picture, prompt_body
from kvchat.engine_host.choice import VisionUnsupported, find_projector
from kvchat.library.model_files import projector_beside
from kvchat.transfer.exporting import ExportForm, export_file
from kvchat.transfer.importing import import_paths
from tests.pictures import png
from tests.transfer.library import everything, open_library

RED = picture_attachment("red <b>.png", png())
JPEG = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xc2\x00\x11\x08\x00\x1e\x00\x28" + bytes(20)
BOMB = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 60_000, 60_000) + bytes(20)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (png(), (40, 30)),
        (JPEG, (40, 30)),
        (b"BM" + bytes(16) + struct.pack("<ii", 40, -30), (40, 30)),
        (b"\xff\xd8\xff", (0, 0)),
        (png()[:18], (0, 0)),
    ],
)
def test_image_size_from_the_header(data: bytes, size: tuple[int, int]) -> None:
    assert image_size(data) == size


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("bomb.png", BOMB, "60,000 × 60,000"),
        ("cut.png", png()[:18], "damaged"),
        ("new.webp", b"RIFF\0\0\0\0WEBPVP8 ", "PNG, JPEG"),
        ("huge.png", png() + bytes(MAX_PICTURE_BYTES), "the limit is 10 MB"),
    ],
)
def test_unsupported_images_are_refused(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(AttachmentError, match=words):
        read_attachment(tmp_path / name)


def test_svg_and_text_like_a_bitmap_are_text(tmp_path: Path) -> None:
    for name, text in (("cars.txt", "BMW and others are makers of cars."), ("a.svg", "<svg><image href='x'/></svg>")):
        (tmp_path / name).write_text(text)
        assert read_attachment(tmp_path / name).text == text


def test_pictures_precede_the_text_as_data_urls(tmp_path: Path) -> None:
    database = open_library(tmp_path)
    chat = database.create_conversation("New chat").id
    database.append_question(chat, "What is it?", (RED,))
    database.append_question(chat, "", (RED,))
    (asked,) = prompt_messages(database.branch(chat))
    assert (asked.content, asked.pictures) == ("What is it?", (Picture(RED.data),) * 2)
    assert needs_vision([asked])
    (body,) = prompt_body([asked])["messages"]
    assert [part["type"] for part in body["content"]] == ["image_url", "image_url", "text"]
    assert body["content"][0]["image_url"]["url"].startswith("data:image/")


def test_pictures_are_exported_and_checked_on_import(tmp_path: Path) -> None:
    here = open_library(tmp_path / "here")
    chat = here.create_conversation("New chat").id
    here.append_question(chat, "What is it?", (RED,))
    for form in ExportForm:
        export_file(here, [chat], form, tmp_path / f"out.{form.value}")
    page = (tmp_path / "out.html").read_text("utf-8")
    assert 'src="data:image/png;base64,' in page
    assert 'alt="red &lt;b&gt;.png"' in page
    assert "*Attached: red <b>.png*" in (tmp_path / "out.md").read_text("utf-8")

    there = open_library(tmp_path / "there")
    assert import_paths(there, [tmp_path / "out.json"]).problems == ()
    assert there.branch(chat)[0].attachments == (RED,)
    assert everything(there) == everything(here)

    data = json.loads((tmp_path / "out.json").read_text("utf-8"))
    for number, bad in enumerate(("no base64!", "PHN2Zz4=", 7)):
        data["conversations"][0]["messages"][0]["attachments"][0]["data"] = bad
        (tmp_path / "bad.json").write_text(json.dumps(data))
        report = import_paths(open_library(tmp_path / f"bad-{number}"), [tmp_path / "bad.json"])
        assert "is not a valid image" in str(report.problems[0])
        assert not report.imported


def test_projector_is_found_beside_the_model(tmp_path: Path) -> None:
    model = tmp_path / "gemma-3-4b-it-Q4_K_M.gguf"
    model.touch()
    assert projector_beside(model) is None
    with pytest.raises(VisionUnsupported, match="gemma-3-4b-it"):
        find_projector(model, ())
    assert find_projector(model, ("--mmproj", "own.gguf")) is None
    (tmp_path / "mmproj-F16.gguf").touch()
    assert find_projector(model, ()) == tmp_path / "mmproj-F16.gguf"
    assert projector_beside(tmp_path / "gone" / "model.gguf") is None
