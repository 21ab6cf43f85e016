"""The popup of the tools button: a chat's tools, their cost, and its permission mode."""

from collections.abc import Collection, Sequence

from PySide6.QtCore import QEvent, QPoint, Qt, Signal
from PySide6.QtGui import QHideEvent
from PySide6.QtWidgets import QDialog, QWidget

from kvchat.chat.options import PermissionMode
from kvchat.chat.turn.tool_choice import ToolChoice
from kvchat.text.language import N_, _, plural
from kvchat.tools.tool import SourceTools, is_selected
from kvchat.ui.base.building import STRETCH, button, column, label, row, show_text
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.ui.widgets.tool_tree import ToolTree

_WIDTH, _TREE_HEIGHT = 460, 260  # pixels at 100 % text
_GAP = 6  # pixels between the button and the popup

PERMISSION_LABELS = {
    PermissionMode.ASK: N_("Ask every time"),
    PermissionMode.READ_ONLY: N_("Run read-only tools, ask before others"),
    PermissionMode.ALL: N_("Run all tools without asking"),
}


class ToolsPopup(QDialog):
    permission_chosen = Signal(object)  # PermissionMode
    closed = Signal()

    def __init__(self, look: Look, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self._look, self._anchor = look, parent
        self._counts = 0  # started so far
        self.setObjectName("toolsPopup")
        self.setAccessibleName(_("Tools"))
        self.help, self.tree = label(kind="small", wraps=True), ToolTree()
        self.total = label(kind="small", wraps=True)
        self.change_text, self.change_button = label(wraps=True), button(_("Update tools"), None, "primary")
        self.permission = ChoiceBox(look, _("Permission"))
        for mode, text in PERMISSION_LABELS.items():
            self.permission.addItem(_(text), mode)
        self.permission.activated.connect(lambda index: self.permission_chosen.emit(self.permission.itemData(index)))
        self.settings_button = button(_("Tool settings…"), kind="link")
        change = row((self.change_text, 1), self.change_button, spacing=10)
        below = row(STRETCH, self.settings_button)
        parts = label(_("Tools"), "strong"), self.help, change, self.tree, self.total
        column(*parts, label(_("Permission"), "strong"), self.permission, below, on=self, spacing=8, margins=14)
        self.show_change("")

    def show_change(self, text: str) -> None:
        """Show that tools have changed, and the cost of updating them."""
        show_text(self.change_text, text)
        self.change_button.setVisible(bool(text))

    def show_permission(self, mode: PermissionMode) -> None:
        self.permission.setCurrentIndex(self.permission.findData(mode))

    async def show_costs(
        self, choice: ToolChoice, offers: Sequence[SourceTools], selected: Collection[str], model: str | None
    ) -> None:
        """Show the cost of each source and of the selected tools. A later call replaces an unfinished one."""
        self._counts += 1
        number = self._counts
        for offer in offers:
            count = await choice.count(offer.tools, model)
            if number != self._counts:
                return
            self.tree.show_tokens(offer.source, count.tokens, is_exact=count.is_exact)
        tools = [tool for offer in offers for tool in offer.tools if is_selected(tool, selected)]
        count = await choice.count(tools, model)
        text = plural(
            count.tokens,
            "{count} token at the beginning of each prompt",
            "{count} tokens at the beginning of each prompt",
        )
        if number == self._counts:
            self.total.setText(text if count.is_exact else _("about {amount}", amount=text))

    def open_above(self, anchor: QWidget) -> None:
        self._anchor = anchor
        self.tree.setFixedHeight(self._look.px(_TREE_HEIGHT))
        self.setFixedWidth(min(self._look.px(_WIDTH), self.screen().availableSize().width()))
        self._place()
        self.show()
        self.tree.setFocus()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.closed.emit()

    def event(self, event: QEvent) -> bool:
        done = super().event(event)
        if event.type() is QEvent.Type.LayoutRequest and self.isVisible():
            self._place()
        return done

    def _place(self) -> None:
        layout, anchor = self.layout(), self._anchor
        assert layout is not None
        layout.activate()
        self.resize(self.width(), layout.totalHeightForWidth(self.width()))
        corner = anchor.mapToGlobal(QPoint(0, -self.height() - _GAP))
        screen = anchor.screen().availableGeometry()
        left = max(screen.left(), min(corner.x(), screen.right() - self.width()))
        self.move(left, max(screen.top(), corner.y()))
