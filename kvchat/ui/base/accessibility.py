"""The UI language, and texts for screen readers that Qt's widgets do not provide."""

from PySide6.QtCore import QCoreApplication, QLibraryInfo, QLocale, QObject, QTranslator
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QAccessibleInterface
from PySide6.QtWidgets import QAccessibleWidget, QWidget

from kvchat.text.language import current_language, set_language

_QT_NAMES = {"zh_Hans": "zh_CN", "zh_Hant": "zh_TW"}  # of languages
_TRANSLATOR = "language"


def set_ui_language(chosen: str) -> None:
    """Switch kvchat, including Qt's own dialogs and menus, to the chosen language."""
    before, language = current_language(), set_language(chosen, QLocale.system().uiLanguages())
    app = QCoreApplication.instance()
    if language == before or app is None:
        return
    for old in app.findChildren(QTranslator, _TRANSLATOR):
        app.removeTranslator(old)
        old.deleteLater()
    name = _QT_NAMES.get(language, language)
    QLocale.setDefault(QLocale(name))
    translator = QTranslator(app)
    translator.setObjectName(_TRANSLATOR)
    if translator.load(f"qtbase_{name}", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)):
        app.installTranslator(translator)


def report_accessible_roles() -> None:
    """Make screen readers use the `accessible_role` of each widget class that has one."""

    def interface(kind: str, object: QObject) -> QAccessibleInterface | None:
        role = getattr(type(object), "accessible_role", None)
        return QAccessibleWidget(object, role) if role is not None and isinstance(object, QWidget) else None

    QAccessible.installFactory(interface)


def announce(widget: QWidget, text: str, *, is_urgent: bool = False) -> None:
    """Make a screen reader speak `text` wherever the focus is. Urgent text interrupts other speech."""
    if text:
        event, politeness = QAccessibleAnnouncementEvent(widget, text), QAccessible.AnnouncementPoliteness
        event.setPoliteness(politeness.Assertive if is_urgent else politeness.Polite)
        QAccessible.updateAccessibility(event)
