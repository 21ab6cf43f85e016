"""Messages that leave the page leave nothing behind, in Qt's memory neither."""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest
from PySide6.QtCore import QEvent
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from kvchat.chat.record.messages import Message, Role
from kvchat.ui.base.theme import Look
from kvchat.ui.transcript.transcript import Transcript
from tests.ui.fake_runtime import a_receipt
from tests.ui.reading import a_message
from tests.ui.waiting import LONG_MS

REPLY = "Some **words**.\n\n```python\nprint(1)\n```\n\n- one\n- two\n\n```\nand\n```\n\nand words."
TURNS = 5
TEXTS = TURNS * 6  # the question, and the reply's words and codes


def allocated() -> int:
    """Bytes that this process has from malloc and not given back. Python's small objects are not among them."""
    names = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
    fields = type("MallInfo", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
    mallinfo = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo.restype = fields
    return int(mallinfo().uordblks)


def conversation() -> list[Message]:
    messages = []
    for i in range(TURNS):
        messages.append(a_message(f"q{i}", Role.USER, f"Question {i}?"))
        messages.append(replace(a_message(f"a{i}", Role.ASSISTANT, REPLY), receipt=a_receipt()))
    return messages


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_texts_that_were_painted_and_are_gone_hold_no_memory(look: Look, qtbot: QtBot) -> None:
    page = Transcript(look)
    qtbot.addWidget(page)
    page.resize(850, 2_000)  # all of it is in sight, and painted
    page.show()
    qtbot.waitExposed(page, timeout=LONG_MS)
    left = []
    for _ in range(12):
        page.show_conversation(conversation())
        QGuiApplication.processEvents()
        assert sum(len(view.texts) for view in page.views.values()) == TEXTS
        page.show_conversation([])
        QGuiApplication.processEvents()
        QGuiApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
        gc.collect()
        left.append(allocated())
    # A leak grows in every round; what the process makes once, it makes in one of them.
    per_text = median(after - before for before, after in pairwise(left)) / TEXTS
    assert per_text < 300, f"{per_text:.0f} bytes are left of each text: {left}"
