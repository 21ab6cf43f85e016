"""Paired browsers: the link, the cookie, and the little that they may use."""

import base64
import contextlib
import hashlib
import html
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from kvchat.gateway.checks import BROWSER_COOKIE
from kvchat.gateway.devices.api import PairingApi
from kvchat.gateway.devices.browsers import browser_name
from kvchat.gateway.devices.device_list import Device, Devices, is_page_file
from kvchat.gateway.dialects.request import GENERATING_PATHS, SLOTLESS_PATHS
from kvchat.system.certificate import server_context
from kvchat.system.pairing import CODE_LIFETIME_S, LOCK_S, MAX_WRONG_CODES, CodeHolder
from tests.e2e.phone import IPHONE
from tests.engine_fixtures import FakeEngine
from tests.gateway.servers import WORDS, RunningGateway, chat_body, reply_in

SCRIPT = 'import("./_app/immutable/bundle.js")'
PAGE = f'<!doctype html><script>{SCRIPT}</script><script type="module" src="./other.js"></script>'


@dataclass
class Box:
    server: RunningGateway
    pairing: PairingApi
    url: str
    now: float = 0.0
    paired: list[Device] = field(default_factory=list)

    def browser(self) -> contextlib.AbstractAsyncContextManager[httpx2.AsyncClient]:
        return httpx2.AsyncClient(
            base_url=self.url, verify=False, timeout=120, trust_env=False, headers={"user-agent": IPHONE}
        )


@pytest.fixture
async def box(tmp_path: Path, server: RunningGateway) -> Box:
    context, fingerprint = server_context(tmp_path / "certificate.pem")
    box = Box(server, None, "")  # type: ignore[arg-type]
    codes = CodeHolder(fingerprint, lambda: box.now)
    box.pairing = PairingApi(Devices(tmp_path / "devices.json"), codes, "<box>", "", box.paired.append)
    box.url = f"https://127.0.0.1:{await server.gateway.share(box.pairing, '127.0.0.1', 0, context)}"
    return box


async def pair(box: Box, browser: httpx2.AsyncClient) -> httpx2.Response:
    box.pairing.codes.show_code()
    answer = await browser.post("/pair", data={"token": box.pairing.codes.token})
    assert answer.status_code == 303, answer.text
    return answer


async def test_page_is_served_to_paired_browsers_only(box: Box, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_PAGE=PAGE)
    async with box.browser() as browser:
        unpaired = await browser.get("/")
        assert unpaired.status_code == 401
        assert "Scan the QR code" in unpaired.text
        assert (await browser.get("/_app/immutable/bundle.js")).status_code == 401
        assert not fake_engine.launches(), "strangers start no engine"

        answer = await pair(box, browser)
        assert answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"].lower()
        for part in (f"{BROWSER_COOKIE}=kv-".lower(), "httponly", "secure", "samesite=strict", "path=/;", "max-age="):
            assert part in cookie
        assert "domain" not in cookie
        assert [(device.name, device.is_browser) for device in box.paired] == [("Safari on iPhone", True)]

        page = await browser.get("/")
        assert page.text == PAGE
        digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
        policy = page.headers["content-security-policy"]
        assert f"script-src 'self' 'sha256-{digest}';" in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in page.headers
        assert (await browser.get("/", headers={"if-none-match": page.headers["etag"]})).status_code == 304
        script = await browser.get("/_app/immutable/bundle.js")
        assert script.text == "start()"
        assert "immutable" in script.headers["cache-control"]


async def test_engine_without_a_page_says_so(box: Box) -> None:
    async with box.browser() as browser:
        await pair(box, browser)
        answer = await browser.get("/")
        assert answer.status_code == 404
        assert "has no web page" in answer.text


async def test_browsers_reach_only_chat_models_and_properties(box: Box, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_PAGE=PAGE)
    refused = {"/slots", "/metrics", "/tools", "/cors-proxy", "/kvchat/requests", "/kvchat/chats", "/sw.js", "/.env"}
    refused |= {"/slots/0?action=erase", "/_app/%2e%2e/slots.js", "/%2fslots.js"}
    refused |= {*GENERATING_PATHS, *SLOTLESS_PATHS, "/v1/embeddings", "/kvchat/prepare"} - {"/v1/chat/completions"}
    async with box.browser() as browser:
        for cookies in (False, True):
            if cookies:
                await pair(box, browser)
            for path in sorted(refused):
                for method in ("GET", "POST"):
                    answer = await browser.request(method, path)
                    assert answer.status_code in ((404, 405) if cookies else (401,)), (method, path)
        for path in ("/props", "/v1/models", "/models"):
            assert (await browser.get(path)).status_code == 200
        assert reply_in(await browser.post("/v1/chat/completions", json=chat_body(WORDS)))
        assert box.server.last.program == box.paired[0].program
    paths = {request["path"] for request in fake_engine.requests()}
    assert not {path for path in paths if path.startswith("/slots") and "action=" not in path}
    assert not paths & {"/tools", "/cors-proxy"}


async def test_cookie_counts_on_the_shared_listener_only(box: Box, server: RunningGateway) -> None:
    async with box.browser() as browser:
        await pair(box, browser)
        key = browser.cookies[BROWSER_COOKIE]
    await server.chat(WORDS, headers={"cookie": f"{BROWSER_COOKIE}={key}", "user-agent": "curl/8"})
    assert server.last.program == "curl"
    assert (await server.client.get("/")).status_code == 404
    assert (await server.client.get("/pair")).status_code == 404


async def test_link_counts_once_and_for_ten_minutes(box: Box) -> None:
    codes = box.pairing.codes
    async with box.browser() as browser:

        async def status(token: str) -> int:
            return (await browser.post("/pair", data={"token": token})).status_code

        assert await status("") == await status("a" * 22) == 403
        codes.show_code()
        first = codes.token
        assert len(base64.urlsafe_b64decode(first + "==")) == 16
        codes.show_code()
        assert await status(first) == 403, "a new code replaces the link"
        second = codes.token
        box.now += CODE_LIFETIME_S
        assert await status(second) == 403, "it has expired"
        codes.show_code()
        assert await status(codes.token[:-1]) == 403
        codes.hide_code()
        assert await status("") == 403, "no empty token"
        codes.show_code()
        third, code = codes.token, codes.code
        assert code
        assert await status(third) == 303
        assert not codes.code, "the code is used up as well"
        assert await status(third) == 403, "a replayed token"
        assert len(box.paired) == 1


async def test_wrong_links_lock_pairing(box: Box) -> None:
    codes = box.pairing.codes
    codes.show_code()
    async with box.browser() as browser:
        for _ in range(MAX_WRONG_CODES):
            assert (await browser.post("/pair", data={"token": "wrong"})).status_code == 403
        locked = await browser.post("/pair", data={"token": codes.token})
        assert locked.status_code == 429
        box.now += LOCK_S
        await pair(box, browser)


async def test_removed_browser_is_refused_at_once(box: Box, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_PAGE=PAGE)
    async with box.browser() as browser:
        await pair(box, browser)
        page = await browser.get("/")
        box.pairing.devices.remove(box.paired[0].id)
        after = await browser.get("/", headers={"if-none-match": page.headers["etag"]})
        assert after.status_code == 401
        assert "Scan the QR code" in after.text
        assert (await browser.post("/v1/chat/completions", json=chat_body(WORDS))).status_code == 401


async def test_paired_browser_that_scans_again_stays_the_same_device(box: Box) -> None:
    async with box.browser() as browser:
        await pair(box, browser)
        await pair(box, browser)
    (device,) = box.pairing.devices.all
    assert device == box.paired[1]
    assert device.paired_at > box.paired[0].paired_at


async def test_other_web_pages_cannot_use_the_cookie_or_pair(box: Box, fake_engine: FakeEngine) -> None:
    fake_engine.set(FAKE_PAGE=PAGE)
    theirs = {"origin": "https://evil.example", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    sibling = {"origin": box.url.replace("127.0.0.1", "127.0.0.1:1"), "sec-fetch-site": "same-site"}
    async with box.browser() as browser:
        box.pairing.codes.show_code()
        for headers in (theirs, sibling, {"origin": "null"}):
            answer = await browser.post("/pair", data={"token": box.pairing.codes.token}, headers=headers)
            assert answer.status_code == 403
        await pair(box, browser)
        for headers in (theirs, sibling, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}):
            assert (await browser.get("/props", headers=headers)).status_code == 403
        old_safari = {"origin": box.url}
        assert (await browser.post("/v1/chat/completions", json=chat_body(WORDS), headers=old_safari)).is_success


async def test_pairing_page_asks_and_hides_the_token(box: Box) -> None:
    async with box.browser() as browser:
        page = await browser.get("/pair", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
        assert html.escape("“<box>”") in page.text
        script = page.text.partition("<script>")[2].partition("</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}';" in page.headers["content-security-policy"]
        assert "history.replaceState" in script
        assert page.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/_app/../slots.js", "/.env.json", "//evil.example/a.js", "/a%2f.js", "/slots", "/a.js?b"]
)
def test_path_that_is_no_file_of_the_page(path: str) -> None:
    assert not is_page_file(path)


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (IPHONE, "Safari on iPhone"),
        (
            "Mozilla/5.0 (Linux; Android 15) Chrome/142.0.0.0 Mobile Safari/537.36",
            "Chrome on Android",
        ),
        ("Mozilla/5.0 (Android 15; Mobile; rv:145.0) Gecko/145.0 Firefox/145.0", "Firefox on Android"),
        (
            "Mozilla/5.0 (iPad; CPU OS 18_6 like Mac OS X) CriOS/142.0 Safari/604.1",
            "Chrome on iPad",
        ),
        ("", "Browser"),
    ],
)
def test_browser_is_named_for_its_user_agent(agent: str, name: str) -> None:
    assert browser_name(agent) == name
