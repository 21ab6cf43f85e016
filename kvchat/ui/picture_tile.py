"""A picture that goes with a message: small, with its size in tokens and a cross; large when it is clicked."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QIcon, QPixmap
from PySide6.QtWidgets import QDialog, QFrame, QHBoxLayout, QLabel, QScrollArea, QVBoxLayout, QWidget

from kvchat.chat.messages import Attachment
from kvchat.ui.attachment_card import AttachmentCard
from kvchat.ui.icons import icon
from kvchat.ui.pictures import decoded
from kvchat.ui.theme import Look

HEIGHT, WIDEST, NARROWEST = 72, 144, 40
_AROUND, _SMALLEST = QSize(32, 32), QSize(320, 240)
_LARGE = QSize(960, 680)


class PictureTile(AttachmentCard):
    """One picture, small."""

    def __init__(self, look: Look, attachment: Attachment, *, removable: bool) -> None:
        super().__init__(look, attachment, "Picture", "Show it large")
        small = thumbnail(attachment.data, self.devicePixelRatioF())
        shown = small.deviceIndependentSize().toSize() if small is not None else QSize(NARROWEST, HEIGHT)
        self.name.setProperty("kind", "picture")
        self.name.setIcon(QIcon(small) if small is not None else icon("document", look.theme.muted))
        self.name.setIconSize(shown)
        self.name.setFixedSize(shown)
        column = QVBoxLayout(self)
        column.setContentsMargins(6, 6, 6, 6)
        column.setSpacing(2)
        column.addWidget(self.name, 0, Qt.AlignmentFlag.AlignHCenter)
        if removable:
            row = QHBoxLayout()
            row.setSpacing(2)
            row.addWidget(self.count, 1)
            row.addWidget(self.cross())
            column.addLayout(row)


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


def thumbnail(data: bytes, ratio: float) -> QPixmap | None:
    """A small picture of a tile's height, no wider than WIDEST; None for what cannot be decoded."""
    image = decoded(data, QSize(WIDEST, HEIGHT) * (2 * ratio))
    if image is None:
        return None
    image = image.scaled(
        QSize(WIDEST, HEIGHT) * ratio, Qt.AspectRatioMode.KeepAspectRatio, Qt.TransformationMode.SmoothTransformation
    )
    image.setDevicePixelRatio(ratio)
    return QPixmap.fromImage(image)
