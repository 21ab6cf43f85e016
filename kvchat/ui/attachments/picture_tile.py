"""A picture that goes with a message: small, with its size in tokens and a cross; large when it is clicked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from PySide6.QtCore import QSize, Qt, QTimer
from PySide6.QtGui import QIcon, QImage, QPixmap
from PySide6.QtWidgets import QDialog, QFrame, QHBoxLayout, QLabel, QScrollArea, QVBoxLayout, QWidget

from kvchat.chat.record.messages import Attachment
from kvchat.ui.attachments.card import AttachmentCard
from kvchat.ui.attachments.pictures import decoded, shape
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look

HEIGHT, WIDEST, NARROWEST = 72, 144, 40
_LOOK_MS = 15
_AROUND, _SMALLEST = QSize(32, 32), QSize(320, 240)
_LARGE = QSize(960, 680)
_thread = ThreadPoolExecutor(1, thread_name_prefix="thumbnails")


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


class PictureView(QDialog):
    """A picture in a window of its own."""

    def __init__(self, attachment: Attachment, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(attachment.name)
        self.picture = QLabel("This picture cannot be shown.")
        self.picture.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.picture.setAccessibleName(f"Picture {attachment.name}")
        ratio = self.devicePixelRatioF()
        image = decoded(attachment.data, _LARGE * ratio)
        if image is not None:
            image.setDevicePixelRatio(ratio)
            self.picture.setPixmap(QPixmap.fromImage(image))
        area = QScrollArea()
        area.setWidget(self.picture)
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        column = QVBoxLayout(self)
        column.addWidget(area)
        self.resize((self.picture.sizeHint() + _AROUND).expandedTo(_SMALLEST))
        self.finished.connect(self.deleteLater)


def tile_size(picture: QSize) -> QSize:
    """A picture's size on its tile: as high as the tile, unless it would be too wide. Of a sliver a little is seen."""
    return picture.scaled(WIDEST, HEIGHT, Qt.AspectRatioMode.KeepAspectRatio).expandedTo(QSize(4, 4))


def _thumbnail(data: bytes, size: QSize) -> QImage | None:
    image = decoded(data, size * 2)
    if image is None:
        return None
    return image.scaled(size, Qt.AspectRatioMode.IgnoreAspectRatio, Qt.TransformationMode.SmoothTransformation)
