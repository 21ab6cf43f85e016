"""Sources and their tools with check boxes and token costs. Texts of tools are untrusted and shown as plain text."""

from collections.abc import Collection, Sequence

from PySide6.QtCore import QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTreeWidget, QTreeWidgetItem

from kvchat.text.formatting import format_tokens, one_line
from kvchat.text.language import _, join_parts, plural
from kvchat.text.safe_text import safe_prose
from kvchat.tools.tool import BUILT_IN, SourceTools, Tool, freeze, is_selected, prompt_tools
from kvchat.ui.widgets.layouts import plain_tip

_NAME, _TOKENS = range(2)  # columns
_KEY = Qt.ItemDataRole.UserRole  # id of a source, name of a tool
_CHECKED, _UNCHECKED = Qt.CheckState.Checked, Qt.CheckState.Unchecked


def source_label(source: str) -> str:
    return _("Built-in") if source == BUILT_IN else safe_prose(source)


def _children(item: QTreeWidgetItem) -> list[QTreeWidgetItem]:
    return [child for n in range(item.childCount()) if (child := item.child(n)) is not None]


class ToolTree(QTreeWidget):
    selection_edited = Signal(tuple)  # of "SOURCE/NAME" and "SOURCE/*"

    def __init__(self) -> None:
        super().__init__()
        self._offers: list[SourceTools] = []
        self._selected: tuple[str, ...] = ()
        self.setAccessibleName(_("Tools"))
        self.setColumnCount(2)
        self.setHeaderHidden(True)
        self.header().setStretchLastSection(False)
        self.header().setSectionResizeMode(_NAME, QHeaderView.ResizeMode.Stretch)
        self.header().setSectionResizeMode(_TOKENS, QHeaderView.ResizeMode.ResizeToContents)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._edited = QTimer(self, singleShot=True, interval=0)  # checking a source changes the box of each tool
        self._edited.timeout.connect(self._read_boxes)
        self.itemChanged.connect(lambda _item, column: column == _NAME and self._edited.start())

    @property
    def source_items(self) -> list[QTreeWidgetItem]:
        return [item for n in range(self.topLevelItemCount()) if (item := self.topLevelItem(n)) is not None]

    def show_offers(self, offers: Sequence[SourceTools], selected: Collection[str]) -> None:
        """Show the tools of sources, with the selected ones checked. An unchanged list keeps its position and focus."""
        self._selected = tuple(selected)
        if list(offers) == self._offers and self.topLevelItemCount():
            with QSignalBlocker(self):
                self._check()
            return
        self._offers = list(offers)
        with QSignalBlocker(self):
            self.clear()
            for offer in offers:
                source = QTreeWidgetItem(self, [source_label(offer.source), ""])
                source.setData(_NAME, _KEY, offer.source)
                source.setTextAlignment(_TOKENS, Qt.AlignmentFlag.AlignTrailing)
                problem = offer.error.title if offer.error else "" if offer.tools else _("No tools")
                for tool in offer.tools:
                    self._add_tool(source, tool)
                if problem:
                    item = QTreeWidgetItem(source, [problem, ""])
                    item.setFlags(Qt.ItemFlag.ItemIsSelectable)
                    item.setToolTip(_NAME, plain_tip(offer.error.explanation if offer.error else ""))
                source.setExpanded(bool(problem) or len(offers) == 1)
            self._check()

    def show_tokens(self, source: str, tokens: int, *, is_exact: bool) -> None:
        """Show the cost of a source's tools, and each tool's share of it."""
        with QSignalBlocker(self):
            for item, offer in zip(self.source_items, self._offers, strict=True):
                if offer.source != source:
                    continue
                count = plural(tokens, "{count} token", "{count} tokens")
                if offer.tools:
                    item.setText(_TOKENS, count if is_exact else _("about {amount}", amount=count))
                sizes = [len(prompt_tools(freeze([tool]))) for tool in offer.tools]
                for child, size in zip(_children(item), sizes, strict=False):
                    child.setText(_TOKENS, format_tokens(round(tokens * size / (sum(sizes) or 1))))

    def tool_at(self, item: QTreeWidgetItem | None) -> Tool | None:
        """Return the tool of a row; None for a source."""
        source = item.parent() if item is not None else None
        if item is None or source is None:
            return None
        tools = self._offers[self.indexOfTopLevelItem(source)].tools
        place = source.indexOfChild(item)
        return tools[place] if place < len(tools) else None

    def _add_tool(self, source: QTreeWidgetItem, tool: Tool) -> None:
        name = safe_prose(tool.name)
        item = QTreeWidgetItem(source, [join_parts((name, _("read-only"))) if tool.read_only else name, ""])
        item.setData(_NAME, _KEY, tool.name)
        item.setTextAlignment(_TOKENS, Qt.AlignmentFlag.AlignTrailing)
        description = safe_prose(tool.description)
        item.setToolTip(_NAME, plain_tip(description))
        item.setData(_NAME, Qt.ItemDataRole.AccessibleDescriptionRole, one_line(description))

    def _check(self) -> None:
        for source, offer in zip(self.source_items, self._offers, strict=True):
            flags = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable
            if not offer.tools:
                source.setFlags(flags)
                continue
            flags |= Qt.ItemFlag.ItemIsUserCheckable
            source.setFlags(flags | Qt.ItemFlag.ItemIsAutoTristate)
            for child, tool in zip(_children(source), offer.tools, strict=True):
                child.setFlags(flags | Qt.ItemFlag.ItemNeverHasChildren)
                child.setCheckState(_NAME, _CHECKED if is_selected(tool, self._selected) else _UNCHECKED)

    def _read_boxes(self) -> None:
        listed = {offer.source for offer in self._offers if offer.tools}
        selected = [name for name in self._selected if not any(name.startswith(f"{source}/") for source in listed)]
        for source in self.source_items:
            id = source.data(_NAME, _KEY)
            if id not in listed:
                continue
            tools = _children(source)
            checked = [tool.data(_NAME, _KEY) for tool in tools if tool.checkState(_NAME) is _CHECKED]
            selected += [f"{id}/*"] if len(checked) == len(tools) else [f"{id}/{name}" for name in checked]
        if tuple(selected) != self._selected:
            self._selected = tuple(selected)
            self.selection_edited.emit(self._selected)
