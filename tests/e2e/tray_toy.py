"""A window, a composer and a tray menu: the smallest application that needs everything the rig offers."""

from __future__ import annotations

import sys

from PySide6.QtGui import QColor, QPixmap
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu, QPushButton, QSystemTrayIcon, QVBoxLayout, QWidget


def main() -> int:
    application = QApplication(sys.argv)
    application.setQuitOnLastWindowClosed(False)
    window = QWidget()
    window.setWindowTitle("Toy")
    composer = QLineEdit()
    composer.setAccessibleName("Message")
    button = QPushButton("Send")
    layout = QVBoxLayout(window)
    layout.addWidget(composer)
    layout.addWidget(button)
    button.clicked.connect(lambda: window.setWindowTitle(f"Sent {composer.text()}"))
    composer.returnPressed.connect(button.click)
    pixmap = QPixmap(32, 32)
    pixmap.fill(QColor("#3355ff"))
    tray = QSystemTrayIcon(pixmap)
    menu = QMenu()
    menu.addAction("Show").triggered.connect(window.show)
    menu.addAction("Never").setEnabled(False)
    menu.addSeparator()
    menu.addAction("Quit").triggered.connect(application.quit)
    tray.setContextMenu(menu)
    tray.setToolTip(f"Toy: tray {'available' if QSystemTrayIcon.isSystemTrayAvailable() else 'missing'}")
    tray.show()
    window.show()
    composer.setFocus()
    return application.exec()


if __name__ == "__main__":
    sys.exit(main())
