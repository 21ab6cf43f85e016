"""Tools that fetch public web pages and search the web with a SearXNG server that the user chose."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from kvchat.system.files import parse_json, read_limited
from kvchat.text.formatting import one_line
from kvchat.tools.built_in.definition import START, BuiltInTool, ReadText, define, extracted_text, part_of
from kvchat.tools.tool import ToolFailed, ToolResult

MAX_RESULTS = 10
_MAX_ANSWER_BYTES = 4_000_000
_SEARCH_TIMEOUT_S = 30.0
_MAX_TITLE, _MAX_EXCERPT, _MAX_URL = 200, 500, 1000  # characters of a search result
_FORMATS = {"text/html": "page", "application/xhtml+xml": "page", "application/pdf": "pdf"}  # of extraction.py
_TEXT_TYPES = ("application/json", "application/xml", "application/javascript", "application/yaml", "")
_TEXT_ENDINGS = ("+json", "+xml", "+yaml")


def fetch_tool(read_text: ReadText) -> BuiltInTool:
    async def run(arguments: Mapping[str, Any]) -> ToolResult:
        from kvchat.tools.built_in.public_web import fetch

        page = await fetch(arguments["url"])
        data, media_type = page.data, page.media_type
        is_text = media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(_TEXT_ENDINGS)
        if (format := _FORMATS.get(media_type)) is None and not is_text:
            raise ToolFailed(f"{page.url} is not text", f"Its type is {media_type}.")
        if format == "page" and page.charset:
            data = b'<meta charset="%s">' % page.charset.encode() + data  # the header overrides the page
        text = await asyncio.to_thread(extracted_text, read_text, page.url, data, format)
        return ToolResult(f"{page.url}\n\n{part_of(text, arguments.get('start', 0))}")

    description = "Fetch a public web page, PDF or text file by its address, and return its text."
    url = {"type": "string", "maxLength": 4000, "description": "Address that begins with https:// or http://"}
    return BuiltInTool(define("fetch_page", description, {"url": url}, {"start": START}), run)


def search_tool(address: Callable[[], str]) -> BuiltInTool:
    async def run(arguments: Mapping[str, Any]) -> ToolResult:
        if not (base := address().strip().rstrip("/")):
            raise ToolFailed("No web search is set up", "The user can set the setting web_search_url.")
        try:
            async with asyncio.timeout(_SEARCH_TIMEOUT_S):
                answer = await _ask_searxng(base, arguments["query"])
        except TimeoutError as error:
            raise ToolFailed("The search server did not answer", f"Limit: {_SEARCH_TIMEOUT_S:.0f} seconds.") from error
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list):
            raise ToolFailed("The search server sent an invalid answer")
        found = [result for result in results if isinstance(result, dict)][:MAX_RESULTS]
        return ToolResult("\n\n".join(map(_result_lines, found)) or "The search found nothing.")

    query = {"type": "string", "minLength": 1, "maxLength": 500, "description": "Search words"}
    description = "Search the web. Return titles, addresses and excerpts of pages."
    return BuiltInTool(define("web_search", description, {"query": query}), run, lambda: bool(address().strip()))


async def _ask_searxng(base: str, query: str) -> Any:
    """Query SearXNG (https://docs.searxng.org/dev/search_api.html). Its address may be private: the user chose it."""
    import httpx2

    try:
        async with (
            httpx2.AsyncClient(timeout=_SEARCH_TIMEOUT_S) as client,
            client.stream(
                "GET",
                f"{base}/search",
                params={"q": query, "format": "json"},
                headers={"Accept-Encoding": "identity"},
            ) as response,
        ):
            if response.status_code != 200:
                advice = " Its settings must list json in search.formats." if response.status_code == 403 else ""
                raise ToolFailed(
                    "The search failed", f"The server answered with status {response.status_code}.{advice}"
                )
            return parse_json(await read_limited(response.aiter_raw(), _MAX_ANSWER_BYTES))
    except ValueError as error:
        raise ToolFailed("The search server sent an invalid answer", f"{error}.") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ToolFailed("The search server could not be reached", f"{str(error) or type(error).__name__}.") from error


def _result_lines(result: Mapping[str, Any]) -> str:
    parts = ("title", _MAX_TITLE), ("url", _MAX_URL), ("content", _MAX_EXCERPT)
    return "\n".join(filter(None, (one_line(str(result.get(name) or ""))[:most] for name, most in parts)))
