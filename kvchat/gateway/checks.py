"""Access checks (host name, web origin, key, size), and rejection of requests that could harm the engine.

Without these checks, any client could make llama-server fetch images from the user's own network. Its recursive
parser overflows the stack on deep nesting. It tokenizes a text completely, using about 100 bytes of memory per byte,
before it notices that the text is too long, and it keeps the log probabilities of each token it generates.
"""

import asyncio
import base64
import ipaddress
import json
import re
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Receive

from kvchat.engine.api.pictures import MAX_PIXELS, image_size
from kvchat.engine.api.wire import MAX_GRAMMAR_CHARS, MAX_NESTING, nesting_depth
from kvchat.gateway.dialects.conversion import Json
from kvchat.gateway.dialects.request import THREAD_BYTES, Dialect, ParsedRequest, RequestRefused, parse_request
from kvchat.gateway.keys import ANY_PROGRAM, UNNAMED, Keys, program_from_user_agent
from kvchat.system.concurrency import run_in_thread_if_large

MAX_BODY = 64_000_000  # bytes of a request, including pictures
BODY_TIMEOUT_S = 60.0  # time for the body after the head
BROWSER_COOKIE = "__Host-kvchat"  # holds a paired browser's key; the prefix makes browsers demand TLS and Path=/
_CHAT = re.compile(r"[0-9A-Za-z_-]{1,64}")
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:/?#@\s]*)(?::\d{0,5})?")


@dataclass(frozen=True)
class AccessPolicy:
    host: str  # the listening address
    keys: Keys
    origins: frozenset[str] = frozenset()  # web pages that may use the gateway; * for all
    is_shared: bool = False  # for paired devices, which may use any name of this computer, such as gpubox.lan

    def check_host_and_origin(self, headers: Headers) -> None:
        """Raise RequestRefused unless the Host header names this computer and the Origin is allowed."""
        match = _HOST.fullmatch(headers.get("host", ""))
        name = match["name"] if match else ""
        try:
            ipaddress.ip_address(name.strip("[]"))  # DNS rebinding needs a name, not an address
            is_ours = True
        except ValueError:
            own = socket.gethostname().lower()
            is_ours = name.lower().rstrip(".") in (
                "localhost",
                own,
                f"{own.partition('.')[0]}.local",
                self.host.lower(),
            ) or (self.is_shared and name.lower().partition(".")[0] == own.partition(".")[0])
        if not is_ours:
            raise RequestRefused(403, "The Host header does not name this computer.", "permission_error")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        is_link = self.is_shared and headers.get("sec-fetch-mode") == "navigate"  # sent without the strict cookie
        if origin is None and site == "cross-site" and not is_link:
            origin = "a web page"
        if self.is_shared and origin == f"https://{headers['host']}":  # Safari before 16.4 sends no Sec-Fetch-Site
            site = "same-origin"
        if origin is not None and not self.origins & {origin, "*"} and site not in ("none", "same-origin"):
            raise RequestRefused(403, "Requests from this web origin are not allowed.", "permission_error")

    def program(self, headers: Headers) -> str:
        """Identify the program by its API key or User-Agent. Raises RequestRefused if a required key is invalid.

        A program that has its own key cannot be impersonated by its User-Agent.
        """
        claimed = program_from_user_agent(headers.get("user-agent", ""))
        if not self.keys:
            return claimed
        program = ANY_PROGRAM if self.is_owner(headers) else self.keys.program_of(self._key_in(headers))
        if program is None:
            raise RequestRefused(401, "The API key is missing or invalid.", "authentication_error")
        if program == ANY_PROGRAM:
            return UNNAMED if claimed in self.keys else claimed
        return program

    def is_owner(self, headers: Headers) -> bool:
        return self.keys.is_owner(self._key_in(headers))

    def _key_in(self, headers: Headers) -> str:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return key or (cookie_in(headers) if self.is_shared else "")


def chat_named_in(headers: Mapping[str, str]) -> str:
    """Return the client's name of the chat that a request belongs to, or "". Raises RequestRefused."""
    chat = headers.get("x-kvchat-chat", "")
    if chat and not _CHAT.fullmatch(chat):
        raise RequestRefused(400, "X-Kvchat-Chat must be 1 to 64 letters, digits, hyphens or underscores.")
    return chat


def wants_saving(headers: Mapping[str, str]) -> bool:
    return headers.get("x-kvchat-save", "") != "never"


def cookie_in(headers: Headers) -> str:
    """Return the key in a paired browser's cookie, or ""."""
    return cookie_parser(headers.get("cookie", "")).get(BROWSER_COOKIE, "")


async def read_body(
    headers: Headers, receive: Receive, count: Callable[[int], None], limit: int | None = None
) -> bytes:
    """Read the whole request body of at most `limit` bytes (default: MAX_BODY); call `count` with each part's size.

    It may be compressed with gzip; the limit is for its text. Raises RequestRefused if the body is too large or too
    slow, ConnectionError if the client disconnected.
    """
    limit = MAX_BODY if limit is None else limit
    too_large = RequestRefused(413, f"The request body is larger than {limit:,} bytes.", "request_too_large")
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    parts = bytearray()
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16) if headers.get("content-encoding") == "gzip" else None
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError
                part = message.get("body", b"")
                if unpacker is not None:
                    large = len(part) > 4_000  # a thousand times as much text
                    part = await run_in_thread_if_large(large, unpacker.decompress, part, limit + 1 - len(parts))
                if len(parts) + len(part) > limit:
                    raise too_large
                count(len(part))
                parts += part
                if not message.get("more_body"):
                    return bytes(parts)
    except zlib.error as error:
        raise RequestRefused(400, "The request body is not valid gzip data.") from error
    except TimeoutError as error:
        raise RequestRefused(
            408, f"The request body did not arrive within {BODY_TIMEOUT_S:.0f} seconds.", "timeout_error"
        ) from error


def parse_origins(text: str) -> frozenset[str]:
    return frozenset(origin.rstrip("/") for origin in text.replace(",", " ").split())


MAX_TEXT = 8_000_000  # bytes of a body without pictures: more than any context holds
MAX_ENTRIES = 10_000  # entries per list (messages, prompts, stop words…); template time grows with its square
MAX_ALTERNATIVES = 20  # alternatives listed per token, as in OpenAI's API
MAX_TOTAL_PIXELS = 500_000_000  # per request: the engine decodes all pictures before it uses the first
_ALTERNATIVE_FIELDS = ("n_probs", "top_logprobs", "logprobs")
_PICTURE_FIELDS = re.compile("source|input_.+|.+_url")  # members of a message part that may hold an address
_FILE_FIELDS = ("url", "image_url", "data", "file_data")  # hold a picture file
GRAMMAR_FIELDS = ("grammar", "json_schema", "schema", "parameters", "input_schema")
_TOO_DEEP = f"The request body is nested more than {MAX_NESTING} levels deep."


async def parse_checked(dialect: Dialect, raw: bytes) -> ParsedRequest:
    """Parse a body and check that the engine can safely process it. Raises RequestRefused."""

    def parse() -> ParsedRequest:
        request = parse_request(dialect, raw)
        check_bounds(request.body, len(raw))
        request.check()
        return request

    return await run_in_thread_if_large(len(raw) > THREAD_BYTES, parse)


def check_bounds(body: Json, size: int = 0) -> None:
    """Raise RequestRefused if a body of `size` bytes exceeds a limit on length, nesting, grammars or images."""
    for name, value in body.items():
        listed = len(value) if isinstance(value, dict) else 0
        if isinstance(value, list):
            listed = sum(not isinstance(item, int | float) for item in value)  # do not count token ids
        if listed > MAX_ENTRIES:
            raise RequestRefused(400, f"“{name[:40]}” has more than {MAX_ENTRIES:,} entries.")
        if name in _ALTERNATIVE_FIELDS and isinstance(value, int | float) and value > MAX_ALTERNATIVES:
            raise RequestRefused(400, f"“{name}” must be at most {MAX_ALTERNATIVES}.")
    pixels = 0
    places: list[tuple[Any, int, bool]] = [(body, 1, False)]
    while places:
        value, level, in_grammar = places.pop()
        if level > MAX_NESTING:
            raise RequestRefused(400, _TOO_DEEP)
        if isinstance(value, list):
            places += [(item, level + 1, in_grammar) for item in value if isinstance(item, dict | list)]
        elif isinstance(value, dict):
            for name, item in value.items():
                files: list[Any] = []
                if isinstance(item, str):
                    files = [item] if name in _FILE_FIELDS else []
                    places += _parse_nested(name, item)
                elif isinstance(item, dict | list):
                    places.append((item, level + 1, in_grammar or name in GRAMMAR_FIELDS))
                    if name in GRAMMAR_FIELDS and not in_grammar:
                        try:
                            length = len(json.dumps(item, ensure_ascii=False, separators=(",", ":")))
                        except RecursionError:
                            raise RequestRefused(400, _TOO_DEEP) from None
                        if length > MAX_GRAMMAR_CHARS:
                            raise RequestRefused(
                                400, f"The JSON schema is longer than {MAX_GRAMMAR_CHARS:,} characters."
                            )
                    if name == "multimodal_data":  # images of a completion prompt
                        files = [file for file in item if isinstance(file, str)]
                size -= sum(map(len, files))
                pixels += sum(map(_pixels, files))
    lists = (body.get(name) for name in ("messages", "input", "system"))
    urls = (url for parts in lists if isinstance(parts, list) for url in _picture_urls(parts))
    if not all(url.startswith("data:") for url in urls):
        raise RequestRefused(400, "Image URLs are not supported. Send the image as base64 or as a “data:” URL.")
    if pixels > MAX_TOTAL_PIXELS:
        raise RequestRefused(400, f"The images have more than {MAX_TOTAL_PIXELS:,} pixels in total.")
    if size > MAX_TEXT:
        raise RequestRefused(400, f"The request body without images is larger than {MAX_TEXT:,} bytes.")


def _picture_urls(parts: list[Any]) -> Iterator[str]:
    """Yield the image URLs that the engine would fetch: those in messages and message parts, not in tool arguments."""
    for part in parts:
        for name, value in part.items() if isinstance(part, dict) else ():
            if name in ("content", "output") and isinstance(value, list):
                yield from _picture_urls(value)
            elif _PICTURE_FIELDS.fullmatch(name):
                url = value.get("url") if isinstance(value, dict) else value if name != "source" else None
                if isinstance(url, str):
                    yield url


def _pixels(file: str) -> int:
    """Count the pixels of a base64 image, as a small file may decode to gigabytes. Raises RequestRefused."""
    try:
        width, height = image_size(base64.b64decode(file.partition(";base64,")[2] or file))
    except ValueError:  # not an image: the engine reports it
        return 0
    if width * height > MAX_PIXELS:
        raise RequestRefused(400, f"An image has more than {MAX_PIXELS:,} pixels.")
    return width * height


def _parse_nested(name: str, text: str) -> list[tuple[Any, int, bool]]:
    """Check a string against the limits on grammars; return JSON in it, such as tool call arguments, to be checked."""
    if name in GRAMMAR_FIELDS and len(text) > MAX_GRAMMAR_CHARS:
        raise RequestRefused(400, f"The grammar is longer than {MAX_GRAMMAR_CHARS:,} characters.")
    if name in ("grammar", "pattern") and nesting_depth(text) > MAX_NESTING:
        raise RequestRefused(400, f"The grammar is nested more than {MAX_NESTING} levels deep.")
    if name in ("arguments", "json_schema"):
        try:
            return [(json.loads(text), 1, True)]
        except RecursionError:
            raise RequestRefused(400, _TOO_DEEP) from None
        except ValueError:  # the engine reports it
            pass
    return []
