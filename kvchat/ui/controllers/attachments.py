"""Attachments in the composer: reads dropped, pasted or chosen files, and counts their tokens before Send.

An attachment belongs to the chat that was open when the user added it, even if another is open once it is read.
"""

import asyncio
import re
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from PySide6.QtCore import QEvent, QObject, QPoint, Signal
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QFileDialog, QLineEdit, QMenu, QWidget

from kvchat.chat.attachments import document_from_bytes, document_from_text, is_picture, read_bytes
from kvchat.chat.events import EngineChanged, Event
from kvchat.chat.record.messages import Attachment
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.text.language import N_, _
from kvchat.ui.attachments.from_servers import ServerAttachmentsDialog
from kvchat.ui.attachments.pictures import prepare_image, prepare_picture, take_screenshot
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.chat.composer import Composer, local_files
from kvchat.ui.controllers.sending import PASTED_TEXT_NAME
from kvchat.ui.dialogs.confirm import file_dialog
from kvchat.ui.dialogs.panel import Notices

PASTED_PICTURE, SCREENSHOT = N_("Pasted image.png"), N_("Screenshot.png")


class AttachmentDrafts(Protocol):
    """Attachments of unsent messages, by conversation id (None for a new chat)."""

    def current_chat(self) -> str | None: ...

    def attachments_of(self, conversation_id: str | None) -> tuple[Attachment, ...]: ...

    def attach(self, conversation_id: str | None, attachments: tuple[Attachment, ...]) -> None: ...


class AttachmentLoader(QObject):
    """Reads files, pictures, long texts and screenshots that the user adds to the composer or drops on `page`.

    Its owner must pass the runtime's events to `handle_event`.
    """

    bundle_given = Signal(Path)  # an MCP bundle to install

    def __init__(
        self,
        runtime: Runtime,
        look: Look,
        composer: Composer,
        drafts: AttachmentDrafts,
        runner: TaskRunner,
        notices: Notices,
        page: QWidget,
    ) -> None:
        super().__init__(page)
        self._runtime, self._look, self._composer, self._drafts = runtime, look, composer, drafts
        self.menu = QMenu(composer)
        self.menu.addAction(look.icon("paperclip"), _("Files…"), self.choose_files)
        self.menu.addAction(look.icon("tools"), _("From an MCP server…"), self.choose_from_servers)
        self._runner, self._notices = runner, notices
        self._reading: list[tuple[str | None, str]] = []  # chat id and name of the file being read
        self._errors: list[tuple[str | None, KvchatError]] = []  # shown while that chat is open
        runtime.chat.turn_context.prepare_picture = prepare_picture
        composer.attach_button.clicked.connect(self._choose)
        composer.screenshot_button.clicked.connect(self.take_screenshot)
        composer.editor.files_given.connect(self.load_files)
        composer.editor.picture_given.connect(
            lambda image: self._load(name := _(PASTED_PICTURE), asyncio.to_thread(prepare_image, name, image))
        )
        composer.text_given.connect(
            lambda text: self._load(name := _(PASTED_TEXT_NAME), asyncio.to_thread(document_from_text, name, text))
        )
        composer.chips.changed.connect(self._count_tokens)
        page.setAcceptDrops(True)
        page.installEventFilter(self)

    def load_files(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if path.suffix.lower() == ".mcpb":
                self.bundle_given.emit(path)
            else:
                self._load(path.name, asyncio.to_thread(_read, path))

    def load_contents(self, contents: Sequence[tuple[str, bytes]]) -> None:
        """Attach named contents of MCP servers like files."""
        for name, data in contents:
            self._load(name, asyncio.to_thread(_prepare, name, data))

    def _choose(self) -> None:
        """Open the file dialog, or a menu if MCP servers offer something to attach."""
        if not self._runtime.mcp_servers.attachment_sources:
            self.choose_files()
            return
        button = self._composer.attach_button
        self.menu.popup(button.mapToGlobal(QPoint(0, -self.menu.sizeHint().height())))

    def choose_from_servers(self) -> ServerAttachmentsDialog:
        composer = self._composer
        dialog = ServerAttachmentsDialog(self._runtime, self._look, self._runner, composer.window())
        dialog.text_chosen.connect(composer.insert_text)
        dialog.contents_chosen.connect(self.load_contents)
        dialog.finished.connect(lambda: composer.focus())
        dialog.bring_forward()
        return dialog

    def choose_files(self) -> None:
        def load(reported: Sequence[str]) -> None:
            field, folder = dialog.findChild(QLineEdit), Path(dialog.directory().path())
            names = re.findall(r'"([^"]+)"', field.text()) if field is not None else []

            async def load_chosen() -> None:
                self.load_files(await asyncio.to_thread(_chosen_files, folder, names, list(map(Path, reported))))

            self._runner.start(load_chosen())

        dialog = file_dialog(self._composer.window(), _("Attach files"), QFileDialog.FileMode.ExistingFiles)
        dialog.filesSelected.connect(load)
        dialog.finished.connect(lambda: self._composer.focus())
        dialog.open()

    def take_screenshot(self) -> None:
        async def take() -> None:
            await self._runtime.chat.context.check_vision(conversation_id)
            if (image := await take_screenshot(self._composer.window())) is not None:
                self._load(name := _(SCREENSHOT), asyncio.to_thread(prepare_image, name, image))
            self._composer.focus()

        conversation_id = self._drafts.current_chat()
        self._runner.start(take(), self._notices.show_error)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QDragEnterEvent) and local_files(event.mimeData()):
            event.acceptProposedAction()
            return True
        if isinstance(event, QDropEvent) and event.type() == QEvent.Type.Drop:
            self.load_files(local_files(event.mimeData()))
            event.acceptProposedAction()
            return True
        return super().eventFilter(watched, event)

    def _load(self, name: str, reading: Coroutine[Any, Any, Attachment]) -> None:
        """Run `reading` and attach its result to the chat that was open at the start."""
        id, drafts = self._drafts.current_chat(), self._drafts

        async def load() -> None:
            try:
                attachment = await reading
                if attachment.data:
                    await self._runtime.chat.context.check_vision(id)  # a chat may have a model of its own
                attached = drafts.attachments_of(id)
                if not any((other.name, other.hash) == (attachment.name, attachment.hash) for other in attached):
                    drafts.attach(id, (*attached, attachment))
            except BaseException:
                if id == drafts.current_chat():
                    self._composer.cancel_delayed_send()
                raise
            finally:
                self._reading.remove((id, name))
                self._show_reading()

        def show_error(error: KvchatError) -> None:
            self._errors.append((id, error))
            if id == drafts.current_chat():
                self._notices.show_error(error)

        self._reading.append((id, name))
        self._show_reading()
        self._runner.start(load(), show_error)

    def switch_chat(self, previous: str | None) -> None:
        for id, error in self._errors:
            if id == previous:
                self._notices.withdraw_error(error)
            elif id == self._drafts.current_chat():
                self._notices.show_error(error)
        self._errors = [(id, error) for id, error in self._errors if id != previous]
        self._composer.cancel_delayed_send()
        self._show_reading()

    def _show_reading(self) -> None:
        self._composer.show_reading([name for id, name in self._reading if id == self._drafts.current_chat()])

    def _count_tokens(self) -> None:
        async def count() -> None:
            for chip in tuple(self._composer.chips.chips):
                tokens, counted = await self._runtime.chat.context.count_tokens(chip.attachment)
                if chip in self._composer.chips.chips:
                    chip.show_tokens(tokens, counted=counted)

        self._runner.start(count(), lambda error: None)  # the engine card reports errors

    def handle_event(self, event: Event) -> None:
        if isinstance(event, EngineChanged) and self._composer.chips.chips:
            self._count_tokens()


def _chosen_files(shown: Path, names: Sequence[str], paths: list[Path]) -> list[Path]:
    """Return the chosen files: all of `names` if they exist, else `paths`, which Qt's own dialog reported.

    That dialog may report only one of several names that the user typed in quotes.
    """
    for folder in (shown, *(path.parent for path in paths)):
        typed = [folder / name for name in names]
        if typed and all(path.is_file() for path in typed):
            return typed
    return paths


def _read(path: Path) -> Attachment:
    """Read a document or a picture to attach. Raises AttachmentError."""
    return _prepare(path.name, read_bytes(path))


def _prepare(name: str, data: bytes) -> Attachment:
    return prepare_picture(name, data) if is_picture(data) else document_from_bytes(name, data)
