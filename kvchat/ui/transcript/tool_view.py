"""The result of a tool call in the transcript, shown as code: it comes from a tool and may contain anything."""

import json
from collections.abc import Sequence

from PySide6.QtCore import QMargins
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget

from kvchat.chat.record.messages import Message, MessageState, parse_arguments
from kvchat.text.formatting import format_duration
from kvchat.text.language import _, join_list, join_parts
from kvchat.text.safe_text import safe_code, safe_prose
from kvchat.ui.rendering.code_view import CodeView
from kvchat.ui.rendering.markdown import Code
from kvchat.ui.rendering.text_page import PageStyle
from kvchat.ui.transcript.call_card import readable_arguments
from kvchat.ui.transcript.footer import Action, MessageActions, RequestKind
from kvchat.ui.transcript.message_view import MessageView, ToggleRow, shorten_name
from kvchat.ui.transcript.parts import Part

_GAP = 6  # pixels between the parts


class ToolView(MessageView):
    """The result of a tool call, folded to one line."""

    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        name = message.calls[0].name if message.calls else ""
        self._title = safe_prose(name) or _("Tool")
        accessible_name = shorten_name(_("Tool result: {text}", text=f"{self._title}: {message.content[:200]}"))
        super().__init__(style, message, accessible_name, "quote", QMargins(), parent)
        self.is_folded = True

    def message_parts(self) -> Sequence[Part]:
        message = self.message
        mark = {MessageState.FAILED: "✗", MessageState.STOPPED: "◻"}.get(message.state, "✓")
        facts = [f"{mark} {self._title}"]
        if message.state is MessageState.FAILED:
            facts.append(_("failed"))
        if message.state is MessageState.STOPPED:
            facts.append(_("stopped"))
        if message.state is MessageState.EDITED:
            facts.append(_("edited by you"))
        if message.tool_ms is not None:
            facts.append(format_duration(message.tool_ms))
        arrow = "▾" if not self.is_folded else "◂" if self.isRightToLeft() else "▸"
        name = join_list((*facts, _("collapsed") if self.is_folded else _("expanded")))
        parts = [Part(ToggleRow, state=(f"{join_parts(facts)} {arrow}", name))]
        if self.is_folded:
            return parts
        if message.calls and message.calls[0].arguments not in ("", "{}"):
            text, language = readable_arguments(message.calls[0].arguments)
            parts.append(self._code(safe_code(text), language))
        parts.append(self._code(safe_code(message.content.strip("\n")), ""))
        return [*parts, Part(MessageActions, gap=_GAP)]

    def _code(self, text: str, language: str) -> Part:
        return Part(CodeView, (Code(language, text, text),), language, gap=_GAP)

    def message_actions(self) -> list[Action]:
        copy = lambda: QGuiApplication.clipboard().setText(self.message.content)  # noqa: E731
        return [
            Action("copy", _("Copy the result"), copy),
            Action("edit", _("Edit the result"), self.edit_requested.emit),
            Action("swap", _("Call again with different arguments"), self._edit_arguments),
            Action("again", _("Continue from this result"), lambda: self._request(RequestKind.REGENERATE)),
            Action("trash", _("Delete the result and everything after it"), lambda: self._request(RequestKind.DELETE)),
        ]

    def create_part(self, part: Part) -> QWidget:
        if part.kind is ToggleRow:
            return ToggleRow("quiet", self._toggle)
        return super().create_part(part)

    def unfold(self) -> None:
        if self.is_folded:
            self.is_folded = False
            self.changed.emit()

    def _edit_arguments(self) -> None:
        arguments = parse_arguments(self.message.calls[0].arguments) if self.message.calls else None
        if arguments is not None:
            self.edit(json.dumps(arguments, ensure_ascii=False, indent=2), RequestKind.EDIT_CALL)

    def _toggle(self) -> None:
        self.is_folded = not self.is_folded
        self.toggled.emit()
