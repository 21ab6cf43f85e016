"""Paired devices: other computers and browsers that use this computer's model, each with a key of its own.

The file holds hashes of the keys. To the rest of the gateway a device is a program; its name begins with "@", which no
User-Agent or API key can claim.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kvchat.gateway.keys import Keys
from kvchat.kvstore.savepoint import DEVICE_PREFIX, is_device
from kvchat.system.files import atomic_write, read_json
from kvchat.text.safe_text import safe_name

MAX_DEVICES = 100
_MAX_FILE = 200_000  # bytes
_USE_INTERVAL_S = 3600.0  # precision of `last_used_at`

_HEALTH = "/health"  # a paired computer checks it all the time
_TOTALS = "/metrics"  # also counts the requests of others

# All that a browser may use: the files of the engine's web page, and what that page needs to chat.
PAGE_PATHS = ("/", "/index.html")
_BROWSER_API = ("/v1/chat/completions", "/v1/models", "/models", "/props")
_PAGE_FILE = re.compile(
    r"(?:/[0-9A-Za-z_-][0-9A-Za-z_.-]*)+\.(?:css|html|ico|jpe?g|js|json|mjs|png|svg|wasm|webmanifest|webp|woff2?)"
)
_SERVICE_WORKER = "/sw.js"  # would show the page from its cache after the device was removed


@dataclass(frozen=True)
class Device:
    id: str
    name: str  # chosen by the device
    key_hash: str  # SHA-256 in hexadecimal
    paired_at: float  # time.time()
    last_used_at: float = 0.0  # to the hour, so that it is rarely written
    is_browser: bool = False

    @property
    def program(self) -> str:
        return f"{DEVICE_PREFIX}{self.id}"


class Devices(Keys):
    """The paired devices and their file. Event loop thread only, except `load` and `write`."""

    def __init__(self, file: Path, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` is called when the file must be written."""
        super().__init__({})
        self._file, self._on_change = file, on_change
        self._devices: dict[str, Device] = {}  # by hash of the key

    def load(self) -> None:
        """Read the file. Blocking. Raises OSError, and ValueError if it is damaged."""
        try:
            stored = read_json(self._file, _MAX_FILE)
        except FileNotFoundError:
            return
        try:
            devices = [Device(**entry) for entry in stored]
        except TypeError as error:
            raise ValueError("it is damaged") from error
        for device in devices:
            texts, times = (device.id, device.name, device.key_hash), (device.paired_at, device.last_used_at)
            if not (all(isinstance(text, str) for text in texts) and all(isinstance(at, int | float) for at in times)):
                raise ValueError("it is damaged")
        self._devices = {device.key_hash: device for device in devices}

    def write(self) -> None:
        """Write the file. Blocking. Raises OSError."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(self._file, private=True) as temporary:
            temporary.write_text(json.dumps([asdict(device) for device in self.all]), "utf-8")

    @property
    def all(self) -> tuple[Device, ...]:
        return tuple(self._devices.values())

    def add(self, name: str, *, is_browser: bool = False) -> tuple[Device, str]:
        """Add a device and return it with its key, which is not stored."""
        key = f"kv-{secrets.token_urlsafe(32)}"
        device = Device(secrets.token_hex(8), safe_name(name), _hash(key), time.time(), is_browser=is_browser)
        self._devices[device.key_hash] = device
        self._on_change()
        return device, key

    def renew(self, device: Device) -> Device:
        """Record that a device was paired again."""
        self._devices[device.key_hash] = device = replace(device, paired_at=time.time())
        self._on_change()
        return device

    def remove(self, id: str) -> None:
        """Remove a device; its key is refused from now on."""
        self._devices = {hash: device for hash, device in self._devices.items() if device.id != id}
        self._on_change()

    def find(self, program: str) -> Device | None:
        return next((device for device in self.all if device.program == program), None)

    # As the keys of an AccessPolicy

    def __bool__(self) -> bool:
        return True  # without a device nobody has access

    def __contains__(self, program: str) -> bool:
        return is_device(program)

    def is_owner(self, key: str) -> bool:
        return False

    def allows(self, program: str, path: str) -> bool:
        device = self.find(program)
        if device is None or path == _TOTALS:
            return False
        if path != _HEALTH and time.time() - device.last_used_at >= _USE_INTERVAL_S:
            self._devices[device.key_hash] = replace(device, last_used_at=time.time())
            self._on_change()
        return not device.is_browser or path in _BROWSER_API or is_page_file(path)

    def program_of(self, key: str) -> str | None:
        device = self._devices.get(_hash(key))  # looking up a hash leaks nothing about the key through timing
        return device.program if device else None


def is_page_file(path: str) -> bool:
    """True if this can be a file of the engine's web page. No endpoint of the engine's API looks like one."""
    return path in PAGE_PATHS or (path != _SERVICE_WORKER and _PAGE_FILE.fullmatch(path) is not None)


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
