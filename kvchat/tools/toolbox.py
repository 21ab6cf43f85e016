"""All tool sources: their tools, and execution of calls with limits on time and size."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvchat.errors import KvchatError
from kvchat.text.language import _
from kvchat.tools.tool import MAX_RESULT_CHARS, SourceTools, Tool, ToolFailed, ToolResult, ToolSource

CALL_TIMEOUT_S = 300.0  # a source may have a shorter one


class Toolbox:
    """Event-loop thread only."""

    def __init__(self, sources: Callable[[], Sequence[ToolSource]] = tuple) -> None:
        self._sources = sources

    async def offers(self, selected: Collection[str] | None = None) -> list[SourceTools]:
        """Return the tools of all sources, or of sources with `selected` ones, starting servers if needed."""

        async def offer(source: ToolSource) -> SourceTools:
            try:
                return SourceTools(source.id, await _listed(source))
            except KvchatError as error:
                return SourceTools(source.id, error=error)

        sources = [
            source
            for source in self._sources()
            if selected is None or any(name.startswith(f"{source.id}/") for name in selected)
        ]
        return await asyncio.gather(*map(offer, sources))

    async def tools(self, selected: Collection[str] | None = None) -> tuple[list[Tool], list[KvchatError]]:
        """Return the tools of `offers`, and the errors of sources that cannot list their tools."""
        offers = await self.offers(selected)
        return [tool for offer in offers for tool in offer.tools], [offer.error for offer in offers if offer.error]

    async def find(self, tool: Tool) -> Tool:
        """Return the current definition of a frozen tool, which may come from an imported chat. Raises KvchatError."""
        for offered in await _listed(self._source(tool)):
            if offered.name == tool.name:
                return offered
        detail = _("“{source}” no longer offers this tool or has changed it since you approved it.", source=tool.source)
        raise ToolFailed(_("The tool “{name}” is not available", name=tool.name), detail)

    def _source(self, tool: Tool) -> ToolSource:
        for source in self._sources():
            if source.id == tool.source:
                return source
        title = _("The tool “{name}” is not available", name=tool.name)
        raise ToolFailed(title, _("“{source}” was removed or turned off.", source=tool.source))

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
        """Execute a call with the tool's source. Raises ToolFailed."""
        source = self._source(tool)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                result = await source.call(tool.name, arguments)
        except TimeoutError:
            detail = _("It did not finish within {seconds} seconds.", seconds=round(CALL_TIMEOUT_S))
            raise ToolFailed(_("The tool “{name}” took too long", name=tool.name), detail) from None
        except KvchatError:
            raise
        except Exception as error:  # a bug in a source must not end the turn
            return ToolResult(f"The tool failed: {type(error).__name__}: {error}"[:MAX_RESULT_CHARS], is_error=True)
        if (excess := len(result.text) - MAX_RESULT_CHARS) > 0:
            text = f"{result.text[:MAX_RESULT_CHARS]}\n[{excess} more characters were cut off]"
            result = replace(result, text=text)
        return result


async def _listed(source: ToolSource) -> tuple[Tool, ...]:
    try:
        return tuple(await source.tools())
    except KvchatError:
        raise
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        raise ToolFailed(_("“{source}” could not list its tools", source=source.id), detail) from error
