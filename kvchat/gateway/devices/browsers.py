"""Browsers of phones and tablets: pairing by a link, and the engine's own web page.

The link's token is in its fragment, which browsers send to nobody. A script moves it into the form of the pairing
page and removes it from the history; the form is sent when the user presses the button, not when something prefetches
the page. The answer's cookie holds the device's key.
"""

import base64
import gzip
import hashlib
import io
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from kvchat.engine.api.client import LlamaServerClient
from kvchat.errors import KvchatError
from kvchat.gateway.checks import BROWSER_COOKIE, cookie_in, read_body
from kvchat.gateway.devices.api import PairingApi
from kvchat.gateway.devices.device_list import PAGE_PATHS, is_page_file
from kvchat.gateway.dialects.request import RequestRefused
from kvchat.system.pairing import PAIR_PATH, PairingLocked, WrongCode
from kvchat.text.language import _, current_language

_COOKIE_DAYS = 400  # the most that browsers accept; each visit renews it
_MAX_FORM = 1_000  # bytes
_MAX_HTML = 20_000_000  # bytes; some builds put all scripts into the page
_INLINE_SCRIPT = re.compile(rb"<script\b(?![^>]*\ssrc\s*=)[^>]*>(.*?)</script", re.DOTALL | re.IGNORECASE)

# Model output in the page cannot load anything from other servers, and no other page can frame it.
_POLICY = (
    "default-src 'none'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PLAIN_POLICY = "default-src 'none'; script-src {hash}; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_MOVE_TOKEN = (
    'document.forms[0].elements[0].value=location.hash.slice(1);history.replaceState(null,"",location.pathname)'
)

_BROWSERS = {  # by a mark in the User-Agent; the first one counts
    **{"Edg": "Edge", "OPR/": "Opera", "SamsungBrowser": "Samsung Internet", "Firefox": "Firefox", "FxiOS": "Firefox"},
    **{"CriOS": "Chrome", "Chrome": "Chrome", "Safari": "Safari"},
}
_SYSTEMS = {
    **{"iPhone": "iPhone", "iPad": "iPad", "Android": "Android", "CrOS": "ChromeOS", "Windows": "Windows"},
    **{"Mac OS": "Mac", "Linux": "Linux"},
}


@dataclass
class BrowserPages:
    """The pages for browsers. `engine` returns the running engine or starts one, and raises KvchatError."""

    pairing: PairingApi
    engine: Callable[[], Awaitable[LlamaServerClient]]

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return (
            Route(PAIR_PATH, self._ask),
            Route(PAIR_PATH, self._pair, methods=["POST"]),
            Route("/{path:path}", self._show_file),  # checked by the gateway: paired browsers only
        )

    async def _ask(self, request: Request) -> Response:
        button = escape(_("Use the models of “{name}” on this device", name=self.pairing.name))
        form = f'<form method="post"><input type="hidden" name="token"><button>{button}</button></form>'
        return _page(200, f"{form}<script>{_MOVE_TOKEN}</script>", script=_MOVE_TOKEN)

    async def _pair(self, request: Request) -> Response:
        body = await read_body(request.headers, request.receive, lambda size: None, _MAX_FORM)
        key, name = cookie_in(request.headers), browser_name(request.headers.get("user-agent", ""))
        try:
            token = parse_qs(body.decode()).get("token", [""])[0]
            key = self.pairing.pair_browser(token, name, key)
        except PairingLocked as error:
            return plain_page(429, error)
        except (WrongCode, ValueError):
            advice = _("Show a new QR code on the computer, and scan it within ten minutes.")
            return plain_page(403, KvchatError(_("The link is wrong or has expired"), "", advice))
        response = RedirectResponse("/", 303)
        _set_cookie(response, key)
        return response

    async def _show_file(self, request: Request) -> Response:
        path = request.scope["path"]
        if not is_page_file(path):
            raise RequestRefused(404, "Not found.", "not_found_error")
        try:
            file = await (await self.engine()).page_file(path)
        except KvchatError as error:
            return plain_page(503, error)
        if file is None:
            if path in PAGE_PATHS:
                return plain_page(404, KvchatError(_("The engine on {name} has no web page.", name=self.pairing.name)))
            raise RequestRefused(404, "Not found.", "not_found_error")
        kept, content, hashes = dict(file.headers), file.content, ""
        if "html" in kept.get("content-type", ""):
            if kept.pop("content-encoding", "") == "gzip":
                content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(_MAX_HTML)
            content = content.replace(b"\r\n", b"\n")  # as browsers do before they hash a script
            hashes = "".join(f" {_hash(script)}" for script in _INLINE_SCRIPT.findall(content))
        headers = _HEADERS | kept | {"content-security-policy": _POLICY.format(hashes=hashes)}
        is_lasting = path.startswith("/_app/immutable/")
        headers["cache-control"] = "private, max-age=31536000, immutable" if is_lasting else "private, no-cache"
        is_known = "etag" in kept and kept["etag"] in request.headers.get("if-none-match", "")
        response = Response(b"" if is_known else content, 304 if is_known else 200, headers)
        if path in PAGE_PATHS and (key := cookie_in(request.headers)):
            _set_cookie(response, key)
        return response


def unpaired_page() -> Response:
    advice = _(
        "Scan the QR code that the computer shows: click “Pair a device…” in Settings, Devices, or run `kvchat pair`."
    )
    return plain_page(401, KvchatError(_("This browser is not paired"), "", advice))


def plain_page(status: int, error: KvchatError) -> Response:
    return _page(status, f"<p>{escape(str(error))}</p>")


def browser_name(user_agent: str) -> str:
    """Return a name for a browser's device, such as "Safari on iPhone"."""
    browser, system = (
        next((name for mark, name in marks.items() if mark in user_agent), "") for marks in (_BROWSERS, _SYSTEMS)
    )
    if browser and system:
        return _("{browser} on {system}", browser=browser, system=system)
    return browser or system or _("Browser")


def _page(status: int, body: str, script: str = "") -> Response:
    html = (
        f'<!doctype html><html lang="{current_language().replace("_", "-")}"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>kvchat</title>{body}"
    )
    headers = _HEADERS | {"cache-control": "no-store"}
    headers["content-security-policy"] = _PLAIN_POLICY.format(hash=_hash(script.encode()) if script else "'none'")
    if script:
        headers["referrer-policy"] = "same-origin"  # with no-referrer, the form's Origin would be “null”
    return Response(html, status, headers, media_type="text/html")


def _hash(script: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"


def _set_cookie(response: Response, key: str) -> None:
    age = _COOKIE_DAYS * 24 * 3600
    response.set_cookie(BROWSER_COOKIE, key, max_age=age, path="/", secure=True, httponly=True, samesite="strict")
