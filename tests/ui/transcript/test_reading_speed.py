"""How much of a core a streaming reply takes. Figures are printed (-s).

CPU time of this thread alone is counted, as if a token came every 5 ms: a busy machine changes little. What is asserted
is what makes it fast: that each update reads and lays out a bounded part, however long the reply is.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from PySide6.QtCore import QCoreApplication
from pytestqt.qtbot import QtBot

from kvchat.chat.record.messages import MessageState, Role
from kvchat.ui.base.theme import Look
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.transcript.transcript import Transcript
from tests.ui.reading import a_message

pytestmark = pytest.mark.slow

TOKENS_PER_S, LETTERS, UPDATE_S = 200, 4, 0.1
SENTENCE = "The quick brown fox jumps over the **lazy** dog, and `then` it goes on a while, and so on. "
REPLIES = {
    "prose": "\n\n".join(
        f"## Heading {i}\n\n- one\n- two\n- three" if i % 7 == 0 else SENTENCE * 3 for i in range(150)
    ),
    "2,000 lines of code": "```python\n" + "def f(x):  # why\n    return f'{x} and' + str(x * 2)\n" * 1_000 + "```",
    "a list": "\n".join(f"{i}. Item {i} with **some** words and a [link](https://example.org)" for i in range(500)),
    "a table": "| Name | Value | Words | More |\n|---|---|--:|---|\n"
    + "".join(f"| item {i} | {i * 3} | some **words** here | and `more` of it |\n" for i in range(500)),
    "one paragraph": "word and another word, " * 1_700,
    "one word": "x" * 40_000,
    "formulas": "\n\n".join(f"So $x_{{{i}}}^2 = {i}$ and\n\n$$\\sum_{{k=1}}^{{{i}}} k$$" for i in range(150)),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_that_streams(look: Look, qtbot: QtBot, name: str) -> None:
    text = REPLIES[name]
    page = Transcript(look)
    qtbot.addWidget(page)
    page.resize(850, 700)
    page.show()
    live = a_message("live", Role.ASSISTANT, "", MessageState.STREAMING)
    page.show_conversation([a_message("q", Role.USER, "Go on"), live])
    view = page.views["live"]
    assert isinstance(view, ReplyView)
    step = round(TOKENS_PER_S * UPDATE_S) * LETTERS
    costs, laid_out = [], 0
    for end in range(step, len(text) + step, step):
        started = time.thread_time()
        page.set_live("live", text[:end], "")
        view.render_now()
        QCoreApplication.processEvents()
        costs.append(time.thread_time() - started)
        laid_out = max(laid_out, view.column.laid_out)
    started = time.thread_time()
    page.update_messages([a_message("q", Role.USER, "Go on"), replace(live, content=text, state=MessageState.COMPLETE)])
    ended = time.thread_time() - started
    seconds = UPDATE_S * len(costs)
    print(
        f"\n{name}, {len(text) // LETTERS:,} tokens: {sum(costs) / seconds:.1%} of a core,"
        f" {sum(costs[-50:]) / 50 / UPDATE_S:.1%} at the end; longest update {1000 * max(costs):.0f} ms,"
        f" ending {1000 * ended:.0f} ms; {laid_out} parts at most laid out"
    )
    assert laid_out <= 6
    assert view.column.parts
