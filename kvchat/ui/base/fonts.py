"""Fonts made for text."""

from __future__ import annotations

from PySide6.QtGui import QFont


def page_font(family: str, points: float) -> QFont:
    """A font for documents."""
    font = QFont(family)
    font.setPointSizeF(points)
    return font


def code_font(family: str, points: float) -> QFont:
    """A font for code: what was written is what is shown, so no ligatures."""
    font = page_font(family, points)
    font.setFixedPitch(True)
    font.setFeature(QFont.Tag("calt"), 0)
    font.setFeature(QFont.Tag("liga"), 0)
    return font
