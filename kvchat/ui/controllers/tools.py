"""The tools button of the composer: a chat's tools, their update in a new branch, and notices about other chats."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import QObject, Signal

from kvchat.chat import events
from kvchat.chat.events import Event
from kvchat.chat.options import ChatOptions, PermissionMode, Preset
from kvchat.chat.turn.tool_choice import ChangedTools, selected_in, with_frozen
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_estimate
from kvchat.text.language import _, format_number, join_list, join_sentences, plural
from kvchat.tools.tool import BUILT_IN, SourceTools, Tool, ToolSet, is_selected
from kvchat.ui.base.building import show_text
from kvchat.ui.chat.tools_popup import ToolsPopup
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.views import Controller, Views
from kvchat.ui.widgets.tool_tree import source_label

_GATHER_MS = 120  # changes this close together cause one request


class ToolsController(Controller):
    settings_requested = Signal()

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController, parent: QObject) -> None:
        super().__init__(runtime, views, parent)
        self._chat, self._button, self._choice = chat, views.composer.tools_button, runtime.chat.tool_choice
        self._options, self._frozen, self._has_begun = ChatOptions(), ToolSet(), False  # of the open chat
        self._model: str | None = None
        self._loaded: str | None = None  # id of the chat that these belong to
        self._offers: list[SourceTools] = []
        self._edited: tuple[str, ...] | None = None  # the selection considered in the popup, if the chat has begun
        self._change: ChangedTools | None = None
        self._announced: set[str] = set()  # ids of calls in other chats
        self.popup = ToolsPopup(views.look, views.composer)
        self.popup.tree.selection_edited.connect(self._select)
        self.popup.permission_chosen.connect(self._set_permission)
        self.popup.change_button.clicked.connect(lambda: self._runner.start(self._take_over()))
        self.popup.closed.connect(self._forget_edit)
        self.popup.settings_button.clicked.connect(self.popup.hide)
        self.popup.settings_button.clicked.connect(self.settings_requested)
        self._button.clicked.connect(self.open)
        self._button.show()
        self._gather = self._timer(_GATHER_MS, self.load, lambda error: None)
        chat.conversation_changed.connect(self.popup.hide)
        chat.conversation_changed.connect(self._gather.start)
        self._unsubscribe_servers = runtime.mcp_servers.subscribe(self._gather.start)
        self._gather.start()

    def close(self) -> None:
        if not self._closed:
            self._unsubscribe_servers()
        super().close()

    def open(self) -> None:
        if self._button.isEnabled():
            self._show_popup()
            self.popup.open_above(self._button)
            self._runner.start(self._list_tools())

    async def load(self) -> None:
        """Load the tools and options of the open chat, and find out if its tools have changed."""
        id, options = self._chat.current, self._runtime.chat.options
        if id is None:
            preset = await options.default_preset() or Preset("")
            chosen, model, frozen, has_begun = preset.options, preset.model, ToolSet(), False
        else:
            settings = await self._runtime.chat.turn_context.answer_settings(id)
            chosen, model = settings.options, settings.model
            frozen, has_begun = await options.tools(id), await options.has_messages(id)
        supported = await self._choice.supports_tools(model)
        change, edited = None, self._edited
        if id and has_begun:
            change = await self._choice.change(id, await self._known_offers(frozen), edited)
        if id != self._chat.current or edited != self._edited:
            return
        self._options, self._model, self._frozen, self._has_begun = chosen, model, frozen, has_begun
        self._loaded = id
        self._change = change
        self._show_button(is_unsupported=supported is False and not frozen.tools)
        if self.popup.isVisible():
            self._show_popup()

    @property
    def _selected(self) -> tuple[str, ...]:
        if self._has_begun:
            return self._edited if self._edited is not None else selected_in(self._options, self._frozen)
        return self._options.tools if self._chat.current else self._choice.selected_from(self._options)

    @property
    def _permission(self) -> PermissionMode:
        return self._options.permission if self._chat.current else self._choice.permission or self._options.permission

    def _show_button(self, *, is_unsupported: bool) -> None:
        button, count, is_changed = self._button, len(self._frozen.tools), self._change and self._edited is None
        if is_unsupported:
            tip = _("This model cannot use tools: its chat template does not support them.")
        elif is_changed:
            tip = _("The tools of this chat have changed. Click for details.")
        elif count:
            tip = plural(count, "This chat has {count} tool", "This chat has {count} tools")
        else:
            tip = _("Choose the tools for this chat")
        button.setEnabled(not is_unsupported)
        button.setText(format_number(count) if count else "")
        colour = "warn" if is_changed else "accent" if count or (self._selected and not self._has_begun) else "muted"
        button.setIcon(self._views.look.icon("tools", "muted" if is_unsupported else colour))
        button.setToolTip(tip)
        button.setAccessibleDescription(tip)

    def _show_popup(self) -> None:
        popup, offers, selected = self.popup, with_frozen(self._offers, self._frozen), self._selected
        help = _("The tool descriptions are part of every prompt and are fixed after the first message.")
        if self._has_begun:
            help = _("Changing the tools continues the chat in a new branch.")
        show_text(popup.help, help)
        popup.tree.show_offers(offers, selected)
        popup.tree.setVisible(bool(offers))
        popup.show_permission(self._permission)
        frozen = self._frozen.tools if self._edited is None else None
        popup.show_change(describe_change(self._change, frozen) if self._change else "")
        self._runner.start(popup.show_costs(self._choice, offers, selected, self._model))

    async def _list_tools(self) -> None:
        self._offers = await self._choice.offers()
        await self.load()

    def _select(self, selected: tuple[str, ...]) -> None:
        if self._loaded == self._chat.current:  # else the popup still shows another chat
            self._runner.start(self._store_selection(selected))

    async def _store_selection(self, selected: tuple[str, ...]) -> None:
        runtime, id = self._runtime, self._chat.current
        if self._has_begun:
            self._edited = selected
            await self.load()
            return
        if id is None:
            self._choice.selected = selected
        else:
            chosen = (await runtime.chat.turn_context.answer_settings(id)).options
            await runtime.chat.options.change(id, replace(chosen, tools=selected))
            tools = [tool for offer in self._offers for tool in offer.tools if is_selected(tool, selected)]
            await runtime.chat.options.change_tools(id, tools)
        await runtime.apply_settings(replace(runtime.settings, new_chat_tools=selected))
        await self.load()

    def _forget_edit(self) -> None:
        if self._edited is not None:
            self._edited = self._change = None
            self._gather.start()

    def _set_permission(self, mode: PermissionMode) -> None:
        async def store(id: str) -> None:
            chosen = (await self._runtime.chat.turn_context.answer_settings(id)).options
            await self._runtime.chat.options.change(id, replace(chosen, permission=mode))
            await self.load()

        if (id := self._chat.current) is not None:
            self._runner.start(store(id))
        else:
            self._choice.permission = mode

    async def _take_over(self) -> None:
        id, change = self._chat.current, self._change
        self.popup.hide()
        if id is not None and id == self._loaded and change is not None:
            chosen = (await self._runtime.chat.turn_context.answer_settings(id)).options
            await self._runtime.chat.options.change_tools(id, change.tools)
            await self._runtime.chat.options.change(id, replace(chosen, tools=change.selected))
            detail = _("This is a new branch of the chat. The previous branch keeps the old tools.")
            self._views.notices.notify(_("The tools of this chat were updated"), detail)
            await self.load()

    async def _known_offers(self, frozen: ToolSet) -> list[SourceTools]:
        """Return the known tools of running servers. A server that announced changes is queried again."""
        used = {tool.source for tool in frozen.tools}
        manager = self._runtime.mcp_servers
        for server in manager.servers:
            if server.name in used and server.tools_changed:
                with contextlib.suppress(KvchatError):  # its last list is shown
                    await manager.start(server.name)
        known = [SourceTools(server.name, server.offered_tools) for server in manager.servers if server.tools]
        others = self._offers or await self._choice.offers([f"{BUILT_IN}/*"])
        known += [offer for offer in others if offer.source not in {server.source for server in known}]
        return known

    def _handle_event(self, event: Event) -> None:
        match event:
            case events.EngineChanged() | events.SettingsChanged():
                self._gather.start()
            case events.MessagesChanged(conversation_id=id) | events.ReplyFinished(conversation_id=id):
                if id == self._chat.current:
                    self._gather.start()
            case events.CallsChanged(conversation_id=id):
                self._announce_question(id)

    def _announce_question(self, chat_id: str) -> None:
        """Show a notice about a call that waits for permission in a chat that is not open."""
        for pending in self._runtime.chat.turns.tool_calls.pending_in(chat_id):
            if pending.is_waiting and pending.key not in self._announced and chat_id != self._chat.current:
                self._announced.add(pending.key)
                title = _("“{title}” is waiting for your permission", title=self._chat.conversations.title(chat_id))
                self._views.notices.notify_with_action(title, _("Show"), lambda: self._chat.open(chat_id))


def describe_change(change: ChangedTools, frozen: Sequence[Tool] | None = None) -> str:
    """Return a text about the cost of updating the tools and, with `frozen`, about the sources that have changed."""
    what = ""
    if frozen is not None:
        old, new = ({(tool.source, tool.digest) for tool in tools} for tools in (frozen, change.tools))
        sources = join_list(map(source_label, sorted({source for source, _digest in old ^ new})))
        what = _("The tools of {sources} have changed.", sources=sources)
    if change.tokens is None:
        return join_sentences(what, _("Updating the tools reprocesses the whole chat."))
    tokens = format_number(change.tokens)
    if change.wait is None:
        return join_sentences(what, _("Updating the tools reprocesses {tokens} tokens.", tokens=tokens))
    time = format_estimate(change.wait)
    return join_sentences(what, _("Updating the tools reprocesses {tokens} tokens ({time}).", tokens=tokens, time=time))
