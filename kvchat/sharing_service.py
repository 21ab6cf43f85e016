"""Sharing of this computer's models with paired devices: code, certificate, device list and announcement."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from kvchat.errors import KvchatError
from kvchat.gateway.devices.device_list import Device, Devices
from kvchat.kvstore.savepoint import is_device
from kvchat.settings import Settings
from kvchat.system.concurrency import BackgroundTasks
from kvchat.system.paths import Paths
from kvchat.text.language import _
from kvchat.text.safe_text import safe_name

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

    from kvchat.gateway.gateway import Gateway
    from kvchat.system.pairing import CodeHolder

_MAX_FOUND = 20  # any device in the network can announce names
_ANNOUNCE_TIMEOUT_S = 10.0
SERVICE_TYPE = "_kvchat._tcp.local."  # DNS-SD


class NotShared(KvchatError):
    def __init__(self) -> None:
        super().__init__(
            _("This computer is not shared"),
            _("Other devices cannot connect to this computer."),
            _("Turn on “Share with your other devices” in Settings, or run `kvchat serve --share`."),
        )


@dataclass
class SharingService:
    """Event loop thread only."""

    paths: Paths
    settings: Callable[[], Settings]
    notify: Callable[[str, str], None]
    port: int | None = None  # None: not shared
    listeners: list[Callable[[], None]] = field(default_factory=list)  # called when the devices change
    _gateway: Gateway | None = None
    _devices: Devices | None = None
    _codes: CodeHolder | None = None
    _announcement: AsyncZeroconf | None = None
    _background: BackgroundTasks = field(default_factory=BackgroundTasks)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def devices(self) -> tuple[Device, ...]:
        return self._devices.all if self._devices else ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses at which devices in the home network reach this computer."""
        return tuple(f"https://{address}:{self.port}" for address in _home_addresses()) if self.port else ()

    @property
    def link(self) -> str:
        """The link that pairs a browser while a code is shown, else "". It is as secret as the code."""
        if self._codes is None or not self._codes.token or not self.addresses:
            return ""
        return f"{self.addresses[0]}{self._codes.link_path}"

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when the devices or addresses change; return a function that unsubscribes it."""
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def load(self) -> None:
        """Read the devices, even while nothing is shared. Raises KvchatError."""
        if self._devices is None:
            file = self.paths.config / "devices.json"
            devices = Devices(file, self._save_soon)
            try:
                await asyncio.to_thread(devices.load)
            except (OSError, ValueError) as error:
                advice = _("Delete the file, then pair all devices again.")
                raise KvchatError(_("The paired devices could not be read"), f"{file}: {error}.", advice) from error
            self._devices = devices
            self._changed()

    async def open(self, gateway: Gateway) -> None:
        """Let paired devices use the gateway, until it is closed. Raises KvchatError."""
        await self.load()
        for module in ("kvchat.system.pairing", "kvchat.gateway.devices.api", "zeroconf.asyncio"):
            await asyncio.to_thread(importlib.import_module, module)
        from kvchat.gateway.devices.api import PairingApi
        from kvchat.system.certificate import server_context
        from kvchat.system.pairing import CodeHolder

        file = self.paths.config / "certificate.pem"
        try:
            context, fingerprint = await asyncio.to_thread(server_context, file)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            advice = _("Delete the file to create a new certificate. All devices must then be paired again.")
            raise KvchatError(
                _("The certificate of this computer cannot be used"), f"{file}: {error}.", advice
            ) from error
        assert self._devices is not None
        self._codes = self._codes or CodeHolder(fingerprint)
        self._codes.certificate = fingerprint  # the file may have been replaced
        pairing = PairingApi(self._devices, self._codes, socket.gethostname(), _mac_address(), self._paired)
        self.port = await gateway.share(pairing, "0.0.0.0", self.settings().share_port, context)
        self._gateway = gateway
        await self._announce()
        self._changed()

    async def close(self) -> None:
        """Stop announcing. The gateway's owner closes the gateway."""
        self.port = None
        if self._announcement is not None:
            announcement, self._announcement = self._announcement, None
            with contextlib.suppress(OSError, TimeoutError):
                await announcement.async_close()
        if self._codes is not None:
            self._codes.hide_code()
        self._changed()

    @property
    def code(self) -> str:
        """The pairing code on display, or an empty text if nobody can pair now."""
        return self._codes.code if self._codes and self._codes.seconds_left else ""

    @property
    def code_seconds_left(self) -> float:
        return self._codes.seconds_left if self._codes else 0.0

    def show_code(self) -> str:
        """Return a new pairing code, which is valid for ten minutes. Raises NotShared and PairingLocked."""
        if self.port is None or self._codes is None:
            raise NotShared
        return self._codes.show_code()

    def hide_code(self) -> None:
        if self._codes is not None:
            self._codes.hide_code()

    def remove(self, id: str) -> Device | None:
        """Refuse a device from now on, abort its replies and return it. Its chat memory stays until it is deleted."""
        assert self._devices is not None
        device = next((device for device in self._devices.all if device.id == id), None)
        self._devices.remove(id)
        if device is not None and self._gateway is not None:
            self._gateway.runner.stop_program(device.program)
        return device

    def label_of(self, program: str) -> str:
        """Return the name to show for a program: the device's name if it is a device."""
        if not is_device(program):
            return program
        return next((device.name for device in self.devices if device.program == program), _("removed device"))

    async def wait_until_saved(self) -> None:
        await self._background.wait_until_idle()

    def _paired(self, device: Device) -> None:
        self.notify(_("A device was paired"), _("“{name}” can now use the models of this computer.", name=device.name))

    def _save_soon(self) -> None:
        async def save(devices: Devices) -> None:
            try:
                async with self._writing:  # in order: an earlier write must not bring back a removed device
                    await asyncio.to_thread(devices.write)
            except OSError as error:
                self.notify(_("The paired devices could not be saved"), f"{error}.")

        if self._devices is not None:
            self._background.start(save(self._devices))
        self._changed()

    def _changed(self) -> None:
        for listener in tuple(self.listeners):
            listener()

    async def _announce(self) -> None:
        """Announce this computer in the home network. Without a network, devices need its address."""
        from zeroconf import Error as ZeroconfError
        from zeroconf import IPVersion, ServiceInfo
        from zeroconf.asyncio import AsyncZeroconf

        name = socket.gethostname().partition(".")[0] or "kvchat"
        addresses = [socket.inet_aton(address) for address in _home_addresses()]
        info = ServiceInfo(
            SERVICE_TYPE, f"{name}.{SERVICE_TYPE}", self.port, addresses=addresses, server=f"{name}.local."
        )
        with contextlib.suppress(OSError, TimeoutError, ZeroconfError):
            self._announcement = AsyncZeroconf(ip_version=IPVersion.V4Only)
            async with asyncio.timeout(_ANNOUNCE_TIMEOUT_S):  # another computer may claim every name
                await self._announcement.async_register_service(info, allow_name_change=True)


async def find_shared(seconds: float = 3.0) -> dict[str, str]:
    """Return the addresses of computers in the home network that share their models, by name."""
    await asyncio.to_thread(importlib.import_module, "zeroconf.asyncio")  # slow the first time
    from zeroconf import IPVersion, ServiceStateChange
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

    names: list[str] = []

    def note(zeroconf: Any, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is not ServiceStateChange.Removed:
            names.append(name)

    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        async with AsyncZeroconf(ip_version=IPVersion.V4Only) as network:
            browser = AsyncServiceBrowser(network.zeroconf, SERVICE_TYPE, handlers=[note])
            await asyncio.sleep(seconds)
            for name in names[:_MAX_FOUND]:
                info = AsyncServiceInfo(SERVICE_TYPE, name)
                if await info.async_request(network.zeroconf, 1000) and (addresses := info.parsed_addresses()):
                    found[safe_name(name.removesuffix(f".{SERVICE_TYPE}"))] = f"https://{addresses[0]}:{info.port}"
            await browser.async_cancel()
    return found


def _mac_address() -> str:
    """Return the hardware address of the interface in the home network, for wake-on-LAN, or ""."""
    for entries in psutil.net_if_addrs().values():
        if any(entry.address in _home_addresses()[:1] for entry in entries):
            found = [entry.address for entry in entries if entry.family == psutil.AF_LINK]
            return next((address.replace("-", ":").lower() for address in found), "")
    return ""


def _home_addresses() -> list[str]:
    """Return this computer's private IPv4 addresses, except loopback and link-local ones.

    The first one is in the network of the default route. The others may be those of virtual machines and containers.
    """
    addresses = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the address is for documentation (RFC 5737)
        addresses.sort(key=lambda address: address != probe.getsockname()[0])
    found = []
    for address in addresses:
        with contextlib.suppress(ValueError):
            parsed = ipaddress.IPv4Address(address)
            if parsed.is_private and not parsed.is_loopback and not parsed.is_link_local:
                found.append(address)
    return found
