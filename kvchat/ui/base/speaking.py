"""The language of the window: kvchat's own words, and those that Qt has in its dialogs and menus."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QLibraryInfo, QLocale, QTranslator

from kvchat.words.language import speak, spoken

_AS_QT_CALLS_IT = {"zh_Hans": "zh_CN", "zh_Hant": "zh_TW"}
_NAME = "language"


def speak_here(chosen: str) -> None:
    """Speak the language of that setting, in what is made from now on."""
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
