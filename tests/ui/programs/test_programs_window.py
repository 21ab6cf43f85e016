"""The programs window with the staged runtime."""

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPlainTextEdit
from pytestqt.qtbot import QtBot

from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.programs.last_requests import describe_request, receipt_of
from kvchat.ui.programs.programs_window import ProgramsWindow
from tests.ui.programs.made_up import CLAUDE, LONG_NAME, a_request, fill
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import button, question

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def filled(furnished: StagedRuntime) -> StagedRuntime:
    furnished.settings = replace(furnished.settings, api_server=True)
    fill(furnished)
    return furnished


def words(window: ProgramsWindow) -> str:
    return "\n".join(
        getattr(text_label, "full_text", "") or text_label.text()
        for text_label in window.findChildren(QLabel)
        if text_label.isVisible()
    )


async def test_programs_the_last_used_first_and_their_current_requests(
    filled: StagedRuntime, window: MainWindow
) -> None:
    programs = window.side_windows.open_programs()
    assert [row.title for row in programs.list.rows] == [CLAUDE, "opencode", LONG_NAME]
    first = programs.list.rows[0]
    assert first.chip == "92% remembered"
    assert first.detail == "124 requests · last just now · about 73 min saved"
    await until(lambda: programs.live_rows.rows[2].name.full_text == "Chat c")
    shown = [
        (row.name.full_text, row.state.full_text, row.bar.isVisible())
        for row in programs.live_rows.rows
        if row.isVisible()
    ]
    assert shown == [
        (CLAUDE, "processing, 8,192 of 16,872 tokens", True),
        (LONG_NAME, "waiting", False),
        ("Chat c", "loaded, 5.9K tokens", False),
        ("opencode", "loaded, 18.4K tokens", False),
    ]
    assert "API server is off" not in words(programs)
    filled.settings = replace(filled.settings, api_server=False)
    programs.refresh()
    assert "API server is off" in words(programs)


async def test_why_it_was_read_again_and_what_mends_it(filled: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    programs = window.side_windows.open_programs()
    await until(lambda: "The date in the system prompt" in words(programs))
    said = words(programs)
    assert "3×, about 2 min\n" in said
    assert "Avoided reprocessing 980,000 tokens (48×, about 32 min)." in said
    assert "Without this rule, 62,000 tokens had to be reprocessed (3×, about 2 min)." in said
    rule = programs.details.rules["hold-clock"]
    assert not rule.on
    qtbot.keyClick(rule.switch, Qt.Key.Key_Space)
    await until(lambda: filled.settings.api_rules == (f"{CLAUDE} hold-clock",))
    await until(lambda: rule.on)
    programs.list.select("opencode")
    assert not rule.on
    await until(lambda: "None of its prompts had to be reprocessed." in words(programs))
    programs.list.select(CLAUDE)
    qtbot.keyClick(rule.switch, Qt.Key.Key_Space)
    await until(lambda: filled.settings.api_rules == ())


async def test_a_request_has_the_receipt_of_a_reply_and_both_texts(filled: StagedRuntime, window: MainWindow) -> None:
    programs = window.side_windows.open_programs()
    requests = programs.requests
    assert [row.chip for row in requests.list.rows] == ["reprocessed", "", "still loaded", "remembered"]
    assert requests.list.rows[1].detail == "canceled by the app"
    assert requests.receipt is not None
    assert "reprocessed" in requests.receipt.text
    await until(lambda: "at token 312" in words(programs))
    assert (
        "The prompt changed at token 312 of 20,968: the date in the system prompt; 20,656 tokens reprocessed, 41 s."
        in words(programs)
    )
    boxes = [box for box in requests.findChildren(QPlainTextEdit) if box.isVisible()]
    texts = [box.toPlainText() for box in boxes]
    for box, date in zip(boxes, ("Sun Nov 22", "Mon Nov 23"), strict=False):
        marks = box.extraSelections()
        assert [mark.cursor.selectedText() for mark in marks] == [date]
        assert 0 <= box.cursorRect(marks[0].cursor).bottom() < box.viewport().height()
    assert "Sun Nov 22" in texts[0]
    assert "Mon Nov 23" in texts[1]
    assert "cch=0aaa9" in texts[2]
    assert texts[3] == "(nothing)"
    assert "Remove the billing header: the system prompt was changed." in words(programs)
    requests.receipt.toggle()
    assert requests.receipt.is_open


def test_an_answer_in_one_piece_was_written_after_its_first_word() -> None:
    """Seen with OpenAI's package: 59 s to the first token of a cached prompt, and no speed."""
    whole = a_request(1, stream=False, first_ms=12_390.0, generation_ms=11_330.0)
    receipt = receipt_of(whole)
    assert receipt is not None
    assert (receipt.ttft_ms, receipt.first_token_ms) == (1060.0, 130.0)
    assert receipt.tokens_per_second == pytest.approx(412 / 11.34)
    assert "first token after 1.1 s" in describe_request(whole)


async def test_it_follows_what_comes_and_a_program_can_be_forgotten(
    filled: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    programs = window.side_windows.open_programs()
    programs.requests.list.select(9)
    filled.api_server.recent_requests = [*filled.api_server.recent_requests, a_request(11)]
    for listener in filled.api_server.listeners:
        listener()
    await until(lambda: len(programs.requests.list.rows) == 5)
    assert programs.requests.list.current is not None
    assert programs.requests.list.current.value == 9, "what was looked at stays"
    programs.close()
    assert not filled.api_server.listeners

    programs.show()
    qtbot.mouseClick(programs.forget_button, LEFT)
    qtbot.mouseClick(button(question(programs), "Forget"), LEFT)
    await until(lambda: CLAUDE not in [row.title for row in programs.list.rows])
    assert ("forget", CLAUDE) in filled.calls
