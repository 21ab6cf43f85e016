"""The application's style sheet, generated from the theme's colors. Rules select widgets by their property `kind`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvchat.ui.base.theme import Theme


def style_sheet(t: Theme, base: float, small: float, icon: int, *, mirrored: bool = False) -> str:
    """Return a theme's style sheet. `base` and `small` are font sizes in points, `icon` is an icon size in pixels."""
    begin, end = ("right", "left") if mirrored else ("left", "right")
    parts = _frames(t, icon, begin, end), _texts(t, base, small), _buttons(t, small, icon), _inputs(t), _lists(t, end)
    return "\n".join(parts)


def _frames(t: Theme, icon: int, begin: str, end: str) -> str:
    boxed = f"background: {t.raised}; border: 1px solid {t.line}"
    return f"""
    QMainWindow, QDialog, QMessageBox, #settingsPage {{ background: {t.page}; }}
    #header, #transcript, #transcriptColumn, #page, #firstStart {{ background: {t.page}; border: none; }}
    #sidebar {{ background: {t.sidebar}; border: none; border-{end}: 1px solid {t.line}; }}
    #strip {{ background: {t.sidebar}; border: none; border-top: 1px solid {t.line}; }}
    QCheckBox {{ spacing: 8px; }}
    QCheckBox::indicator {{ width: {icon}px; height: {icon}px; }}
    QCheckBox::indicator:unchecked {{ width: {icon - 2}px; height: {icon - 2}px; background: {t.raised};
        border: 1px solid {t.muted}; border-radius: 3px; }}
    QSplitter::handle {{ background: transparent; }}
    QFrame[kind="bubble"] {{ background: {t.bubble}; border: none; border-radius: 14px; }}
    QFrame[kind="code"] {{ background: {t.code}; border: 1px solid {t.line}; border-radius: 10px; }}
    QFrame[kind="card"], QFrame[kind="notice"] {{ {boxed}; border-radius: 12px; }}
    QFrame[kind="notice"][tone="warn"] {{ background: {t.warn_soft}; border: 1px solid {t.warn_soft}; }}
    QFrame[kind="card"][tone="bad"] {{ background: {t.bad_soft}; border: 1px solid {t.bad_soft}; }}
    QFrame[kind="composer"] {{ {boxed}; border-radius: 18px; }}
    QFrame[kind="composer"][focused="true"] {{ border: 1px solid {t.accent}; }}
    QFrame[kind="chip"] {{ background: {t.hover}; border: none; border-radius: 9px; }}
    QFrame[kind="composer"] QFrame[kind="chip"] {{ background: {t.selected}; }}
    #transcriptColumn QFrame[kind="chip"] {{ background: {t.page}; }}
    #transcriptColumn QFrame[kind="chip"][found="true"] {{ background: {t.mark}; }}
    QFrame[kind="details"] {{ background: {t.sidebar}; border: none; border-radius: 10px; }}
    QFrame[kind="quote"] {{ border: none; border-{begin}: 2px solid {t.line}; border-radius: 0;
                   background: transparent; }}
    QFrame[kind="rule"] {{ background: {t.line}; border: none; }}
    #palette, #toolsPopup {{ {boxed}; }}
    #quick {{ background: {t.page}; border: 1px solid {t.line}; }}
    """


def _texts(t: Theme, base: float, small: float) -> str:
    return f"""
    QLabel {{ background: transparent; color: {t.text}; }}
    QLabel[kind="muted"] {{ color: {t.muted}; }}
    QLabel[kind="small"] {{ color: {t.muted}; font-size: {small}pt; }}
    QLabel[kind="title"] {{ font-size: {base + 1}pt; font-weight: 600; }}
    QLabel[kind="hero"] {{ font-size: {base + 9}pt; font-weight: 600; }}
    QLabel[kind="digits"] {{ font-size: {2.5 * base}pt; font-weight: 600; }}
    QLabel[kind="strong"] {{ font-weight: 600; }}
    QLabel[kind="refusal"] {{ color: {t.bad}; font-size: {small}pt; }}
    QLabel[kind="key"] {{ color: {t.text}; background: {t.hover}; border: 1px solid {t.line}; border-radius: 6px;
                   padding: 1px 7px; font-size: {small}pt; }}
    QLabel[tone="bad"] {{ color: {t.bad}; }}
    QLabel[tone="warn"] {{ color: {t.warn}; }}
    QLabel[tone="good"] {{ color: {t.accent}; }}
    QToolTip {{ background: {t.raised}; color: {t.text}; border: 1px solid {t.line}; padding: 5px 7px; }}
    /* Qt paints its balloon pale yellow in any theme. */
    QBalloonTip QLabel {{ color: black; }}
    QBalloonTip QPushButton {{ background: transparent; border: none; padding: 0; }}
    """


def _buttons(t: Theme, small: float, icon: int) -> str:
    def push(*kinds: str, state: str = "") -> str:
        return ", ".join(f'QPushButton[kind="{kind}"]{state}' for kind in kinds)

    return f"""
    QPushButton, QToolButton {{ icon-size: {icon}px; }}
    QPushButton {{ background: {t.raised}; color: {t.text}; border: 1px solid {t.line}; border-radius: 8px;
                   padding: 6px 14px; }}
    QToolButton {{ background: transparent; border: 1px solid transparent; border-radius: 8px; padding: 4px; }}
    QToolButton[kind="quiet"] {{ padding: 3px; }}
    QToolButton[kind="bare"] {{ padding: 0; }}
    QPushButton:hover, QToolButton:hover {{ background: {t.hover}; }}
    QPushButton:focus, QToolButton:focus {{ border: 1px solid {t.accent}; }}
    QPushButton:disabled {{ color: {t.muted}; }}
    QToolButton::menu-indicator, QPushButton::menu-indicator {{ image: none; width: 0; }}
    {push("primary")}, QPushButton:default {{ background: {t.accent}; color: {t.on_accent};
                   border: 1px solid {t.accent}; }}
    {push("primary", state=":focus")} {{ border: 1px solid {t.text}; }}
    {push("primary", state=":disabled")} {{ background: {t.hover}; color: {t.muted}; border: 1px solid {t.hover}; }}
    {push("danger", state=":enabled")} {{ color: {t.bad}; }}
    {push("flat", "menu", "tab", "new")} {{ background: transparent; border: 1px solid transparent;
                   border-radius: 9px; }}
    {push("flat")} {{ padding: 5px 8px; }}
    {push("menu")} {{ padding: 4px; }}
    {push("tab")} {{ padding: 6px 12px; color: {t.muted}; font-weight: 600; }}
    {push("new")} {{ text-align: left; padding: 8px 10px; font-weight: 600; }}
    {push("flat", "menu", "tab", "new", state=":hover")} {{ background: {t.hover}; }}
    {push("tab", state=":checked")} {{ background: {t.selected}; color: {t.text}; }}
    {push("flat", "menu", "tab", "new", state=":focus")} {{ border: 1px solid {t.accent}; }}
    {push("quiet", "link", "chip", "usage", "picture")} {{ background: transparent; border: none; padding: 3px 0; }}
    {push("quiet", "link", "usage")} {{ color: {t.muted}; font-size: {small}pt; }}
    {push("quiet", "link", "chip", "usage")} {{ text-align: left; }}
    {push("quiet")} {{ padding: 3px 5px 3px 0; }}
    {push("quiet", state=":hover")}, {push("quiet", state=":focus")} {{ color: {t.text}; text-decoration: underline; }}
    {push("quiet", state='[tone="warn"]')} {{ color: {t.warn}; }}
    {push("link")} {{ color: {t.accent}; }}
    {push("link", state=":hover")}, {push("link", state=":focus")} {{ text-decoration: underline; }}
    {push("chip", state=":hover")}, {push("chip", state=":focus")} {{ color: {t.accent}; }}
    {push("usage")} {{ border-radius: 8px; padding: 6px 8px; }}
    {push("usage", state=":hover")}, {push("usage", state=":focus")} {{ background: {t.hover}; color: {t.text}; }}
    {push("picture")} {{ padding: 0; }}
    {push("send")} {{ background: {t.accent}; border: 1px solid {t.accent}; border-radius: {icon}px; padding: 0; }}
    {push("send", state=":disabled")} {{ background: {t.selected}; border: 1px solid {t.line}; }}
    {push("send", state=":focus")} {{ border: 2px solid {t.text}; }}
    {push("jump")} {{ background: {t.raised}; border: 1px solid {t.line}; border-radius: 16px; padding: 0; }}
    {push("jump", state=":hover")} {{ background: {t.hover}; }}
    """


def _inputs(t: Theme) -> str:
    return f"""
    QTextBrowser, QTextEdit, QPlainTextEdit {{ background: transparent; border: none; color: {t.text};
                   selection-background-color: {t.selection}; selection-color: {t.text};
                   placeholder-text-color: {t.muted}; }}
    QPlainTextEdit[kind="log"] {{ background: {t.code}; border: 1px solid {t.line}; border-radius: 10px;
                   padding: 8px; }}
    QComboBox, QLineEdit {{ background: {t.raised}; color: {t.text}; border: 1px solid {t.line}; }}
    QComboBox {{ border-radius: 8px; padding: 5px 30px 5px 11px; }}
    QComboBox:disabled {{ color: {t.muted}; }}
    QComboBox:hover {{ background: {t.hover}; }}
    QComboBox::drop-down {{ border: none; width: 0; }}
    QLineEdit {{ border-radius: 7px; padding: 4px 7px; selection-background-color: {t.accent};
                   selection-color: {t.on_accent}; placeholder-text-color: {t.muted}; }}
    #palette QLineEdit {{ padding: 8px 10px; }}
    QComboBox:focus, QLineEdit:focus {{ border: 1px solid {t.accent}; }}
    QLineEdit[tone="bad"], QLineEdit[tone="bad"]:focus {{ border: 1px solid {t.bad}; }}
    QProgressBar {{ background: {t.selected}; border: none; border-radius: 2px; max-height: 4px; min-height: 4px; }}
    QProgressBar::chunk {{ background: {t.accent}; border-radius: 2px; }}
    QSlider {{ min-height: 22px; }}
    QSlider::groove:horizontal {{ height: 4px; border-radius: 2px; background: {t.selected}; }}
    QSlider::sub-page:horizontal {{ height: 4px; border-radius: 2px; background: {t.accent}; }}
    QSlider::handle:horizontal {{ width: 14px; height: 14px; margin: -6px 0; border-radius: 8px;
                   background: {t.raised}; border: 1px solid {t.muted}; }}
    QSlider::handle:horizontal:hover, QSlider::handle:horizontal:focus {{ border: 2px solid {t.accent};
                   margin: -7px 0; border-radius: 9px; }}
    QSlider::sub-page:horizontal:disabled {{ background: {t.selected}; }}
    """


def _lists(t: Theme, end: str) -> str:
    return f"""
    QTreeView {{ background: {t.raised}; color: {t.text}; border: 1px solid {t.line}; border-radius: 8px;
                   padding: 4px; outline: none; }}
    QTreeView::item {{ padding: 3px 0; }}
    QTreeView::indicator:unchecked {{ width: 12px; height: 12px; background: {t.raised};
                   border: 1px solid {t.muted}; border-radius: 3px; }}
    QTreeView::item:selected {{ background: {t.selected}; color: {t.text}; }}
    QTreeView::item:disabled {{ color: {t.muted}; }}
    QListView {{ background: transparent; border: none; outline: none; }}
    #settingsPages {{ background: {t.sidebar}; border: none; border-{end}: 1px solid {t.line}; padding: 14px 10px; }}
    #settingsPages::item {{ padding: 0 10px; border: 1px solid transparent; color: {t.text}; }}
    QListWidget[kind="boxed"], QComboBox QAbstractItemView, QMenu {{ background: {t.raised}; color: {t.text};
                   border: 1px solid {t.line}; padding: 4px; outline: none; }}
    QListWidget[kind="boxed"] {{ border-radius: 10px; }}
    QListWidget::item {{ border-radius: 8px; }}
    QListWidget[kind="boxed"]::item, QComboBox QAbstractItemView::item {{ padding: 6px 8px; border-radius: 6px;
                   color: {t.text}; }}
    #settingsPages::item:hover, #paletteList::item:hover {{ background: {t.hover}; }}
    QListWidget::item:selected, QComboBox QAbstractItemView::item:selected {{ background: {t.selected};
                   color: {t.text}; }}
    #settingsPages::item:selected, #paletteList::item:selected {{ background: {t.selected}; }}
    #settingsPages::item:focus {{ border: 1px solid {t.accent}; }}
    QTabWidget::pane {{ border: none; border-top: 1px solid {t.line}; padding-top: 14px; }}
    QTabBar {{ background: transparent; }}
    QTabBar::tab {{ background: transparent; color: {t.muted}; border: none; border-bottom: 2px solid transparent;
                   padding: 6px 4px; margin-right: 18px; }}
    QTabBar::tab:selected {{ color: {t.text}; border-bottom: 2px solid {t.accent}; }}
    QTabBar::tab:hover, QTabBar::tab:focus {{ color: {t.text}; }}
    QMenu {{ border-radius: 8px; padding: 5px; }}
    QMenu::item {{ padding: 6px 24px 6px 12px; border-radius: 6px; }}
    QMenu::item:selected {{ background: {t.hover}; }}
    QMenu::item:disabled {{ color: {t.muted}; }}
    QMenu::separator {{ height: 1px; background: {t.line}; margin: 5px 8px; }}
    QMenu::indicator {{ width: 14px; height: 14px; left: 4px; }}
    QAbstractScrollArea::corner {{ background: transparent; border: none; }}
    QScrollBar:vertical {{ background: transparent; width: 10px; margin: 2px; }}
    QScrollBar:horizontal {{ background: transparent; height: 10px; margin: 2px; }}
    QScrollBar::handle {{ background: {t.line}; border-radius: 3px; min-height: 28px; min-width: 28px; }}
    QScrollBar::handle:hover {{ background: {t.muted}; }}
    QScrollBar::handle:disabled {{ background: transparent; }}
    QScrollBar::add-line, QScrollBar::sub-line {{ width: 0; height: 0; }}
    QScrollBar::add-page, QScrollBar::sub-page {{ background: transparent; }}
    QScrollArea {{ border: none; background: transparent; }}
    """
