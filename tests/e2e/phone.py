"""Headless Chromium that plays a phone, driven by the DevTools protocol over its pipe."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.waiting import wait_until

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
IPHONE = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
    "Version/18.6 Mobile/15E148 Safari/604.1"
)
# Chromium reads from descriptor 3 and writes to 4.
_START = "import os, sys; [os.dup2(int(sys.argv[n]), n + 2) for n in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Phone:
    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Security"):
            self.call(f"{domain}.enable")
        self.call("Network.setUserAgentOverride", userAgent=IPHONE, platform="iPhone")
        self.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def accept_certificate(self) -> None:
        """Do what the user does once at the browser's warning."""
        self.call("Security.setIgnoreCertificateErrors", ignore=True)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until a script's value is true."""

        def is_true() -> bool:
            with contextlib.suppress(RuntimeError):  # the page is being replaced
                return bool(self.run(f"!!({script})"))
            return False

        wait_until(is_true, what=script)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def requests(self) -> list[tuple[str, int]]:
        """Return the path and status of each response so far."""
        self.call("Page.getFrameTree")  # reads the events that have arrived
        found = []
        for event in self.events:
            if event.get("method") == "Network.responseReceived":
                response = event["params"]["response"]
                found.append((urlsplit(response["url"]).path, int(response["status"])))
        return found

    def complaints(self) -> list[str]:
        """Return what the browser's console says about the page's errors."""
        self.call("Page.getFrameTree")
        entries = [event["params"]["entry"] for event in self.events if event.get("method") == "Log.entryAdded"]
        return [f"{entry['text']} {entry.get('url', '')}" for entry in entries if entry["level"] == "error"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._from, 1_000_000)
            if not data:
                raise RuntimeError("the browser is gone")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed


@contextlib.contextmanager
def phone(program: str, profile: Path) -> Iterator[Phone]:
    """Run a browser with this profile folder, which keeps cookies and chats."""
    browser_reads, to_browser = os.pipe()
    from_browser, browser_writes = os.pipe()
    flags = ("--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-proxy-server", "--no-sandbox")
    flags += (f"--user-data-dir={profile}",)
    process = subprocess.Popen(
        (*(sys.executable, "-c", _START, str(browser_reads), str(browser_writes)), program, *flags),
        pass_fds=(browser_reads, browser_writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        os.close(browser_reads)
        os.close(browser_writes)
        browser = Phone(to_browser, from_browser)
        yield browser
        browser._session = ""
        browser.call("Browser.close")
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
