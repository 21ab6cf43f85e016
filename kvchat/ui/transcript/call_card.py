"""The card that asks for permission to run a tool call.

Arguments and descriptions come from models and servers. They are shown as plain text, never as Markdown or HTML.
"""

import difflib
import json
from collections.abc import Callable
from itertools import chain
from typing import Any

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QBoxLayout, QLineEdit

from kvchat.chat.record.messages import parse_arguments
from kvchat.chat.turn.tool_calls import Answer, Decision, PendingCall
from kvchat.text.formatting import one_line
from kvchat.text.language import _, join_parts, join_sentences
from kvchat.text.safe_text import safe_code, safe_prose
from kvchat.tools.tool import BUILT_IN
from kvchat.ui.attachments.chips import short_name
from kvchat.ui.base.building import plain_text
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.layouts import plain_tip

_MAX_LINES = 9  # visible lines of the arguments
_BOX_MARGINS = 28  # pixels above and below the arguments
_CHARACTERS = 90  # in a line of the arguments, roughly
_MIN_ANSWER_MS = 400  # an earlier click was meant for the previous question
_MAX_DESCRIPTION = 200  # characters
_EDIT_NAMES = (("old_text", "new_text"), ("oldText", "newText"), ("old_string", "new_string"), ("old_str", "new_str"))
_NOT_SHOWN_WITH_DIFF = {"edits", *chain(*_EDIT_NAMES)}


def readable_arguments(arguments: str) -> tuple[str, str]:
    """Return a call's arguments as text, and the language to highlight it in.

    An edit of a file becomes a diff. A single command or program is shown without its name.
    """
    given = parse_arguments(arguments)
    if given is None:
        return arguments, ""
    edits = given.get("edits")
    if diff := [line for edit in (edits if isinstance(edits, list) else [given]) for line in _diff_lines(edit)]:
        others = {name: value for name, value in given.items() if name not in _NOT_SHOWN_WITH_DIFF}
        return "\n".join([*_value_lines(others), *diff]), "diff"
    texts = [value for value in given.values() if isinstance(value, str)]
    if len(given) == len(texts) == 1 and ("command" in given or "code" in given):
        return texts[0], "python" if "code" in given else "bash"
    return "\n".join(_value_lines(given)), "yaml"


def _diff_lines(edit: Any) -> list[str]:
    for old, new in _EDIT_NAMES:
        if isinstance(edit, dict) and isinstance(edit.get(old), str) and isinstance(edit.get(new), str):
            lines = difflib.unified_diff(edit[old].splitlines(), edit[new].splitlines(), lineterm="", n=3)
            return list(lines)[2:]
    return []


def _value_lines(given: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in given.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        lines.append(f"{name}: |\n  " + text.replace("\n", "\n  ") if "\n" in text else f"{name}: {text}")
    return lines


def tool_label(name: str, source: str, show: Callable[[str], str] = short_name) -> str:
    """Return the names of the tool and its server, isolated so that they cannot reorder the text around them."""
    names = [name] if source == BUILT_IN else [name, source]
    return join_parts(f"\u2068{show(one_line(safe_prose(part)))}\u2069" for part in names)


class CallCard(Card):
    """Asks for permission to run a call, and shows its arguments, which can be edited."""

    answered = Signal(str, object)  # the call's key, Answer

    def __init__(self) -> None:
        super().__init__()
        self._pending: PendingCall | None = None
        self._enabling = QTimer(self, singleShot=True, interval=_MIN_ANSWER_MS)
        self._enabling.timeout.connect(lambda: self._button_row.setEnabled(True))
        self.arguments = plain_text(_("Arguments"), self.font())  # `Transcript` sets the font for code
        self.note = QLineEdit(placeholderText=_("Tell the model why (optional)"))
        self.note.setAccessibleName(_("Tell the model why (optional)"))
        self.note.hide()
        layout = self.layout()
        assert isinstance(layout, QBoxLayout)
        layout.insertWidget(2, self.arguments)
        layout.insertWidget(4, self.note)
        self.once_button = self.add_button(_("Allow once"), "primary", lambda: self._answer(Decision.ONCE))
        self.chat_button = self.add_button(_("Allow in this chat"), "", lambda: self._answer(Decision.CHAT))
        self.always_button = self.add_button(_("Always allow"), "", lambda: self._answer(Decision.ALWAYS))
        self.deny_button = self.add_button(_("Deny"), "", self._deny)
        self.edit_button = self.add_button(_("Edit arguments"), "link", self._edit)
        self.hide()

    def show_call(self, pending: PendingCall | None) -> None:
        """Show the question, or hide the card if it is None."""
        if pending == self._pending:
            return
        self._pending = pending
        self.setVisible(pending is not None)
        if pending is None:
            return
        tool = pending.tool
        title = _("Allow the tool “{tool}”?", tool=tool_label(tool.name, tool.source))
        advice = _("The tool describes itself as read-only.") if tool.read_only else ""
        description = " ".join(safe_prose(tool.description).split())
        if len(description) > _MAX_DESCRIPTION:  # cut within a word: Japanese has no spaces
            description = f"{description[: _MAX_DESCRIPTION - 1]}…"
        if description:
            description = _("The tool’s own description: {text}", text=description)
        self.set_text(title, description, advice)
        whole = tool_label(tool.name, tool.source, str)
        self.title.setToolTip(plain_tip(whole))
        self.setAccessibleName(join_sentences(_("Allow the tool “{tool}”?", tool=whole), description, advice))
        self._button_row.setEnabled(False)
        self._enabling.start()
        self.arguments.setReadOnly(True)
        self._show_arguments(safe_code(readable_arguments(pending.call.arguments)[0]))
        self.note.clear()
        self.note.hide()
        self.edit_button.show()

    def _show_arguments(self, text: str) -> None:
        self.arguments.setPlainText(text)
        self.arguments.setVisible(bool(text))
        lines = min(text.count("\n") + 1 + len(text) // _CHARACTERS, _MAX_LINES)
        self.arguments.setFixedHeight(lines * self.arguments.fontMetrics().lineSpacing() + _BOX_MARGINS)

    def _edit(self) -> None:
        if self._pending is not None:
            arguments = parse_arguments(self._pending.call.arguments)
            self._show_arguments(json.dumps(arguments, ensure_ascii=False, indent=2))
            self.arguments.setReadOnly(False)
            self.arguments.setFocus()
            self.edit_button.hide()

    def _deny(self) -> None:
        """Ask for a reason first; the second click denies."""
        if self.note.isHidden():
            self.note.show()
            self.note.setFocus()
            self.note.returnPressed.connect(self._deny)
        else:
            self.note.returnPressed.disconnect(self._deny)
            self._answer(Decision.DENY)

    def _answer(self, decision: Decision) -> None:
        if self._pending is not None:
            arguments = None if self.arguments.isReadOnly() else self.arguments.toPlainText()
            self.answered.emit(self._pending.key, Answer(decision, arguments, self.note.text()))
