"""Pairing with kvchat on another computer, in order to use that computer's models."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from dataclasses import asdict, dataclass
from typing import Any

import httpx2

from kvchat.engine.process.external import ServerAddress, parse_address
from kvchat.errors import KvchatError
from kvchat.settings import SettingsNotSaved
from kvchat.system.certificate import fingerprint, pinned_context, unverified_context
from kvchat.system.files import parse_json, read_limited
from kvchat.system.pairing import CodeEnterer, PairingLocked, WrongCode
from kvchat.system.paths import Paths
from kvchat.system.secret_store import SecretStore
from kvchat.text.language import _
from kvchat.text.safe_text import safe_name

DEFAULT_PORT = 8738
_TIMEOUT_S = 10.0
_MAX_ANSWER = 20_000  # bytes
_KEY = re.compile(r"kv-[0-9A-Za-z_-]{20,200}")


class PairingFailed(KvchatError):
    def __init__(self, detail: str) -> None:
        super().__init__(
            _("The computers could not be paired"),
            detail,
            _("Check the address, and that “Share with your other devices” is on in kvchat on that computer."),
        )


@dataclass(frozen=True)
class PairedComputer(ServerAddress):
    """Another computer whose models this one may use."""

    device: str = ""  # id of this computer in the other's list of devices
    mac: str = ""  # address for wake-on-LAN, if known

    def wake(self) -> None:
        """Send a wake-on-LAN packet to the home network, if the address is known. Raises KvchatError."""
        if not self.mac:
            return
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                sender.sendto(b"\xff" * 6 + bytes.fromhex(self.mac.replace(":", "")) * 16, ("255.255.255.255", 9))
        except OSError as error:
            raise KvchatError(_("{name} could not be woken", name=self.name), f"{error}.") from error


class PairedComputerStore:
    """Storage of the paired computer in the keyring. Except for `pair`, do not call it in the event loop."""

    def __init__(self, paths: Paths) -> None:
        self._store = SecretStore("paired computer", paths.config / "paired-computer")
        self._marker = paths.config / "is-paired"  # known without asking the user to unlock a keyring

    def has_pairing(self) -> bool:
        return self._marker.exists()

    def load(self) -> PairedComputer | None:
        stored = self._store.load()
        try:
            return PairedComputer(**json.loads(stored[0])) if stored else None
        except (ValueError, TypeError):
            return None

    def save(self, computer: PairedComputer) -> None:
        """Store the computer, replacing the previous one. Raises OSError."""
        self._marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._marker.touch()
        self._store.save(json.dumps(asdict(computer)))

    async def pair(self, address: str, code: str) -> PairedComputer:
        """Pair with a computer and store it. Raises KvchatError."""
        computer = await pair(address, code)
        try:
            await asyncio.to_thread(self.save, computer)
        except OSError as error:
            raise SettingsNotSaved(self._marker.parent, error) from error
        return computer

    def forget(self) -> None:
        self._store.forget()
        self._marker.unlink(missing_ok=True)


def computer_address(text: str) -> str:
    """Complete an address that was typed in, such as `gpubox` or `192.168.1.5:8738`. Raises BadAddress."""
    url = httpx2.URL(parse_address(f"https://{text.strip().rpartition('://')[2]}"))  # never without TLS
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"https://{host}:{url.port or DEFAULT_PORT}"


async def pair(address: str, code: str) -> PairedComputer:
    """Pair with kvchat at this address, using the code that it shows. Raises KvchatError."""
    url, name = computer_address(address), socket.gethostname()
    certificate = await _certificate_of(url)
    side = CodeEnterer(code, name, fingerprint(certificate))
    async with httpx2.AsyncClient(verify=pinned_context(certificate), timeout=_TIMEOUT_S, trust_env=False) as client:
        answer = await _post(client, url, {"message": side.message.hex()})
        proof = side.prove(_hex(answer.get("message")))
        paired = await _post(client, url, {"session": answer.get("session"), "name": name, "proof": proof})
    side.check(str(paired.get("proof")))
    texts = {field: str(paired.get(field, "")) for field in ("key", "device", "mac")}
    if not _KEY.fullmatch(texts["key"]):  # it becomes a header of every request
        raise PairingFailed(_("The other computer sent no valid key."))
    if not re.fullmatch("([0-9a-f]{2}:){5}[0-9a-f]{2}", texts["mac"]):
        texts["mac"] = ""
    return PairedComputer(url=url, name=safe_name(str(paired.get("name", ""))), certificate=certificate, **texts)


async def _certificate_of(url: str) -> str:
    """Return the certificate (PEM) that the computer presents. Not verified yet. Raises PairingFailed."""
    parts = httpx2.URL(url)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _reader, writer = await asyncio.open_connection(parts.host, parts.port, ssl=unverified_context())
    except OSError as error:  # TimeoutError is one
        raise PairingFailed(str(error) or _("The other computer does not answer.")) from error
    connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
    der = connection.getpeercert(binary_form=True)
    writer.transport.abort()
    if der is None:
        raise PairingFailed(_("The other computer has no certificate."))
    return ssl.DER_cert_to_PEM_cert(der)


async def _post(client: httpx2.AsyncClient, url: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            client.stream("POST", f"{url}/kvchat/pair", json=body) as response,
        ):
            content = await read_limited(response.aiter_raw(), _MAX_ANSWER)
        answer = parse_json(content)
    except (httpx2.HTTPError, ValueError, TimeoutError) as error:
        raise PairingFailed(str(error) or _("The other computer does not answer.")) from error
    if response.status_code == 429:
        raise PairingLocked
    if response.status_code == 403:
        raise WrongCode
    if response.status_code == 409:
        raise PairingFailed(_("Too many devices are paired with the other computer."))
    if response.status_code != 200 or not isinstance(answer, dict):
        raise PairingFailed(_("Another program is running at {url}.", url=url))
    return answer


def _hex(text: Any) -> bytes:
    try:
        return bytes.fromhex(str(text))
    except ValueError:
        return b""
