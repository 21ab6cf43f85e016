"""GET requests to public addresses only: a model must not reach this computer or its network.

Every connection, also of a redirect, goes to an address that was resolved and checked here, so that a name cannot
resolve to another address afterwards. Proxies are not used, because they resolve names themselves.
"""

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2
import psutil

from kvchat import __version__
from kvchat.system.files import read_limited
from kvchat.text.formatting import format_size, one_line
from kvchat.tools.tool import ToolFailed

TIMEOUT_S = 30.0  # for the whole request
MAX_BYTES = 5_000_000  # of a page, compressed and decompressed
MAX_REDIRECTS = 5
_CONNECT_TIMEOUT_S = 10.0
_MAX_ADDRESSES = 3  # of a name, tried one after the other
_PUBLIC_IPV6 = ipaddress.IPv6Network("2000::/3")  # RFC 4291: all assigned addresses
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052
_HEADERS: dict[bytes | str, bytes | str] = {
    "User-Agent": f"kvchat/{__version__}",
    "Accept": "text/html,application/xhtml+xml,application/pdf,text/*;q=0.9,*/*;q=0.5",
    "Accept-Encoding": "gzip",
    "Connection": "close",
}

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


@dataclass(frozen=True)
class Page:
    url: str  # after redirects
    media_type: str  # lower case, without parameters
    charset: str  # from the header; may be empty
    data: bytes


async def resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def is_public(text: str) -> bool:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        in_nat64 = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF) if address in _NAT64 else None
        if embedded := address.ipv4_mapped or address.sixtofour or in_nat64:
            address = embedded
        elif address not in _PUBLIC_IPV6:
            return False
    return address.is_global and not address.is_multicast and address not in _own_addresses()


def _own_addresses() -> set[Any]:
    """Return this computer's addresses, because its IPv6 addresses are public."""
    found = (each for addresses in psutil.net_if_addrs().values() for each in addresses)
    texts = (each.address.partition("%")[0] for each in found if each.family in (socket.AF_INET, socket.AF_INET6))
    return set(map(ipaddress.ip_address, texts))


class PublicNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to public addresses. Raises ToolFailed for others."""

    def __init__(self, resolve: Resolve = resolve, network: httpcore2.AsyncNetworkBackend | None = None) -> None:
        self._resolve, self._network = resolve, network or httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise ToolFailed(f"There is no address for {one_line(host)}") from error
        public = [address for address in dict.fromkeys(addresses) if is_public(address)][:_MAX_ADDRESSES]
        for address in public:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if address == public[-1]:
                    raise
        raise ToolFailed(f"{one_line(host)} is not a public address", "Only public pages can be fetched.")


@functools.cache
def _tls_context() -> ssl.SSLContext:
    return httpx2.create_ssl_context(trust_env=False)


async def fetch(url: str, network: httpcore2.AsyncNetworkBackend | None = None) -> Page:
    """Fetch a page, following redirects. Raises ToolFailed."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            tls = await asyncio.to_thread(_tls_context)
            async with httpcore2.AsyncConnectionPool(tls, network_backend=network or PublicNetwork()) as pool:
                return await _follow(pool, httpx2.URL(url))
    except TimeoutError as error:
        raise ToolFailed("The page could not be fetched", f"It took longer than {TIMEOUT_S:.0f} seconds.") from error
    except (
        *(httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError),
        *(httpx2.InvalidURL, ValueError, zlib.error),  # ValueError: too large
    ) as error:
        raise ToolFailed("The page could not be fetched", f"{str(error) or type(error).__name__}.") from error


async def _follow(pool: httpcore2.AsyncConnectionPool, url: httpx2.URL) -> Page:
    for _ in range(MAX_REDIRECTS + 1):
        if url.scheme not in ("http", "https") or not url.host:
            raise ToolFailed(
                f"{one_line(str(url))} cannot be fetched", "The address must begin with https:// or http://."
            )
        url = url.copy_with(userinfo=b"", fragment=None)
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        timeouts = {"connect": _CONNECT_TIMEOUT_S, "read": TIMEOUT_S, "write": TIMEOUT_S, "pool": TIMEOUT_S}
        async with pool.stream("GET", target, headers=_HEADERS, extensions={"timeout": timeouts}) as response:
            headers = httpx2.Headers(response.headers)
            if response.status in (301, 302, 303, 307, 308) and "location" in headers:
                url = url.join(headers["location"])
                continue
            if response.status != 200:
                raise ToolFailed(f"{one_line(str(url))} cannot be fetched", f"Its server answered {response.status}.")
            data = await read_limited(response.aiter_stream(), MAX_BYTES)
            if encoding := headers.get("content-encoding", "").strip().lower().replace("identity", ""):
                data = _decompress(data, encoding)
            media_type, _, parameters = headers.get("content-type", "").partition(";")
            charset = re.search(r"""charset\s*=\s*["']?([\w-]{1,40})""", parameters, re.IGNORECASE | re.ASCII)
            return Page(str(url), media_type.strip().lower(), charset[1] if charset else "", data)
    raise ToolFailed("The page could not be fetched", f"It redirected more than {MAX_REDIRECTS} times.")


def _decompress(data: bytes, encoding: str) -> bytes:
    """Decompress at most MAX_BYTES. An HTTP library would decompress any amount."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"it is compressed with {encoding}")
    content = zlib.decompressobj(wbits=47).decompress(data, MAX_BYTES + 1)  # 47: gzip or zlib
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {format_size(MAX_BYTES)}")
    return content
