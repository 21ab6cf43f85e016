"""The window's language, and texts for screen readers beyond those of Qt's own widgets."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QLibraryInfo, QLocale, QObject, QTranslator
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QAccessibleInterface
from PySide6.QtWidgets import QAccessibleWidget, QWidget

from kvchat.words.language import speak, spoken

_AS_QT_CALLS_IT = {"zh_Hans": "zh_CN", "zh_Hant": "zh_TW"}
_NAME = "language"


def speak_here(chosen: str) -> None:
    """Switch to the language of that setting, also in Qt's dialogs and menus."""
    before, language = spoken(), speak(chosen, QLocale.system().uiLanguages())
    app = QCoreApplication.instance()
    if language == before or app is None:
        return
    for translator in app.findChildren(QTranslator, _NAME):
        app.removeTranslator(translator)
        translator.deleteLater()
    name = _AS_QT_CALLS_IT.get(language, language)
    QLocale.setDefault(QLocale(name))
    translator = QTranslator(app)
    translator.setObjectName(_NAME)
    if translator.load(f"qtbase_{name}", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)):
        app.installTranslator(translator)


def tell_roles() -> None:
    """From now on, report each widget class's `accessible_role` to assistive technology."""
    QAccessible.installFactory(_with_role)


def _with_role(kind: str, thing: QObject) -> QAccessibleInterface | None:
    role = getattr(type(thing), "accessible_role", None)
    return QAccessibleWidget(thing, role) if role is not None and isinstance(thing, QWidget) else None


def announce(widget: QWidget, words: str, *, urgent: bool = False) -> None:
    """Have a screen reader say this regardless of focus; urgent text interrupts it."""
    if words:
        event, politeness = QAccessibleAnnouncementEvent(widget, words), QAccessible.AnnouncementPoliteness
        event.setPoliteness(politeness.Assertive if urgent else politeness.Polite)
        QAccessible.updateAccessibility(event)
