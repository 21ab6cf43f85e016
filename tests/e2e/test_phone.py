"""A phone pairs by a link and chats in the engine's own web page, and the box remembers its chats."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kvchat.engine.process.plan import free_port
from tests.e2e.home import Home, engine_arguments, notes
from tests.e2e.phone import Phone, find_chromium, phone
from tests.e2e.serving import Serving
from tests.e2e.sharing import sharing, shown_pairing
from tests.e2e.waiting import wait_until
from tests.gateway.servers import receipt_in
from tests.models import starter_model, tiny_model

pytestmark = pytest.mark.e2e
SEND = "[...document.querySelectorAll('button')].find(button => button.innerText == 'Send')"


def make_box(folder: Path, model: Path, engine: str) -> tuple[Home, int]:
    box, port = Home(folder / "box"), free_port("127.0.0.1")
    arguments = engine_arguments(engine)
    chosen = {"engine_path": arguments[1]} if arguments else {}
    box.write_settings(free_floor_bytes=0, model_path=str(model), context_size=8192, **chosen)
    return box, port


def finished(at: Serving, count: int) -> list[dict[str, Any]]:
    """Wait until so many requests are finished, and return them."""
    return wait_until(lambda: found if len(found := at.requests()) == count else None, what=f"{count} requests")


def remove_device(box: Home) -> None:
    (device,) = json.loads(box.run("devices", "--json").stdout)
    assert device["browser"]
    assert box.run("devices", "remove", device["id"]).returncode == 0


@pytest.mark.parametrize(("engine", "has_page"), [("embedded", True), ("llama-server", False)])
def test_browser_uses_the_engines_page_and_the_boxs_memory(tmp_path, engine, has_page):
    box, port = make_box(tmp_path, tiny_model("llama"), engine)
    messages = [{"role": "user", "content": notes(100)}]
    with httpx2.Client(base_url=f"https://127.0.0.1:{port}", verify=False, timeout=300, trust_env=False) as browser:

        def chat(text: str) -> dict[str, Any]:
            messages.append({"role": "user", "content": text})
            body = {"messages": messages, "stream": True, "max_tokens": 10}
            answer = browser.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            reply = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
            messages.append({"role": "assistant", "content": reply})
            return receipt_in(answer.text)

        with sharing(box, port) as at:
            with shown_pairing(box) as shown:
                token = shown["link"].partition("/pair#")[2]
                assert browser.post("/pair", data={"token": token}).status_code == 303
            page = browser.get("/")
            assert page.status_code == (200 if has_page else 404)
            assert ("<script>" in page.text) == has_page
            assert ("no web page" in page.text) != has_page
            first = chat("And the first?")
            assert first["source"] == "cold"
            at.requests()
        box.make_prefill_expensive()
        with sharing(box, port) as at:
            second = chat("And the second?")
            assert second["source"] in ("warm", "disk"), second
            assert second["cached"] >= 0.98 * second["prompt"], second
            at.requests()
            remove_device(box)
            assert browser.get("/").status_code == 401


def send(browser: Phone, text: str) -> None:
    """Send a message in llama.cpp's page."""
    browser.wait("document.querySelector('textarea')")
    browser.run("document.querySelector('textarea').focus()")
    browser.call("Input.insertText", text=text)
    browser.wait(f"{SEND} && !{SEND}.disabled")
    browser.run(f"{SEND}.click()")


def test_phone_pairs_chats_and_goes_on_after_a_restart(tmp_path):
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium")
    box, port = make_box(tmp_path, starter_model(), "embedded")
    address = f"https://127.0.0.1:{port}"
    with phone(program, tmp_path / "profile") as browser:
        with sharing(box, port) as at:
            browser.open(address)
            browser.wait("location.protocol == 'chrome-error:'")
            browser.accept_certificate()
            browser.open(address)
            browser.wait("document.body.innerText.includes('Scan the QR code')")
            browser.screenshot(tmp_path / "unpaired.png")
            with shown_pairing(box) as shown:
                browser.open(f"{address}/pair#{shown['link'].partition('#')[2]}")
                browser.wait("document.querySelector('button')")
                assert browser.run("location.hash + document.cookie") == ""
                browser.screenshot(tmp_path / "pairing.png")
                browser.run("document.querySelector('button').click()")
            send(browser, notes(60) + "\nWhich bridge is the longest?")
            (first,) = finished(at, 1)
            assert first["source"] == "cold"
            send(browser, "And the first?")
            _first, second = finished(at, 2)
            assert second["cached"] >= 0.98 * second["prompt"]
            browser.screenshot(tmp_path / "chat.png")
        box.make_prefill_expensive()
        with sharing(box, port) as at:
            send(browser, "And the last?")
            (third,) = finished(at, 1)
            assert third["source"] in ("warm", "disk"), third
            assert third["cached"] >= 0.98 * third["prompt"], third
            browser.screenshot(tmp_path / "restarted.png")
            remove_device(box)
            browser.open(f"{address}/?reload")
            browser.wait("document.body.innerText.includes('Scan the QR code')")
        refused = {path for path, status in browser.requests() if status == 404}
        assert refused <= {"/tools", "/v1/streams/lookup"}
        assert not [text for text in browser.complaints() if "Content Security Policy" in text]
