"""Cost of replies and messages: CPU time while they stream, memory after they are gone. Prints figures (-s).

CPU time depends little on how busy the machine is. The tests assert the causes of low cost: each update parses and lays
out a bounded part, however long the reply is, and the event loop wakes up once for many tokens.
"""

import ctypes
import gc
import sys
import time
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtGui import QGuiApplication

from kvchat.chat.record.messages import Message, MessageState, Role
from kvchat.ui.transcript.parts import Row
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.transcript.transcript import Transcript
from tests.ui.reading import a_message
from tests.ui.staged_runtime import a_receipt

pytestmark = pytest.mark.slow

TOKENS_PER_S, LETTERS, UPDATE_S = 200, 4, 0.1
SENTENCE = "The quick brown fox jumps over the **lazy** dog, and `then` it goes on a while, and so on. "
REPLIES = {
    "prose": "\n\n".join(
        f"## Heading {i}\n\n- one\n- two\n- three" if i % 7 == 0 else SENTENCE * 3 for i in range(150)
    ),
    "2,000 lines of code": "```python\n" + "def f(x):  # why\n    return f'{x} and' + str(x * 2)\n" * 1_000 + "```",
    "a table": "| Name | Value | Words | More |\n|---|---|--:|---|\n"
    + "".join(f"| item {i} | {i * 3} | some **words** here | and `more` of it |\n" for i in range(500)),
    "one word": "x" * 40_000,
    "formulas": "\n\n".join(f"So $x_{{{i}}}^2 = {i}$ and\n\n$$\\sum_{{k=1}}^{{{i}}} k$$" for i in range(150)),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_that_streams(page: Transcript, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text, laid_out, show = REPLIES[name], [0], page._show_part

    def show_and_count(row: Row) -> None:
        laid_out[0] += 1
        show(row)

    monkeypatch.setattr(page, "_show_part", show_and_count)
    live = a_message("live", Role.ASSISTANT, "", MessageState.STREAMING)
    page.show_conversation([a_message("q", Role.USER, "Continue"), live])
    view = page.views["live"]
    assert isinstance(view, ReplyView)
    step = round(TOKENS_PER_S * UPDATE_S) * LETTERS
    costs = []
    for end in range(step, len(text) + step, step):
        started = time.thread_time()
        laid_out[0] = 0
        page.show_live_reply("live", text[:end], "")
        view.render_now()
        QCoreApplication.processEvents()
        costs.append(time.thread_time() - started)
        assert laid_out[0] <= 6
    print(f"\n{name}: {sum(costs) / len(costs) / UPDATE_S:.1%} of a core, longest update {1000 * max(costs):.0f} ms")
    assert view.texts


PAINTED = "Some **words**.\n\n```python\nprint(1)\n```\n\n- one\n- two\n\n```\nand\n```\n\nand words."
TURNS = 5
TEXTS = TURNS * 6  # the question, and the reply's words and codes


def allocated() -> int:
    """Return the bytes this process has allocated with malloc, without Python's small objects."""
    names = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
    fields = type("MallInfo", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
    mallinfo = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo.restype = fields
    return int(mallinfo().uordblks)


def conversation() -> list[Message]:
    messages = []
    for i in range(TURNS):
        messages.append(a_message(f"q{i}", Role.USER, f"Question {i}?"))
        messages.append(replace(a_message(f"a{i}", Role.ASSISTANT, PAINTED), receipt=a_receipt()))
    return messages


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_texts_that_were_painted_and_are_gone_hold_no_memory(page: Transcript) -> None:
    page.resize(850, 2_000)  # all of it is in sight, and painted
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
    # A leak grows in every round; one-time allocations occur in only one of them.
    per_text = median(after - before for before, after in pairwise(left)) / TEXTS
    assert per_text < 300, f"{per_text:.0f} bytes are left of each text: {left}"
