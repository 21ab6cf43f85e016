"""Between files and the composer: reads what is dropped, pasted or chosen, and counts it before it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QEvent, QObject
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QImage
from PySide6.QtWidgets import QFileDialog, QWidget

from kvchat.chat.documents import document_of_file, document_of_text, read_bytes
from kvchat.chat.events import EngineChanged, Event
from kvchat.chat.messages import Attachment
from kvchat.chat.pictures import is_picture
from kvchat.runtime import Runtime
from kvchat.ui.bridge import Bridge
from kvchat.ui.composer import Composer, local_files
from kvchat.ui.pictures import of_image, prepared
from kvchat.ui.tasks import Wishes

PASTED, PASTED_PICTURE = "Pasted text.txt", "Pasted picture.png"


class AttachBridge(QObject):
    """Takes files in for the message being written; `page` takes drops as the composer does."""

    def __init__(
        self,
        runtime: Runtime,
        composer: Composer,
        page: QWidget,
        bridge: Bridge,
        wishes: Wishes,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._runtime, self._composer, self._bridge, self._wishes = runtime, composer, bridge, wishes
        composer.attach_requested.connect(self.choose)
        composer.files_given.connect(self.take)
        composer.picture_given.connect(lambda image: wishes.start(self._add_image(image)))
        composer.text_given.connect(lambda text: wishes.start(self._add(document_of_text(PASTED, text))))
        composer.chips.changed.connect(self._count_again)
        page.setAcceptDrops(True)
        page.installEventFilter(self)
        self._unsubscribe = runtime.events.subscribe(self._hear)

    def close(self) -> None:
        """Stop listening."""
        self._unsubscribe()

    def take(self, paths: Sequence[Path]) -> None:
        """Attach these files; what cannot be attached is told, file by file."""
        for path in paths:
            self._wishes.start(self._read(path))

    def choose(self) -> None:
        """Let the user pick files."""
        dialog = QFileDialog(self._composer.window(), "Attach files")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
        dialog.filesSelected.connect(lambda names: self.take([Path(name) for name in names]))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Files dropped anywhere on the page."""
        if isinstance(event, QDragEnterEvent) and local_files(event.mimeData()):
            event.acceptProposedAction()
            return True
        if isinstance(event, QDropEvent) and event.type() == QEvent.Type.Drop:
            self.take(local_files(event.mimeData()))
            event.acceptProposedAction()
            return True
        return super().eventFilter(watched, event)

    async def _read(self, path: Path) -> None:
        await self._add(await asyncio.to_thread(_read, path))

    async def _add_image(self, image: QImage) -> None:
        await self._add(await asyncio.to_thread(of_image, PASTED_PICTURE, image))

    async def _add(self, attachment: Attachment) -> None:
        """Onto the composer, unless it is there already. Raises DocumentsTooLong if it can never fit.

        A picture is refused where the model cannot see.
        """
        if any(other.hash == attachment.hash for other in self._composer.chips.attachments):
            return
        context = self._runtime.chat.context
        if attachment.data:
            await context.check_sight(self._bridge.current)  # a chat may have a model of its own
        else:
            await context.check_fits(None, "", [attachment])
        self._composer.add_attachment(attachment)

    def _count_again(self) -> None:
        self._wishes.start(self._count(), lambda error: None)  # the engine went: its own card says so

    async def _count(self) -> None:
        for chip in tuple(self._composer.chips.chips):
            tokens, counted = await self._runtime.chat.context.tokens_of(chip.attachment)
            if chip in self._composer.chips.chips:
                chip.show_tokens(tokens, counted=counted)

    def _hear(self, event: Event) -> None:
        if isinstance(event, EngineChanged) and self._composer.chips.chips:
            self._count_again()


def _read(path: Path) -> Attachment:
    """A document's text, or a picture as it is sent. Raises CannotAttach."""
    data = read_bytes(path)
    return prepared(path.name, data) if is_picture(data) else document_of_file(path.name, data)
