"""The result of a tool call in the transcript, shown as code, because it may contain anything."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QMargins, Qt
from PySide6.QtGui import QFontMetricsF, QGuiApplication
from PySide6.QtWidgets import QWidget

from kvchat.chat.record.messages import Message, MessageState, parse_arguments
from kvchat.text.formatting import format_duration, one_line
from kvchat.text.language import _, join_list, join_parts, plural
from kvchat.text.markdown import is_web_link
from kvchat.text.safe_text import safe_code, safe_prose
from kvchat.ui.attachments.chips import ChipRows, short_name
from kvchat.ui.base.building import column, leading_alignment
from kvchat.ui.rendering.code_view import CodeView
from kvchat.ui.rendering.markdown import Code, plain_blocks
from kvchat.ui.rendering.text_page import PageStyle, TextPage
from kvchat.ui.transcript.call_card import readable_arguments
from kvchat.ui.transcript.footer import Action, MessageActions, RequestKind
from kvchat.ui.transcript.message_view import MessageView, ToggleRow, shorten_name
from kvchat.ui.transcript.parts import Part
from kvchat.ui.widgets.layouts import ElidedButton

_GAP = 6  # pixels between the parts
_FOLD_FROM, _FOLDED_LINES = 24, 16  # lines of a long result, and how many are shown at first
_TILE_MARGIN = 6  # pixels around a picture
_MAX_LINKS = 10  # shown; the text of the result contains all links


def readable_result(text: str) -> tuple[str, str]:
    """Return a result's text, indented if it is JSON, and the language for syntax highlighting."""
    try:
        value = json.loads(text) if text[:1] in ("{", "[") else None
        indented = [json.dumps(value, ensure_ascii=is_escaped, indent=2) for is_escaped in (False, True)]
    except (ValueError, RecursionError):
        return text, ""
    same = (other for other in indented if "".join(other.split()) == "".join(text.split()))  # only whitespace differs
    return next(same, text), "json" if value is not None else ""


class LinkRows(QWidget):
    """Links that a tool returned, with their URLs. A click asks before opening one."""

    def __init__(self, links: Sequence[tuple[str, str]], on_click: Callable[[str], object]) -> None:
        super().__init__()
        self.buttons: list[ElidedButton] = []
        for name, url in links:
            link = ElidedButton("link")
            link.set_text(join_parts([short_name(safe_prose(name)), safe_code(url)]), "", url)
            link.setAccessibleName(_("Link: {text}", text=join_list((safe_prose(name), safe_code(url)))))
            link.setCursor(Qt.CursorShape.PointingHandCursor)
            link.clicked.connect(partial(on_click, url))
            self.buttons.append(link)
        start = leading_alignment()
        self._column = column(*((link, 0, start) for link in self.buttons), on=self, spacing=0, margins=0)

    def heightForWidth(self, width: int) -> int:
        return self._column.sizeHint().height()


class ToolView(MessageView):
    """The result of a tool call: one line until it is expanded, and its pictures."""

    def __init__(self, style: PageStyle, message: Message, parent: QWidget | None = None) -> None:
        name = message.calls[0].name if message.calls else ""
        self._title = one_line(safe_prose(name)) or _("Tool")
        accessible_name = shorten_name(_("Tool result: {text}", text=f"{self._title}: {message.content[:200]}"))
        super().__init__(style, message, accessible_name, "quote", QMargins(), parent)
        self.is_folded = True
        self._shows_all = False

    def message_parts(self) -> Sequence[Part]:
        message = self.message
        mark = {MessageState.FAILED: "✗", MessageState.STOPPED: "◻"}.get(message.state, "✓")
        facts = {
            MessageState.FAILED: [_("failed")],
            MessageState.STOPPED: [_("stopped")],
            MessageState.EDITED: [_("edited by you")],
        }.get(message.state, [])
        if message.tool_ms is not None:
            facts.append(format_duration(message.tool_ms))
        arrow = "▾" if not self.is_folded else "◂" if self.isRightToLeft() else "▸"
        name = join_list((mark, self._title, *facts, _("collapsed") if self.is_folded else _("expanded")))
        tail = f"· {join_parts(facts)} {arrow}" if facts else arrow
        toggle = partial(ToggleRow, "quiet", self._toggle, "warn" if message.state is MessageState.FAILED else "")
        parts = [Part(ToggleRow, state=(f"{mark} \u2068{self._title}\u2069", tail, name), make=toggle)]
        if not self.is_folded and message.calls and message.calls[0].arguments not in ("", "{}"):
            text, language = readable_arguments(message.calls[0].arguments)
            parts.append(self._code(safe_code(text), language, _("Arguments")))
        if not self.is_folded:
            parts += self._content()
        if message.attachments:
            indent = -_TILE_MARGIN
            parts.append(Part(ChipRows, state=message.attachments, gap=_GAP, indent=indent, make=self.make_chips))
        if message.is_unseen:
            note = _("Shown only to you: the model does not support images.")
            page = partial(self.make_muted_page, self._name)
            parts.append(Part(TextPage, tuple(plain_blocks(note)), gap=_GAP, make=page))
        if self.is_folded:
            return parts
        links = [link for link in message.links if is_web_link(link[1])][:_MAX_LINKS]
        if links:
            rows = partial(LinkRows, links, self.link_activated.emit)
            parts.append(Part(LinkRows, state=tuple(links), gap=_GAP, make=rows))
        return [*parts, Part(MessageActions, gap=_GAP, make=self.make_actions)]

    def _content(self) -> list[Part]:
        text, language = readable_result(self.message.content.strip("\n"))
        lines = text.count("\n") + 1
        content = self._code(safe_code(text), language, _("Result"))
        if lines <= _FOLD_FROM:
            return [content] if text else []
        label, arrow = _("Show less"), "▴"
        if not self._shows_all:
            label, arrow = plural(lines, "Show all, {count} line", "Show all, {count} lines"), "▾"
            height = round(QFontMetricsF(self.page_style.code_font).lineSpacing() * 1.28 * _FOLDED_LINES)
            content = replace(content, max_height=height)
        more = partial(ToggleRow, "link", self._toggle_rest)
        return [content, Part(ToggleRow, state=(label, arrow, label), make=more)]

    def _code(self, text: str, language: str, title: str) -> Part:
        return Part(CodeView, (Code(language, text, text),), title, gap=_GAP)

    def message_actions(self) -> list[Action]:
        copy = lambda: QGuiApplication.clipboard().setText(self.message.content)  # noqa: E731
        return [
            Action("copy", _("Copy the result"), copy),
            Action("edit", _("Edit the result"), self.edit_requested.emit),
            Action("swap", _("Call again with different arguments"), self._edit_arguments),
            Action("again", _("Continue from this result"), lambda: self._request(RequestKind.REGENERATE)),
            Action("trash", _("Delete the result and everything after it"), lambda: self._request(RequestKind.DELETE)),
        ]

    def unfold(self) -> None:
        if self.is_folded or not self._shows_all:
            self.is_folded, self._shows_all = False, True
            self.changed.emit()

    def _edit_arguments(self) -> None:
        arguments = parse_arguments(self.message.calls[0].arguments) if self.message.calls else None
        if arguments is not None:
            self.edit(json.dumps(arguments, ensure_ascii=False, indent=2), RequestKind.EDIT_CALL)

    def _toggle(self) -> None:
        self.is_folded = not self.is_folded
        self.toggled.emit()

    def _toggle_rest(self) -> None:
        self._shows_all = not self._shows_all
        self.toggled.emit()
