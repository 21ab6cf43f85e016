"""Tools of a chat: selection for new chats, cost in tokens, and detection of changed definitions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from kvchat.chat.context import BYTES_PER_TOKEN
from kvchat.chat.options import ChatOptions, PermissionMode
from kvchat.chat.record.messages import Message, Role, new_message, prompt_messages
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.errors import EngineError
from kvchat.engine.api.wire import ChatMessage
from kvchat.text.formatting import TimeRange
from kvchat.tools.tool import SourceTools, Tool, ToolSet, freeze, is_selected, prompt_tools, thaw


@dataclass(frozen=True)
class TokenCount:
    tokens: int
    is_exact: bool  # counted by the engine


@dataclass(frozen=True)
class ChangedTools:
    """New tools for a branch whose frozen ones differ, and the cost of updating them."""

    tools: tuple[Tool, ...]
    selected: tuple[str, ...]  # the selection that `tools` come from
    tokens: int | None  # to reprocess; None without an engine
    wait: TimeRange | None  # None: unknown


def selected_in(options: ChatOptions, frozen: ToolSet) -> tuple[str, ...]:
    """Return the selection of a chat that has started: its own, or its frozen tools."""
    return options.tools or tuple(f"{tool.source}/{tool.name}" for tool in frozen.tools)


def with_frozen(offers: Sequence[SourceTools], frozen: ToolSet) -> list[SourceTools]:
    """Return the offers, with frozen tools in place of those that sources cannot list."""
    missing = {tool.source for tool in frozen.tools} - {offer.source for offer in offers if offer.error is None}
    kept = [SourceTools(id, tuple(tool for tool in frozen.tools if tool.source == id)) for id in sorted(missing)]
    return [*(offer for offer in offers if offer.source not in missing), *kept]


class ToolChoice:
    """Event-loop thread only."""

    def __init__(self, turn_context: TurnContext) -> None:
        self._turn_context = turn_context
        self._offers: dict[str, SourceTools] = {}  # last lists, by source
        self._is_unsupported = False  # the last queried model does not support tools
        self.selected: tuple[str, ...] | None = None  # for the next new chat; None: from the preset or the settings
        self.permission: PermissionMode | None = None  # for the next new chat; None: from the preset
        turn_context.new_chat_tools = self._frozen_if_known

    async def offers(self, selected: Collection[str] | None = None) -> list[SourceTools]:
        """Return the tools of all sources, or of sources with `selected` ones, starting servers if needed."""
        offers = await self._turn_context.toolbox.offers(selected)
        self._offers |= {offer.source: offer for offer in offers}
        return offers

    def selected_from(self, options: ChatOptions) -> tuple[str, ...]:
        """Return the tools for a new chat: the user's selection, the preset's, or that of the last new chat."""
        return self.selected if self.selected is not None else options.tools or self._turn_context.remembered_tools()

    async def for_new_chat(self, options: ChatOptions, model: str | None = None) -> ChatOptions:
        """Return a new chat's options with the selected tools, or none if its model does not support tools."""
        supported = await self.supports_tools(model) is not False
        tools = self.selected_from(options) if supported else ()
        return replace(options, tools=tools, permission=self.permission or options.permission)

    def forget_choice(self) -> None:
        """Reset the selection after the new chat has started."""
        self.selected = self.permission = None

    async def supports_tools(self, model: str | None = None) -> bool | None:
        """Return True if the model's chat template supports tools, or None while no engine runs the model."""
        ready = await self._turn_context.ready_engine(model)
        self._is_unsupported = ready is not None and not ready.has_tools
        return ready.has_tools if ready else None

    async def count(self, tools: Collection[Tool], model: str | None = None) -> TokenCount:
        """Return the tokens that the tools add to a prompt: counted if an engine is ready, else estimated."""
        definitions = prompt_tools(freeze(tools))
        if not definitions:
            return TokenCount(0, is_exact=True)
        if (ready := await self._turn_context.ready_engine(model)) is not None and ready.has_tools:
            question = ChatMessage("user", "?")
            try:
                with_tools = await ready.engine.prompt_tokens([ChatMessage("system", "", tools=definitions), question])
                without = await ready.engine.prompt_tokens([question])
                return TokenCount(max(0, len(with_tools) - len(without)), is_exact=True)
            except EngineError:
                pass
        return TokenCount(len(definitions.encode()) // BYTES_PER_TOKEN, is_exact=False)

    async def change(
        self, conversation_id: str, offers: Sequence[SourceTools], selected: Sequence[str] | None = None
    ) -> ChangedTools | None:
        """Return the new tools if they differ from those frozen for the visible branch, else None.

        `selected`: a new selection (default: the chat's, see `selected_in`). If a source is off or cannot list its
        tools, its frozen tools can be selected.
        """
        chosen, branch = await self._turn_context.settings_and_branch(conversation_id)
        has_root = bool(branch) and branch[0].role is Role.SYSTEM
        root = branch[0] if has_root else new_message(conversation_id, Role.SYSTEM, "")
        if selected is None:
            selected = selected_in(chosen.options, thaw(root.tools))
        offered = [tool for offer in with_frozen(offers, thaw(root.tools)) for tool in offer.tools]
        tools = [tool for tool in offered if is_selected(tool, selected)]
        text = freeze(tools)
        if text == root.tools:
            return None
        tokens, wait = await self._price([replace(root, tools=text), *branch[has_root:]], chosen.model, chosen.options)
        return ChangedTools(tuple(tools), tuple(selected), tokens, wait)

    async def _price(
        self, branch: Sequence[Message], model: str | None, options: ChatOptions
    ) -> tuple[int | None, TimeRange | None]:
        if (ready := await self._turn_context.ready_engine(model)) is None:
            return None, None
        try:
            prompt = await ready.with_template(options.template).engine.prompt_tokens(prompt_messages(branch))
        except EngineError:
            return None, None
        speed = await self._turn_context.prefill_speed(ready.fingerprint.model)
        return len(prompt), speed.forecast(len(prompt))

    def _frozen_if_known(self, options: ChatOptions) -> str:
        """Return the tools that a new chat will freeze, if they are known without starting a server."""
        selected = () if self._is_unsupported else self.selected_from(options)
        return freeze([tool for offer in self._offers.values() for tool in offer.tools if is_selected(tool, selected)])
