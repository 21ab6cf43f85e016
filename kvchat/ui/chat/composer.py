"""Where the user writes: Enter sends, Shift+Enter makes a line. During a reply Send is Stop, and Enter queues."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QMetaMethod, QMimeData, QObject, QSize, Qt, Signal
from PySide6.QtGui import QImage, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QWidget

from kvchat.ui.attachments.chips import ChipRows, short_name
from kvchat.ui.base.building import button, column, label, row, styled, tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look, page_font, restyle
from kvchat.ui.chat.queued import QueuedMessage
from kvchat.words.language import _, listed

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Attachment

_MOST_LINES = 8
LONG_PASTE = 4000  # characters; from so many on a paste may as well be a document
ATTACHED_FROM = 20_000  # characters; what is longer is attached unless the user wants it in the message
# What the field can lay out at each key without holding up the window: 50,000 characters without a space took 70 ms.
MOST_TEXT, MOST_LINE = 100_000, 8_000


class MessageEditor(QPlainTextEdit):
    """A plain text field that sends on Enter."""

    send_pressed = Signal()
    files_given = Signal(list)  # of paths
    picture_given = Signal(QImage)
    long_pasted = Signal(str)
    too_long_pasted = Signal(str)  # and not inserted
    up_from_empty = Signal()
    slash_typed = Signal()  # as the first character
    rewrapped = Signal()  # its lines are broken anew, which Qt does not tell

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        """Files and pictures are taken as well as text."""
        return bool(local_files(source)) or source.hasImage() or super().canInsertFromMimeData(source)

    def insertFromMimeData(self, source: QMimeData) -> None:
        """Pasted or dropped: files are attached, text is inserted, and a long one may be attached instead."""
        files = local_files(source)
        if files:
            self.files_given.emit(files)
        elif source.hasImage() and not source.hasText():
            self.picture_given.emit(QImage(source.imageData()))
        elif len(text := source.text()) > ATTACHED_FROM or not self.holds(text):
            self.too_long_pasted.emit(text)
        else:
            super().insertFromMimeData(source)
            if len(text) >= LONG_PASTE:
                self.long_pasted.emit(text)

    def holds(self, more: str) -> bool:
        """True if there is room for so much more text at the cursor."""
        line = self.textCursor().block().length()
        return self.document().characterCount() + len(more) <= MOST_TEXT and line + _longest_line(more) <= MOST_LINE

    def resizeEvent(self, event: QResizeEvent) -> None:
        """In another width a text has another number of lines."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.rewrapped.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter sends; with Shift (or Alt) it is a new line. Up in an empty field goes back to the last question."""
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & (Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.AltModifier):
            self.send_pressed.emit()
        elif event.key() == Qt.Key.Key_Up and self.document().isEmpty():
            self.up_from_empty.emit()
        else:
            super().keyPressEvent(event)
            if event.text() == "/" and self.document().characterCount() == 2:  # with the paragraph's end
                self.slash_typed.emit()


class Composer(QWidget):
    """The message being written, and the button beside it."""

    sent = Signal(str, tuple)  # the words, and what is attached
    held = Signal(str)  # they were sent while kvchat starts
    queued = Signal(str, tuple)  # the same during a reply: to be sent after it
    text_given = Signal(str)  # to be attached
    stop_requested = Signal()
    refused = Signal()  # sending was tried all the same

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self._busy = False
        self._refusal = ""  # why nothing can be sent now
        self.editor = MessageEditor(placeholderText=_("Message…"), tabChangesFocus=True)
        self.editor.setAccessibleName(_("Message"))
        self.editor.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.editor.send_pressed.connect(self._send)
        self.editor.textChanged.connect(self._text_changed)
        self.editor.document().documentLayout().documentSizeChanged.connect(self._fit)
        self.editor.rewrapped.connect(self._fit)
        self.editor.installEventFilter(self)
        self.button = button("", self._pressed, "send")
        tip = _("Attach text, code, PDF files or pictures (Ctrl+O); you can also drop or paste them")
        self.attach = tool_button(_("Attach files"), tip=tip)
        self.chips = ChipRows(look)
        self.chips.changed.connect(self._chips_changed)
        self.offer = button(_("Attach the pasted text as a file instead"), self._attach_paste, "link")
        self.as_text = button(_("Paste as text instead"), self._insert_paste, "link")
        self._pasted = ""
        self._unclaimed: list[str] = []  # texts to be attached, as long as nobody attaches any
        self.reading = label(kind="small")
        self._reading: tuple[str, ...] = ()
        self._send_when_read = self._send_when_idle = False
        self._starting, self._held = False, False
        self.editor.long_pasted.connect(self._offer)
        self.editor.too_long_pasted.connect(self._attach_text)
        self.waiting = QueuedMessage()
        self._frame = styled(QFrame(), "composer")
        for widget in (self.chips, self.reading, self.offer, self.as_text):
            widget.hide()
        middle, bottom = Qt.AlignmentFlag.AlignVCenter, Qt.AlignmentFlag.AlignBottom
        line = row((self.attach, 0, bottom), (self.editor, 1, middle), (self.button, 0, bottom), spacing=8)
        left = Qt.AlignmentFlag.AlignLeft
        above = self.chips, self.reading, (self.offer, 0, left), (self.as_text, 0, left)
        column(*above, line, on=self._frame, spacing=4, margins=(8, 6, 8, 6))
        column(self.waiting, self._frame, on=self, spacing=6, margins=0)
        look.changed.connect(self._restyle)
        self._restyle()

    @property
    def draft(self) -> str:
        """What has been written and not sent."""
        return self.editor.toPlainText()

    def set_draft(self, text: str) -> None:
        """Put back what was written for another conversation."""
        self.editor.setPlainText(text)
        self.editor.moveCursor(self.editor.textCursor().MoveOperation.End)

    def set_attachments(self, attachments: Sequence[Attachment]) -> None:
        """Put back what was attached for another conversation."""
        self.chips.show_attachments(attachments, removable=True)

    def show_reading(self, names: Sequence[str]) -> None:
        """These files are being read to be attached; Send waits for them."""
        self._reading = tuple(names)
        self._say_reading()
        if not names and self._send_when_read:
            self._send()

    def hold(self) -> None:
        """Do not send by itself what waits for a file, or for a reply."""
        self._send_when_read = self._send_when_idle = False
        self._say_reading()

    def set_starting(self, starting: bool) -> None:
        """Nobody is there yet to send what is written: it is `held`."""
        self._starting, self._held = starting, False
        self._say_reading()

    def send_after_reply(self, text: str) -> None:
        """Send this by itself when the reply that runs has ended, unless it is changed."""
        self.set_draft(text)
        self._send_when_idle = True
        self._say_reading()

    def set_busy(self, busy: bool) -> None:
        """Whether a reply runs in this conversation: then the button stops it."""
        ended, self._busy = self._busy and not busy, busy
        self.waiting.set_waiting(busy)
        self._show_button()
        if ended and self._send_when_idle:
            self.hold()
            self._send()

    def refuse(self, why: str) -> None:
        """Let nothing be sent, and say why; empty allows it again."""
        self._refusal = why
        self._show_button()

    def take(self, text: str) -> None:
        """Go on writing with this, which was typed elsewhere."""
        self.editor.setFocus()
        if self.editor.holds(text):
            self.editor.insertPlainText(text)
        else:
            self._attach_text(text)

    def give_unclaimed(self) -> None:
        """There is somebody now who attaches texts."""
        texts, self._unclaimed = self._unclaimed, []
        for text in texts:
            self.text_given.emit(text)

    def focus(self) -> None:
        """Put the cursor here."""
        self.editor.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """The frame shows that the field has the focus."""
        if event.type() in (QEvent.Type.FocusIn, QEvent.Type.FocusOut):
            restyle(self._frame, "focused", "true" if event.type() == QEvent.Type.FocusIn else "false")
        return super().eventFilter(watched, event)

    def _pressed(self) -> None:
        if self._busy:
            self.stop_requested.emit()
        else:
            self._send()

    def _send(self) -> None:
        text, attachments = self.draft.strip(), self.chips.attachments
        self._send_when_read = bool(self._reading)
        self._say_reading()
        if self._send_when_read or not (text or attachments):
            return
        if self._starting:
            self._held = True
            self.held.emit(text)
            self.editor.clear()
        elif self._refusal:
            self.refused.emit()
        else:
            self.editor.clear()
            self.set_attachments(())
            (self.queued if self._busy else self.sent).emit(text, attachments)

    def _say_reading(self) -> None:
        words = ""
        if names := listed(map(short_name, self._reading)):
            then = _("Your message is sent when that is done.") if self._send_when_read else _("Send waits for that.")
            words = _("Reading {names}… {then}", names=names, then=then)
        elif self._held:
            words = _("Your message is sent when kvchat has started.")
        elif self._send_when_idle:
            words = _("Your message is sent when the reply has ended.")
        self.reading.setText(words)
        self.reading.setVisible(bool(words))

    def _offer(self, text: str) -> None:
        self._pasted = text
        self.offer.show()

    def _attach_paste(self) -> None:
        """Out of the message, into a document."""
        text, self._pasted = self._pasted, ""
        self.set_draft(self.draft.replace(text.replace("\r\n", "\n"), "", 1).strip())
        self.text_given.emit(text)
        self.focus()

    def _attach_text(self, text: str) -> None:
        """Attach a text that is too long for the field; if it could hold it, offer that."""
        self._pasted = text if self.editor.holds(text) else ""
        if self.isSignalConnected(QMetaMethod.fromSignal(self.text_given)):
            self.text_given.emit(text)
        else:
            self._unclaimed.append(text)

    def _insert_paste(self) -> None:
        """Out of the document, into the message."""
        text, place = self._pasted, self._place_of_paste()
        if place is not None and self.editor.holds(text):
            rest = self.chips.attachments[:place] + self.chips.attachments[place + 1 :]
            self.set_attachments(rest)
            self.editor.insertPlainText(text)
        self.focus()

    def _place_of_paste(self) -> int | None:
        """Which attachment was pasted last."""
        lines = self._pasted.splitlines()
        places = (n for n, one in enumerate(self.chips.attachments) if one.text.splitlines() == lines)
        return next(places, None) if lines else None

    def _chips_changed(self) -> None:
        self.as_text.setVisible(self._place_of_paste() is not None)
        self._show_button()

    def _text_changed(self) -> None:
        self.hold()
        if len(self.draft) < LONG_PASTE:
            self.offer.hide()
        self._show_button()

    def _show_button(self) -> None:
        theme = self._look.theme
        can_send = bool(self.draft.strip() or self.chips.attachments) and not self._refusal
        self.attach.setIcon(icon("paperclip", theme.muted))
        self.button.setEnabled(self._busy or can_send)
        if self._busy:
            self.button.setIcon(icon("stop", theme.on_accent))
        else:
            self.button.setIcon(icon("arrow-up", theme.on_accent if can_send else theme.muted))
        words = _("Stop") if self._busy else _("Send")
        self.button.setAccessibleName(words)
        self.button.setToolTip(_("Stop the reply (Esc)") if self._busy else self._refusal or _("Send (Enter)"))

    def _restyle(self) -> None:
        font = page_font(self._look.type.family, self._look.type.body)
        self.editor.setFont(font)
        for one, side in ((self.button, 20), (self.attach, 18)):
            one.setFixedSize(QSize(1, 1) * 2 * self._look.px(16))
            one.setIconSize(QSize(1, 1) * self._look.px(side))
        self.editor.viewport().setFont(font)  # the placeholder is drawn in it
        self._fit()
        self._show_button()

    def _fit(self) -> None:
        line = self.editor.fontMetrics().lineSpacing()
        wanted = round(self.editor.document().size().height())  # a plain text document counts in lines
        lines = max(1, min(wanted, _MOST_LINES))
        policy = Qt.ScrollBarPolicy.ScrollBarAsNeeded if wanted > _MOST_LINES else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        self.editor.setVerticalScrollBarPolicy(policy)
        margins = round(2 * self.editor.document().documentMargin())
        self.editor.setFixedHeight(lines * line + margins + 1)


def fits_composer(text: str) -> bool:
    """True if the field can hold all of it."""
    return len(text) < MOST_TEXT and _longest_line(text) < MOST_LINE


def _longest_line(text: str) -> int:
    """Its length. Only a text of at most `MOST_TEXT` characters is looked at; a longer one is too long anyway."""
    return max(map(len, text.splitlines()), default=0) if len(text) <= MOST_TEXT else len(text)


def local_files(data: QMimeData) -> list[Path]:
    """The files on this computer that are dragged or pasted."""
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]
