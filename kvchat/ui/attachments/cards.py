"""What goes with a message: a document as a chip, a picture small as a tile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QIcon, QImage, QPixmap
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QToolButton, QVBoxLayout

from kvchat.chat.record.messages import Attachment
from kvchat.ui.attachments.pictures import decoded, shape
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.widgets.elided import plain_tip
from kvchat.words.wording import one_line, size, tokens_short

HEIGHT, WIDEST, NARROWEST = 72, 144, 40  # pixels, of a tile
_LOOK_MS = 15
_NAME_LETTERS = 34
_thread = ThreadPoolExecutor(1, thread_name_prefix="thumbnails")


class AttachmentCard(QFrame):
    """One attachment: a button that opens it, how much it is, and the cross that takes it away again."""

    opened = Signal()
    removed = Signal()

    def __init__(self, look: Look, attachment: Attachment, what: str, tip: str) -> None:
        super().__init__()
        self.attachment = attachment
        self._look = look
        self.setProperty("kind", "chip")
        self.name = QPushButton()
        self.name.setAccessibleName(f"{what} {attachment.name}")
        self.name.setToolTip(plain_tip(f"{attachment.name}\n{size(attachment.size)}\n{tip}"))
        self.name.clicked.connect(self.opened)
        self.count = QLabel(size(attachment.size))
        self.count.setProperty("kind", "small")

    def cross(self) -> QToolButton:
        """The button that takes it away."""
        cross = QToolButton()
        cross.setIcon(icon("close", self._look.theme.muted))
        cross.setIconSize(QSize(12, 12))
        cross.setAccessibleName(f"Remove {self.attachment.name}")
        cross.clicked.connect(self.removed)
        return cross

    def show_found(self, found: bool) -> None:
        """Whether what is searched for is in it."""
        restyle(self, "found", "true" if found else "false")
        self.name.setAccessibleDescription("What you search for is in it" if found else "")

    def show_tokens(self, tokens: int, *, counted: bool) -> None:
        """How many tokens it has; an estimate says so."""
        self.count.setText(f"{tokens_short(tokens)} tokens" if counted else f"about {tokens_short(tokens)} tokens")


class AttachmentChip(AttachmentCard):
    """One document, by its name."""

    def __init__(self, look: Look, attachment: Attachment, *, removable: bool) -> None:
        super().__init__(look, attachment, "Attachment", "Show what the model is given")
        self.name.setText(short_name(attachment.name))
        self.name.setProperty("kind", "chip")
        self.name.setIcon(icon("document", look.theme.muted))
        row = QHBoxLayout(self)
        row.setContentsMargins(8, 2, 8, 2)
        row.setSpacing(6)
        row.addWidget(self.name)
        row.addWidget(self.count)
        if removable:
            row.addWidget(self.cross())
            row.setContentsMargins(8, 2, 3, 2)


class PictureTile(AttachmentCard):
    """One picture, small. It is decoded in a thread and shown when that is done."""

    def __init__(self, look: Look, attachment: Attachment, *, removable: bool) -> None:
        super().__init__(look, attachment, "Picture", "Show it large")
        shown = shape(attachment.data)
        size = tile_size(shown) if shown is not None else QSize(NARROWEST, HEIGHT)
        self.name.setProperty("kind", "picture")
        self.name.setIconSize(size)
        self.name.setFixedSize(size)
        column = QVBoxLayout(self)
        column.setContentsMargins(6, 6, 6, 6)
        column.setSpacing(2)
        column.addWidget(self.name, 0, Qt.AlignmentFlag.AlignCenter)
        if removable:
            row = QHBoxLayout()
            row.setSpacing(2)
            row.addWidget(self.count, 1)
            row.addWidget(self.cross())
            column.addLayout(row)
        ratio = self.devicePixelRatioF()
        self._decoding = _thread.submit(_thumbnail, attachment.data, size * ratio)
        self._ratio = ratio
        self._timer = QTimer(self, interval=_LOOK_MS)
        self._timer.timeout.connect(self._show_when_ready)
        self._timer.start()

    def _show_when_ready(self) -> None:
        if not self._decoding.done():
            return
        self._timer.stop()
        image = self._decoding.result()
        if image is None:
            self.name.setIcon(icon("document", self._look.theme.muted))
            return
        image.setDevicePixelRatio(self._ratio)
        self.name.setIcon(QIcon(QPixmap.fromImage(image)))


def tile_size(picture: QSize) -> QSize:
    """A picture's size on its tile: as high as the tile, unless it would be too wide. Of a sliver a little is seen."""
    return picture.scaled(WIDEST, HEIGHT, Qt.AspectRatioMode.KeepAspectRatio).expandedTo(QSize(4, 4))


def _thumbnail(data: bytes, size: QSize) -> QImage | None:
    image = decoded(data, size * 2)
    if image is None:
        return None
    return image.scaled(size, Qt.AspectRatioMode.IgnoreAspectRatio, Qt.TransformationMode.SmoothTransformation)


def short_name(name: str) -> str:
    """A file's name with the middle left out where it is long; the ending matters."""
    name = one_line(name)
    half = (_NAME_LETTERS - 1) // 2
    return name if len(name) <= _NAME_LETTERS else f"{name[:half]}…{name[-half:]}"
