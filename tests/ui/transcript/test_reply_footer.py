"""What stands below a reply."""

from __future__ import annotations

from dataclasses import replace

from kvchat.chat.record.messages import Role
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.widgets.layouts import ElidedLabel
from tests.ui.fake_runtime import FakeRuntime, a_receipt
from tests.ui.waiting import until

LONG = "Ein-Modell-mit-einem-sehr-langen-Namen-" * 6


def replies(window: MainWindow) -> list[ReplyView]:
    return [view for view in window.transcript.views.values() if isinstance(view, ReplyView)]


async def test_each_reply_says_which_model_wrote_it(furnished: FakeRuntime, window: MainWindow) -> None:
    """Also without numbers; a reply of an earlier kvchat says nothing."""
    names = ["SmolLM2-135M-Instruct", LONG, ""]
    for name in names:
        furnished.chat.write("d", Role.USER, "Who are you?")
        furnished.chat.write("d", Role.ASSISTANT, "A model.", receipt=a_receipt(model_name=name))
    window.chat.open("a")
    window.chat.open("d")
    await until(lambda: len(replies(window)) == 3)
    receipts = [view.receipt for view in replies(window)]
    assert [receipt.text for receipt in receipts if receipt] == [
        "0.3 s · remembered · SmolLM2-135M-Instruct",
        f"0.3 s · remembered · {LONG}",
        "0.3 s · remembered",
    ]
    assert all(view.width() <= window.transcript.width() for view in replies(window))
    await furnished.apply_settings(replace(furnished.settings, show_numbers=False))
    await until(lambda: replies(window) and not any(view.receipt for view in replies(window)))
    shown = [view.footer.findChild(ElidedLabel) for view in replies(window) if view.footer]
    assert [label.whole if label else "" for label in shown] == names
