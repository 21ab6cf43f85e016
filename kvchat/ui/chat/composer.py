"""The message field with its buttons, and drafts typed during startup. Enter sends; Shift+Enter starts a new line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QMetaMethod, QMimeData, QObject, QSize, Qt, Signal
from PySide6.QtGui import QImage, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QWidget

from kvchat.text.formatting import one_line
from kvchat.text.language import _, join_list, join_sentences
from kvchat.ui.attachments.chips import ChipRows, short_name
from kvchat.ui.base.building import button, column, label, row, show_text, styled, tool_button
from kvchat.ui.base.theme import Look, page_font, restyle
from kvchat.ui.commands import with_key
from kvchat.ui.widgets.layouts import ElidedLabel

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Attachment

LONG_PASTE = 4000  # characters; a longer paste may be a document
ATTACHED_FROM = 20_000  # characters; longer text is attached unless the user wants it in the message
# Limits for laying out the field at each key without delay: 50,000 characters without a space took 70 ms.
MAX_TEXT, MAX_LINE = 100_000, 8_000
_MAX_LINES = 8
SEPARATOR = "\n\n"  # between messages kept as one draft


class MessageField(QPlainTextEdit):
    send_pressed = Signal()
    files_given = Signal(list)  # paths
    picture_given = Signal(QImage)
    long_pasted = Signal(str)
    too_long_pasted = Signal(str)  # not inserted
    up_from_empty = Signal()
    slash_typed = Signal()  # as the first character
    rewrapped = Signal()  # lines rewrapped; Qt has no signal for it

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return bool(local_files(source)) or source.hasImage() or super().canInsertFromMimeData(source)

    def insertFromMimeData(self, source: QMimeData) -> None:
        files = local_files(source)
        if files:
            self.files_given.emit(files)
        elif source.hasImage() and not source.hasText():
            self.picture_given.emit(QImage(source.imageData()))
        elif len(text := source.text()) > ATTACHED_FROM or not self.fits(text):
            self.too_long_pasted.emit(text)
        else:
            super().insertFromMimeData(source)
            if len(text) >= LONG_PASTE:
                self.long_pasted.emit(text)

    def fits(self, text: str) -> bool:
        line = self.textCursor().block().length()
        return self.document().characterCount() + len(text) <= MAX_TEXT and line + _longest_line(text) <= MAX_LINE

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.rewrapped.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & (Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.AltModifier):
            self.send_pressed.emit()
        elif event.key() == Qt.Key.Key_Up and self.document().isEmpty():
            self.up_from_empty.emit()
        else:
            super().keyPressEvent(event)
            if event.text() == "/" and self.document().characterCount() == 2:  # counts the paragraph end
                self.slash_typed.emit()


def fits_field(text: str) -> bool:
    return len(text) < MAX_TEXT and _longest_line(text) < MAX_LINE


def _longest_line(text: str) -> int:
    """Return the length of the longest line or, for text longer than `MAX_TEXT`, of the whole text."""
    return max(map(len, text.splitlines()), default=0) if len(text) <= MAX_TEXT else len(text)


def local_files(data: QMimeData) -> list[Path]:
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]


class QueuedMessage(QFrame):
    def __init__(self) -> None:
        super().__init__()
        styled(self, "details").setAccessibleName(_("Queued message"))
        self.state, self.summary = label(kind="small"), ElidedLabel()
        self.send_button = button(_("Send now"), kind="link", name=_("Send the queued message now"))
        self.edit_button = button(_("Edit"), kind="link", name=_("Edit the queued message"))
        self.remove_button = button(_("Remove"), kind="link", name=_("Remove the queued message"))
        parts = self.state, (self.summary, 1), self.send_button, self.edit_button, self.remove_button
        row(*parts, on=self, spacing=10, margins=(12, 4, 12, 4))
        self.source: Callable[[], tuple[str, Sequence[Attachment]]] = lambda: ("", ())
        self.hide()

    def refresh(self) -> None:
        text, attachments = self.source()
        self.summary.set_text(join_list(part for part in (one_line(text), *(a.name for a in attachments)) if part))
        self.setVisible(bool(text or attachments))

    def set_waiting(self, waiting: bool) -> None:
        self.state.setText(_("Sent after this reply:") if waiting else _("Not sent yet:"))
        self.send_button.setVisible(not waiting)


class Composer(QWidget):
    sent = Signal(str, tuple)  # text, attachments
    queued = Signal(str, tuple)  # text and attachments to send after the reply
    text_given = Signal(str)  # text to attach
    stop_requested = Signal()
    refused = Signal()  # user tried to send anyway

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._is_busy = False
        self._block_reason = ""  # of sending
        self.editor = MessageField(placeholderText=_("Message…"), tabChangesFocus=True)
        self.editor.setAccessibleName(_("Message"))
        self.editor.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.editor.send_pressed.connect(self.send)
        self.editor.textChanged.connect(self._text_changed)
        self.editor.document().documentLayout().documentSizeChanged.connect(self._fit)
        self.editor.rewrapped.connect(self._fit)
        self.editor.installEventFilter(self)
        self.send_button = button("", lambda: self.stop_requested.emit() if self._is_busy else self.send(), "send")
        tip = _("Send after this reply (Enter)")
        self.send_after_reply_button = button("", self.send, "send", name=_("Send after this reply"), tip=tip)
        self.send_after_reply_button.setIcon(look.icon("arrow-up", "on_accent"))
        tip = with_key(_("Attach text, code, PDF files or images. You can also drop or paste them"), "attach")
        self.attach_button = tool_button(_("Attach files"), tip=tip, icon=look.icon("paperclip"))
        tip = with_key(title := _("Attach a screenshot"), "screenshot")
        self.screenshot_button = tool_button(title, tip=tip, icon=look.icon("camera"))
        self.tools_button = tool_button(_("Tools"), icon=look.icon("tools"))
        self.tools_button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.tools_button.hide()  # until a controller uses it
        self.chips = ChipRows(look)
        self.chips.changed.connect(self._chips_changed)
        self.attach_paste_button = button(_("Attach the pasted text as a file instead"), self._attach_paste, "link")
        self.paste_as_text_button = button(_("Paste as text instead"), self._insert_paste, "link")
        self._pasted = ""
        self._pending_texts: list[str] = []  # to attach, kept until a handler exists
        self.notice = label(kind="small")
        self._reading: tuple[str, ...] = ()  # names of attachments being read
        self._is_starting = self._send_when_ready = False  # ready: started, and attachments read
        self.editor.long_pasted.connect(self._offer_attaching)
        self.editor.too_long_pasted.connect(self._attach_text)
        self.queued_message = QueuedMessage()
        self._frame = styled(QFrame(), "composer")
        for widget in (
            self.chips,
            self.notice,
            self.attach_paste_button,
            self.paste_as_text_button,
            self.send_after_reply_button,
        ):
            widget.hide()
        middle, bottom = Qt.AlignmentFlag.AlignVCenter, Qt.AlignmentFlag.AlignBottom
        pictures = row(
            (self.attach_button, 0, bottom),
            (self.screenshot_button, 0, bottom),
            (self.tools_button, 0, bottom),
            spacing=0,
        )
        buttons = (self.send_after_reply_button, 0, bottom), (self.send_button, 0, bottom)
        line = row(pictures, (self.editor, 1, middle), *buttons, spacing=8)
        left = Qt.AlignmentFlag.AlignLeft
        above = self.chips, self.notice, (self.attach_paste_button, 0, left), (self.paste_as_text_button, 0, left)
        column(*above, line, on=self._frame, spacing=4, margins=(8, 6, 8, 6))
        column(self.queued_message, self._frame, on=self, spacing=6, margins=0)
        look.changed.connect(self._restyle)
        self._restyle()
        self._show_button()

    @property
    def draft(self) -> str:
        return self.editor.toPlainText()

    def set_draft(self, text: str) -> None:
        self.editor.setPlainText(text)
        self.editor.moveCursor(self.editor.textCursor().MoveOperation.End)

    def set_attachments(self, attachments: Sequence[Attachment]) -> None:
        self.chips.show_attachments(attachments, removable=True)

    def show_reading(self, names: Sequence[str]) -> None:
        self._reading = tuple(names)
        self._show_notice()
        if not names and self._send_when_ready:
            self.send()

    def cancel_delayed_send(self) -> None:
        """Cancel a send that waits for attachments to be read or for startup to finish."""
        self._send_when_ready = False
        self._show_notice()

    def set_starting(self, starting: bool) -> bool:
        """Delay sending while `starting`. Return True if this call canceled a send that was waiting."""
        was_delayed, self._is_starting = self._send_when_ready, starting
        self.cancel_delayed_send()
        return was_delayed

    def set_busy(self, busy: bool) -> None:
        self._is_busy = busy
        self.queued_message.set_waiting(busy)
        self._show_button()

    def block_sending(self, reason: str) -> None:
        """Disable sending and show the reason. An empty reason enables sending again."""
        self._block_reason = reason
        self._show_button()

    def insert_text(self, text: str) -> None:
        self.editor.setFocus()
        if self.editor.fits(text):
            self.editor.insertPlainText(text)
        else:
            self._attach_text(text)

    def emit_pending_texts(self) -> None:
        """Emit `text_given` for the texts that were added before anything was connected to the signal."""
        while self._pending_texts:
            self.text_given.emit(self._pending_texts.pop(0))

    def focus(self) -> None:
        self.editor.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.FocusIn, QEvent.Type.FocusOut):
            restyle(self._frame, "focused", "true" if event.type() == QEvent.Type.FocusIn else "false")
        return super().eventFilter(watched, event)

    def send(self) -> None:
        text, attachments = self.draft.strip(), self.chips.attachments
        self._send_when_ready = bool(self._reading) or (self._is_starting and bool(text))
        self._show_notice()
        if self._send_when_ready or not (text or attachments):
            return
        if self._block_reason:
            self.refused.emit()
        else:
            self.editor.clear()
            self.set_attachments(())
            (self.queued if self._is_busy else self.sent).emit(text, attachments)

    def _show_notice(self) -> None:
        text = _("Your message will be sent once kvchat has started.") if self._send_when_ready else ""
        if names := join_list(map(short_name, self._reading)):
            text = _("Reading {names}…", names=names)
            if self._send_when_ready:
                text = join_sentences(text, _("Your message will be sent afterwards."))
        show_text(self.notice, text)

    def _offer_attaching(self, text: str) -> None:
        self._pasted = text
        self.attach_paste_button.show()

    def _attach_paste(self) -> None:
        text, self._pasted = self._pasted, ""
        self.set_draft(self.draft.replace(text.replace("\r\n", "\n"), "", 1).strip())
        self.text_given.emit(text)
        self.focus()

    def _attach_text(self, text: str) -> None:
        self._pasted = text if self.editor.fits(text) else ""
        if self.isSignalConnected(QMetaMethod.fromSignal(self.text_given)):
            self.text_given.emit(text)
        else:
            self._pending_texts.append(text)

    def _insert_paste(self) -> None:
        text, pasted = self._pasted, self._pasted_attachment()
        if pasted is not None and self.editor.fits(text):
            self.set_attachments([attachment for attachment in self.chips.attachments if attachment is not pasted])
            self.editor.insertPlainText(text)
        self.focus()

    def _pasted_attachment(self) -> Attachment | None:
        lines = self._pasted.splitlines()
        same = (attachment for attachment in self.chips.attachments if attachment.text.splitlines() == lines)
        return next(same, None) if lines else None

    def _chips_changed(self) -> None:
        self.paste_as_text_button.setVisible(self._pasted_attachment() is not None)
        self._show_button()

    def _text_changed(self) -> None:
        self.cancel_delayed_send()
        if len(self.draft) < LONG_PASTE:
            self.attach_paste_button.hide()
        self._show_button()

    def _show_button(self) -> None:
        has_content = bool(self.draft.strip() or self.chips.attachments)
        can_press = self._is_busy or (has_content and not self._block_reason)
        self.send_after_reply_button.setVisible(self._is_busy and has_content)
        self.send_button.setEnabled(can_press)
        glyph, colour = "stop" if self._is_busy else "arrow-up", "on_accent" if can_press else "muted"
        self.send_button.setIcon(self._look.icon(glyph, colour))
        self.send_button.setAccessibleName(_("Stop") if self._is_busy else _("Send"))
        self.send_button.setToolTip(
            _("Stop the reply (Esc)") if self._is_busy else self._block_reason or _("Send (Enter)")
        )

    def _restyle(self) -> None:
        font = page_font(self._look.fonts.family, self._look.fonts.body)
        self.editor.setFont(font)
        for pressed, side in (
            (self.send_button, 20),
            (self.send_after_reply_button, 20),
            (self.attach_button, 18),
            (self.screenshot_button, 18),
        ):
            pressed.setFixedSize(QSize(1, 1) * 2 * self._look.px(16))
            pressed.setIconSize(QSize(1, 1) * self._look.px(side))
        self.tools_button.setFixedHeight(2 * self._look.px(16))
        self.tools_button.setIconSize(QSize(1, 1) * self._look.px(18))
        self.editor.viewport().setFont(font)  # used for the placeholder
        self._fit()

    def _fit(self) -> None:
        line = self.editor.fontMetrics().lineSpacing()
        lines = round(self.editor.document().size().height())  # plain text documents count in lines
        policy = Qt.ScrollBarPolicy.ScrollBarAsNeeded if lines > _MAX_LINES else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        self.editor.setVerticalScrollBarPolicy(policy)
        margins = round(2 * self.editor.document().documentMargin())
        self.editor.setFixedHeight(max(1, min(lines, _MAX_LINES)) * line + margins + 1)


class StartupDrafts(QObject):
    """Drafts typed while kvchat starts, by conversation id; "" for a new chat."""

    changed = Signal(str, str)  # conversation id and draft

    def __init__(self, composer: Composer, parent: QObject) -> None:
        super().__init__(parent)
        self.conversation_id = ""  # of the draft in the composer
        self.is_restored = False  # set by `restore`
        self._composer = composer
        self._drafts: dict[str, str] = {}
        self._too_long: set[str] = set()  # stored drafts that will become attachments
        composer.editor.textChanged.connect(self.emit_changed)

    def restore(self, conversation_id: str, drafts: Mapping[str, str]) -> None:
        """Put the stored draft in front of the text that the user has typed since."""
        self.conversation_id, self.is_restored = conversation_id, True
        self._too_long = {id for id, text in drafts.items() if not fits_field(text)}
        self._drafts = {id: text for id, text in drafts.items() if id not in self._too_long}
        if draft := self._drafts.get(conversation_id):
            self._composer.set_draft(draft + self._composer.draft)
        else:
            self.emit_changed()

    def switch_to(self, conversation_id: str) -> None:
        self._drafts[self.conversation_id], self.conversation_id = self._composer.draft, conversation_id
        self._composer.set_draft(self._drafts.get(conversation_id, ""))

    def end(self) -> dict[str, str]:
        """Stop following the composer and return all drafts by conversation id."""
        self._composer.editor.textChanged.disconnect(self.emit_changed)
        return self._drafts | {self.conversation_id: self._composer.draft}

    def emit_changed(self) -> None:
        if self.is_restored and self.conversation_id not in self._too_long:
            self.changed.emit(self.conversation_id, self._composer.draft)
